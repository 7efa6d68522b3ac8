package db

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
)

// namedArgs are the arguments of a statement by name, with the meaning of pgx.NamedArgs. pgx reads the text of a
// statement for its names at each call; here a text is read once, since a job runs some forty statements of up to 4 KB.
type namedArgs map[string]any

// numbered is a statement with $1, $2 in the place of names.
type numbered struct {
	sql   string
	names []string // names[0] is the name of $1
}

// numberings keeps the numbered statement of each text that has been read.
type numberings struct {
	limit  int64    // of texts that are kept; a few more if calls come at once
	byText sync.Map // of string to *numbered
	count  atomic.Int64
}

// statements has room for all texts of this package. Most are constants; a filter makes a text for each combination of
// its conditions.
var statements = numberings{limit: 2000}

// RewriteQuery implements pgx.QueryRewriter. A name without an argument is NULL.
func (a namedArgs) RewriteQuery(ctx context.Context, conn *pgx.Conn, sql string, args []any) (string, []any, error) {
	n := statements.of(ctx, conn, sql, a)
	if n == nil {
		return pgx.NamedArgs(a).RewriteQuery(ctx, conn, sql, args)
	}
	return n.sql, n.values(a), nil
}

// of returns the numbered statement of a text, or nil if pgx must read the text.
func (k *numberings) of(ctx context.Context, conn *pgx.Conn, sql string, a namedArgs) *numbered {
	if found, ok := k.byText.Load(sql); ok {
		return found.(*numbered)
	}
	n := a.number(ctx, conn, sql)
	if n != nil && k.count.Load() < k.limit {
		if _, loaded := k.byText.LoadOrStore(sql, n); !loaded {
			k.count.Add(1)
		}
	}
	return n
}

// values are the arguments in the order of the statement.
func (n *numbered) values(a namedArgs) []any {
	list := make([]any, len(n.names))
	for i, name := range n.names {
		list[i] = a[name]
	}
	return list
}

// number lets pgx read the text with each name as its own argument, and so learns the order of the names. It returns
// nil if the text has a name without an argument, or if pgx refuses it.
func (a namedArgs) number(ctx context.Context, conn *pgx.Conn, sql string) *numbered {
	self := make(pgx.NamedArgs, len(a))
	for name := range a {
		self[name] = name
	}
	rewritten, order, err := self.RewriteQuery(ctx, conn, sql, nil)
	if err != nil {
		return nil
	}
	n := &numbered{sql: rewritten, names: make([]string, len(order))}
	for i, value := range order {
		name, known := value.(string)
		if !known {
			return nil
		}
		n.names[i] = name
	}
	return n
}
