package explain

import (
	"context"
	"time"

	"berth"
	"berth/db"
	"berth/internal/control/convert"
	"berth/internal/control/runtimes"
	"berth/placement"
	"berth/spec"
	"berth/wire"
)

// knows reports whether the reading has this version of the row, or a newer one.
func (x *Explainer) knows(row db.QueueJob) bool {
	if x.snapshot == nil {
		return false
	}
	if j, ok := x.snapshot.Job(row.ID); ok {
		return j.Version >= row.Version
	}
	r, ok := x.snapshot.Running(row.ID)
	return ok && r.Version >= row.Version
}

// read makes a new reading, unless the present one is enough by then. The reading
// serves other callers as well, so it continues even if this caller has gone, until Close.
func (x *Explainer) read(ctx context.Context, enough func() bool, hinted db.Hinted) error {
	return hold(ctx, x.reads, func() error {
		done := false
		if err := hold(ctx, x.turn, func() error {
			done = x.snapshot != nil && enough()
			return nil
		}); err != nil || done {
			return err
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readLimit)
		defer cancel()
		defer context.AfterFunc(x.owner.Context(), cancel)()
		return x.readAll(ctx, hinted)
	})
}

// rest is for how long a reading is used again. It depends on the number of rows and
// not on how long they took to read, so that a slow moment makes no answer older.
func (x *Explainer) rest() time.Duration {
	beyond := x.snapshot.Jobs() + x.snapshot.Machines() - freshTo
	return min(longestRest, time.Duration(max(0, beyond))*restEach)
}

// fresh reports whether the reading may answer a question of that time about a job's
// row.
func (x *Explainer) fresh(asked time.Time) bool {
	rest := x.rest()
	if x.asking.Load() > 1 {
		rest = max(rest, crowdedRest)
	}
	return x.within(asked, rest)
}

// within reports whether the reading began at most rest before a question was asked,
// and after the latest change that was made here.
func (x *Explainer) within(asked time.Time, rest time.Duration) bool {
	return x.changed == x.changes.Load() && asked.Before(x.beganAt.Add(rest))
}

// news are the rows of a reading that are not yet in the snapshot.
type news struct {
	began   time.Time
	changed int64

	whole    bool // the rows are all there are, not the changed ones
	snapshot *placement.Snapshot
	book     *runtimes.Book
	rows     db.Changes
	requests map[string]spec.Request
	expected []berth.JobID // jobs whose expected run time has changed

	past      *placement.RunTimes // nil: unchanged
	tenants   []db.TenantRow
	pools     []db.PoolRule
	windows   []db.Window
	drained   map[berth.MachineID]bool
	costs     map[string]float64
	admission wire.Admission
}

// readAll makes a new reading. If it fails, the reading before stays as it was.
func (x *Explainer) readAll(ctx context.Context, hinted db.Hinted) (err error) {
	n := news{began: time.Now(), changed: x.changes.Load()}
	if err := x.readBlocked(ctx); err != nil {
		return err
	}
	if n.tenants, err = x.db.Tenants.Rows(ctx); err != nil {
		return err
	}
	if n.pools, err = x.db.Pools.Rules(ctx); err != nil {
		return err
	}
	if n.windows, err = x.db.Maintenance.Windows(ctx); err != nil {
		return err
	}
	if n.costs, err = x.db.Queue.PoolCosts(ctx); err != nil {
		return err
	}
	if n.admission, err = x.db.Cluster.Admission(ctx); err != nil {
		return err
	}
	// Before the rows: a machine that is undrained meanwhile has its new state from its row.
	if n.drained, err = x.db.Machines.Drained(ctx); err != nil {
		return err
	}
	if err := x.readQueue(ctx, hinted, &n); err != nil {
		return err
	}
	if err := x.readPast(ctx, &n); err != nil {
		return err
	}
	return hold(ctx, x.turn, func() error {
		x.apply(n)
		return nil
	})
}

// readBlocked reads which machines get no work, as the leader does.
func (x *Explainer) readBlocked(ctx context.Context) error {
	if time.Since(x.blockedAt) < blockEvery {
		return nil
	}
	disobedient, err := x.db.Machines.Disobedient(ctx, db.DisobeyedAfter)
	if err != nil {
		return err
	}
	miscounts, err := x.db.Cluster.Miscounts(ctx)
	if err != nil {
		return err
	}
	x.blocked, x.blockedAt = convert.Blocked(disobedient, miscounts), time.Now()
	return nil
}

// readPast reads the run times of the jobs that ended last, by which the ends of jobs without
// a time limit are predicted. The read is bounded, and serves all questions of a time that grows with the number
// of jobs: a minute-old history without jobs would hide all that have ended since.
func (x *Explainer) readPast(ctx context.Context, n *news) error {
	began := time.Now()
	if began.Sub(x.learnedAt) < x.learnRest {
		return nil
	}
	list, err := x.db.Attempts.Latest(ctx)
	if err != nil {
		return err
	}
	n.past, x.learnedAt = convert.RunTimes(list), time.Now()
	x.learnRest = min(learnMost, max(learnLeast, time.Duration(len(list))*learnEach, x.learnedAt.Sub(began)*learnTimes))
	return nil
}

// readQueue reads the changed rows, or all rows. The feed ends before the oldest
// open transaction. With few rows to read, the reading includes later changes too,
// so that it shows the present state.
func (x *Explainer) readQueue(ctx context.Context, hinted db.Hinted, n *news) (err error) {
	var missing []string
	n.snapshot, n.book = x.snapshot, x.runs
	n.whole = x.snapshot == nil || time.Since(x.loadedAt) > reloadEvery
	if !n.whole {
		if n.rows, err = x.db.Queue.Feed(ctx, x.cursor, hinted); err != nil {
			return err
		}
		if err := hold(ctx, x.turn, func() error {
			n.whole = n.rows.Next < n.rows.End && x.rest() == 0
			missing = convert.Missing(x.snapshot, n.rows.Jobs)
			return nil
		}); err != nil {
			return err
		}
	}
	if n.whole {
		n.snapshot, n.book = placement.SnapshotFor(x.planner.Policy), x.runs.Fresh()
		if n.rows, err = x.db.Queue.Load(ctx); err != nil {
			return err
		}
		missing = convert.Missing(n.snapshot, n.rows.Jobs)
	}
	if len(missing) > 0 {
		if n.requests, err = x.db.Queue.Requests(ctx, missing); err != nil {
			return err
		}
	}
	n.expected, err = n.book.Read(ctx, n.rows.Jobs) // last: the book has it although the snapshot may not
	return err
}

// apply brings the news into the snapshot.
func (x *Explainer) apply(n news) {
	s, before := n.snapshot, x.tenants
	for class, r := range n.requests {
		s.DefineClass(class, r)
	}
	blocked := func(id berth.MachineID) string { return x.blocked[id] }
	convert.Apply(s, n.rows, blocked, func(berth.JobID) bool { return false })
	n.book.Tell(s, n.expected)
	if n.whole {
		if x.snapshot != nil {
			s.UseMix(x.snapshot.Mix()) // it contains more requests than the present queue
		}
		x.loadedAt, before = n.began, nil
	}
	if n.past != nil {
		x.planner.RunTimes = n.past
	}
	x.showBlocked(s)
	x.showDrained(s, n.drained)
	x.keep(s, n.rows.Now)
	x.runs, x.cursor = n.book, n.rows.Next
	x.reading = reading{
		snapshot: s, tenants: convert.Tenants(s, n.tenants, before), shown: x.blocked,
		drained: n.drained,
		costs:   n.costs, admission: n.admission,
		now: n.rows.Now, asked: map[question]placement.JobExplanation{}, beganAt: n.began, changed: n.changed,
	}
	convert.Pools(s, n.pools)
	convert.Windows(s, n.windows)
}

// showBlocked brings into the snapshot which machines get no work.
func (x *Explainer) showBlocked(s *placement.Snapshot) {
	for _, list := range []map[berth.MachineID]string{x.shown, x.blocked} {
		for id := range list {
			if m, ok := s.Machine(id); ok && m.Blocked != x.blocked[id] {
				m.Blocked = x.blocked[id]
				s.UpsertMachine(m)
			}
		}
	}
}

// showDrained brings into the snapshot which of the draining machines are drained, so that reasons name the
// state that lists of machines show. Rows have only the state draining.
func (x *Explainer) showDrained(s *placement.Snapshot, drained map[berth.MachineID]bool) {
	for _, list := range []map[berth.MachineID]bool{x.drained, drained} {
		for id := range list {
			m, ok := s.Machine(id)
			switch {
			case !ok:
				continue
			case m.State == berth.MachineDraining && drained[id]:
				m.State = wire.MachineDrained
			case m.State == wire.MachineDrained && !drained[id]:
				m.State = berth.MachineDraining
			default:
				continue
			}
			s.UpsertMachine(m)
		}
	}
}
