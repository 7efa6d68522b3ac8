package autoscale

import (
	"context"

	"berth/db"
)

// InTerm prepares a loop for passes in a term without Run.
func InTerm(ctx context.Context, l *Loop, term db.Term, mirror CopyMirror) context.Context {
	if l.mirror == nil {
		l.begin(term, mirror)
	}
	return ctx
}

// ReadBy makes a quoter read its facts by a function.
func ReadBy(q *Quoter, read func(context.Context) (Facts, db.BurstState, error)) { q.read = read }
