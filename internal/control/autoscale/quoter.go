package autoscale

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"berth/db"
	"berth/internal/control/cloud"
	"berth/internal/control/convert"
	"berth/placement"
)

const (
	// quoteAge is the greatest age of the facts of quotes. The facts are the same for all tenants.
	quoteAge = 5 * time.Second
	// quoteRead bounds the time of a reading.
	quoteRead = 30 * time.Second
)

// Quoter quotes the offers of clouds for single jobs, by the policies and limits of their tenants, as the scaler would
// apply them now. It may be used concurrently.
type Quoter struct {
	DB       *db.DB
	Accounts cloud.Accounts

	read func(context.Context) (Facts, db.BurstState, error) // nil: from DB

	mu   sync.Mutex
	last *reading // the present one, or the last one

	// Readings fill these in one after the other.
	learn     sync.Mutex
	runTimes  *placement.RunTimes
	learnedAt time.Time
}

// reading is one reading of the facts, which all callers of its time share. The fields are written before done closes.
type reading struct {
	done  chan struct{}
	ended time.Time
	facts Facts
	state db.BurstState
	err   error
}

// fresh reports whether callers may use the reading: it is under way, or it has succeeded a short time ago.
func (r *reading) fresh() bool {
	select {
	case <-r.done:
		return r.err == nil && time.Since(r.ended) < quoteAge
	default:
		return true
	}
}

// Of returns the quotes of a job. Without configured providers there are none.
func (q *Quoter) Of(ctx context.Context, j Quoted) (Quotes, error) {
	if len(q.Accounts.Providers) == 0 {
		return Quotes{}, nil
	}
	r := q.reading(ctx)
	select {
	case <-r.done:
	case <-ctx.Done():
		return Quotes{}, ctx.Err()
	}
	if r.err != nil {
		return Quotes{}, r.err
	}
	return QuotesOf(r.facts, r.state, j), nil
}

// Forget makes the next call read the facts again. Call it after a change of a policy, an offer or the admission.
func (q *Quoter) Forget() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.last = nil
}

// reading returns a fresh reading, or begins one. The end of a caller does not end the reading.
func (q *Quoter) reading(ctx context.Context) *reading {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.last != nil && q.last.fresh() {
		return q.last
	}
	r := &reading{done: make(chan struct{})}
	q.last = r
	read := q.read
	if read == nil {
		read = q.readDB
	}
	go func() {
		defer close(r.done)
		// Other callers wait for this reading, so the end of the call that began it does not cancel it.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), quoteRead)
		defer cancel()
		defer func() {
			if p := recover(); p != nil { // in a handler it would be that call's alone
				r.err = fmt.Errorf("reading the facts of quotes panicked: %v\n%s", p, debug.Stack())
			}
		}()
		r.facts, r.state, r.err = read(ctx)
		r.ended = time.Now()
	}()
	return r
}

// readDB reads the facts from the database.
func (q *Quoter) readDB(ctx context.Context) (f Facts, state db.BurstState, err error) {
	f = Facts{Accounts: q.Accounts, Planner: placement.Planner{Pack: placement.LeastFragmentation}}
	if f.Policies, err = q.DB.Burst.Policies(ctx); err != nil || len(f.Policies) == 0 {
		return f, state, err
	}
	if state, err = q.DB.Scaling.State(ctx); err != nil {
		return f, state, err
	}
	f.Now = state.Now
	for id, parent := range state.Parents {
		f.Tenants = append(f.Tenants, placement.Tenant{ID: id, Parent: parent})
	}
	rules, err := q.DB.Pools.Rules(ctx)
	if err != nil {
		return f, state, err
	}
	f.Pools = convert.Pools(placement.NewSnapshot(), rules)
	admission, err := q.DB.Cluster.Admission(ctx)
	if err != nil {
		return f, state, err
	}
	f.Paused = admission.Paused
	if f.Offers, err = q.DB.Offers.All(ctx); err != nil {
		return f, state, err
	}
	if f.Breakers, err = q.DB.Scaling.Breakers(ctx); err != nil {
		return f, state, err
	}
	if f.Spent, err = q.DB.Spend.Of(ctx, f.Now); err != nil {
		return f, state, err
	}
	if f.Growth, err = q.DB.Scaling.Growth(ctx, f.Now.Add(-mostGrowth)); err != nil {
		return f, state, err
	}
	f.RunTimes, err = q.times(ctx)
	return f, state, err
}

// times returns the run times of ended jobs, as old as the scaler's at most.
func (q *Quoter) times(ctx context.Context) (*placement.RunTimes, error) {
	q.learn.Lock() // a reading that Forget has dropped may still run
	defer q.learn.Unlock()
	if q.runTimes == nil || time.Since(q.learnedAt) >= learnEvery {
		ended, err := q.DB.Attempts.Latest(ctx)
		if err != nil {
			return nil, err
		}
		q.runTimes, q.learnedAt = convert.RunTimes(ended), time.Now()
	}
	return q.runTimes, nil
}
