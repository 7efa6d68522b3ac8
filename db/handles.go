package db

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
)

// A handle is the end of a job's id, the short form that people read and type. It has at least
// minHandle characters, and as many more as are needed to differ from all other jobs of the
// database, live or archived. Handles are computed when a job is read and are not stored.
//
//	id       019ab3c4-0f2e-7c11-9b1d-5e02c7d3f9a2
//	handle                                  d3f9a2, or 7d3f9a2 once another id ends in d3f9a2
//
// A handle that was shown once never comes to mean another job without notice:
//
//   - Rows of jobs are archived and never deleted, so both jobs of a later collision are
//     found, and the handle is refused with both as candidates (Resolve).
//   - A restore loses rows. The digit six from the end of an id depends on the incarnation
//     of the database (tailDigit): the ids of two incarnations have different ends, so that
//     no handle of a lost job is the handle of a job of the next 14 incarnations.
//   - A handle never begins with 0, and ids do, until the year 2527 (UUIDv7): no handle is
//     the beginning of an id.
//   - An argument that is the name of a job and also the end of an id is refused.
//
// The incarnation is read at most incarnationAge before an id is created, so the ids of the
// first second after a leap may still have the digit of the incarnation before.
const (
	minHandle = 6
	maxHandle = 12 // length of the random end of an id, up to its last dash
)

// tailOf returns the expression of an id's end, reversed and compared as bytes. Indexes of
// jobs and archived_jobs have the same expression (buildIndexes): ids that end alike are
// neighbours there.
func tailOf(id string) string { return `(reverse(right(` + id + `::text, 12)) COLLATE "C")` }

// handleOf returns the expression of a job's handle for the column id of its row. It reads
// four neighbours in the indexes of tails. Ids that have all 12 characters in common are
// their own handles.
func handleOf(id string) string {
	neighbour := func(table, compared, order string) string {
		return `
				(SELECT ` + tailOf("n.id") + ` AS tail FROM ` + table + ` n
				WHERE ` + tailOf("n.id") + ` ` + compared + ` ` + tailOf(id) + `
				ORDER BY ` + tailOf("n.id") + ` ` + order + ` LIMIT 1)`
	}
	return `(
			WITH near AS MATERIALIZED (` + strings.Join([]string{
		neighbour("jobs", "<", "DESC"), neighbour("jobs", ">", "ASC"),
		neighbour("archived_jobs", "<", "DESC"), neighbour("archived_jobs", ">", "ASC"),
	}, ` UNION ALL`) + `
			)
			SELECT coalesce(right(` + id + `::text, min(l)), ` + id + `::text)
			FROM generate_series(` + strconv.Itoa(minHandle) + `, ` + strconv.Itoa(maxHandle) + `) AS l
			WHERE left(right(` + id + `::text, l), 1) <> '0'
			  AND NOT EXISTS (SELECT 1 FROM near WHERE left(near.tail, l) = left(` + tailOf(id) + `, l)))`
}

// shortID returns the expression of a reference to a job that may be stored, for the column id of
// its row: the longest handle that an id may have. No job that is created later changes its meaning.
func shortID(id string) string {
	return `ltrim(right(` + id + `::text, ` + strconv.Itoa(maxHandle) + `), '0')`
}

// newJobID returns the id of a job that is created at now in an incarnation of the database.
func newJobID(now time.Time, incarnation int64) berth.JobID {
	id := []byte(berth.NewJobID(now))
	id[len(id)-minHandle] = tailDigit(id[len(id)-minHandle+1:], incarnation)
	return berth.JobID(id)
}

// tailDigit returns the hex digit before the last five of an id: 1 to f, and another one for
// each of 15 consecutive incarnations. The last five digits spread it, lest all ids of an
// incarnation have one digit in common.
func tailDigit(last []byte, incarnation int64) byte {
	n, _ := strconv.ParseInt(string(last), 16, 64) // hex digits of an id always parse
	const digits = "123456789abcdef"
	return digits[(n+incarnation)%int64(len(digits))]
}

// incarnationAge is how long a process creates ids by one reading of the incarnation.
const incarnationAge = time.Second

// incarnations remembers the incarnation of the database for newJobID. The zero value is
// ready for use.
type incarnations struct {
	seen atomic.Pointer[incarnationSeen]
}

// incarnationSeen is one reading of the incarnation.
type incarnationSeen struct {
	number int64
	at     time.Time
}

// now returns the incarnation, at most incarnationAge old. Concurrent callers may read it
// several times.
func (i *incarnations) now(ctx context.Context, q rowQuerier) (int64, error) {
	if seen := i.seen.Load(); seen != nil && time.Since(seen.at) < incarnationAge {
		return seen.number, nil
	}
	at := time.Now()
	n, err := incarnationOf(ctx, q)
	if err != nil {
		return 0, err
	}
	i.seen.Store(&incarnationSeen{n, at})
	return n, nil
}

// forget drops the reading after a leap of this process.
func (i *incarnations) forget() { i.seen.Store(nil) }

// rowQuerier is a pool or a transaction.
type rowQuerier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// incarnationOf reads the incarnation of the database.
func incarnationOf(ctx context.Context, q rowQuerier) (n int64, err error) {
	err = q.QueryRow(ctx, `SELECT incarnation FROM cluster`).Scan(&n)
	return n, mapError(err, "cluster")
}

// maxCandidates is the number of jobs that the refusal of an ambiguous argument lists.
const maxCandidates = 8

// candidate is a job that an argument may mean.
type candidate struct {
	ID     string
	Handle string
	Name   string
	State  string
	Named  bool // by its name; else by a part of its id
}

// Resolve returns the job that an argument means: a whole id, the beginning of an id from
// minPrefix characters on, or the end of an id from minHandle characters on. Only jobs of
// the tenant count; tenant "" means any. An argument that matches several jobs is a conflict
// with SlugAmbiguousID that lists them, and so is the end of an id that is also the name of
// another job.
func (d *Jobs) Resolve(ctx context.Context, tenant berth.TenantID, arg string) (berth.JobID, error) {
	arg = strings.ToLower(arg)
	if id, err := berth.ParseJobID(arg); err == nil {
		_, _, err := d.State(ctx, tenant, id)
		return id, err
	}
	sql, args := resolveQuery(tenant, arg)
	if sql == "" {
		return "", berth.Errorf(berth.CodeNotFound, "no such job %s", arg)
	}
	rows, err := d.pool.Query(ctx, sql, args)
	if err != nil {
		return "", mapError(err, "job "+arg)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[candidate])
	switch n := len(found); {
	case err != nil:
		return "", mapError(err, "job "+arg)
	case n == 0 || n == 1 && found[0].Named:
		return "", berth.Errorf(berth.CodeNotFound, "no such job %s", arg)
	case n > 1:
		return "", ambiguous(arg, found)
	}
	return berth.JobID(found[0].ID), nil
}

// resolveQuery returns the statement that finds candidates of an argument, at most
// maxCandidates and one more, newest first, and last the latest job with the argument as its
// name. The statement is "" if the argument has not the form of a part of an id.
//
// Each walk follows an index in its order, so that it ends after the first candidates even
// where many jobs match.
func resolveQuery(tenant berth.TenantID, arg string) (string, namedArgs) {
	lo, hi, isPrefix := idRange(arg)
	isTail := isHandle(arg)
	if !isPrefix && !isTail {
		return "", nil
	}
	args := namedArgs{"tenant": string(tenant), "limit": maxCandidates + 1}
	var parts []string
	walk := func(table, condition, order, named, limit string) {
		parts = append(parts, `
			(SELECT id, name, state, `+named+` AS named, submitted_at FROM `+table+`
			WHERE `+condition+` AND (@tenant = '' OR tenant = @tenant)
			ORDER BY `+order+` LIMIT `+limit+`)`)
	}
	for _, table := range []string{"jobs", "archived_jobs"} {
		if isPrefix {
			args["lo"], args["hi"] = lo, hi
			walk(table, `id BETWEEN @lo AND @hi`, `id DESC`, "false", "@limit")
		}
		if isTail {
			args["tail"] = reversed(arg)
			walk(table, tailOf("id")+` >= @tail AND `+tailOf("id")+` < @tail || 'g'`, tailOf("id"), "false", "@limit")
		}
	}
	if isTail {
		args["name"] = arg
		// Equal, written as a range: with one name in the order, only the index by name has the
		// order. Without it, a plan for a database in which most jobs have one name walks the
		// whole history for a name that no job has.
		const named, order = `parent IS NULL AND name >= @name AND name <= @name`,
			`name, submitted_at DESC, id DESC`
		walk("jobs", named+` AND state NOT IN ('succeeded', 'failed', 'canceled')`, order, "true", "1")
		walk("jobs", named+` AND state IN ('succeeded', 'failed', 'canceled')`, order, "true", "1")
		walk("archived_jobs", named, order, "true", "1")
	}
	return `
		SELECT c.id::text, ` + handleOf("c.id") + `, c.name, c.state, c.named
		FROM (
			SELECT id, name, state, bool_and(named) AS named, submitted_at
			FROM (` + strings.Join(parts, `
			UNION ALL`) + `
			) f
			GROUP BY id, name, state, submitted_at
			ORDER BY bool_and(named), submitted_at DESC, id DESC
			LIMIT @limit
		) c
		ORDER BY c.named, c.submitted_at DESC, c.id DESC`, args
}

// ambiguous returns the refusal of an argument that means several jobs, each with the handle
// that means it alone.
func ambiguous(arg string, found []candidate) error {
	more := ""
	if len(found) > maxCandidates {
		found, more = found[:maxCandidates], " and others"
	}
	list := make([]string, len(found))
	for i, c := range found {
		handle := c.Handle
		if handle == arg { // the job means it, and the other one has this name
			handle = c.ID
		}
		list[i] = fmt.Sprintf("%s (%s, %s)", handle, c.Name, c.State)
	}
	return &berth.Error{Code: berth.CodeConflict, Slug: SlugAmbiguousID,
		Message: fmt.Sprintf("%s may be any of %s%s; use one of these ids", arg, strings.Join(list, ", "), more)}
}

// isHandle reports whether an argument has the form of a handle.
func isHandle(arg string) bool {
	if len(arg) < minHandle || len(arg) > maxHandle {
		return false
	}
	return strings.Trim(arg, "0123456789abcdef") == ""
}

// reversed returns ASCII text from its end to its beginning.
func reversed(s string) string {
	b := []byte(s)
	for i, j := 0, len(b)-1; i < j; i, j = i+1, j-1 {
		b[i], b[j] = b[j], b[i]
	}
	return string(b)
}
