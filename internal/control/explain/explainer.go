package explain

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"berth"
	"berth/db"
	"berth/internal/control/convert"
	"berth/internal/control/runtimes"
	"berth/placement"
)

// Timing of reads.
const (
	// A reading is used again for restEach for each job and machine beyond
	// freshTo, but not longer than longestRest.
	freshTo     = 1000
	restEach    = 50 * time.Microsecond
	longestRest = 2 * time.Second

	// A question that others wait behind takes a reading of this age, so that a
	// queue of them costs little more than one.
	crowdedRest = time.Second

	readLimit   = time.Minute      // on one reading
	blockEvery  = 10 * time.Second // which machines get no work for reasons in no row of theirs
	reloadEvery = 5 * time.Minute  // reread everything, to drop entries without questions
)

// Explainer answers questions about the queue. It reads nothing before the first.
// It may be used concurrently.
type Explainer struct {
	db      *db.DB
	planner placement.Planner
	asking  atomic.Int64  // questions that have or want the turn
	stale   atomic.Bool   // the reading is
	turn    chan struct{} // of who may touch what follows
	reading
}

// reading is what the rows said and what was made of it.
type reading struct {
	snapshot *placement.Snapshot // nil: nothing was read
	runs     *runtimes.Book
	cursor   db.Cursor
	tenants  map[berth.TenantID]db.TenantRow
	blocked  map[berth.MachineID]string
	now      time.Time // the database's clock then
	plan     *placement.Outlook
	asked    map[question]placement.JobExplanation // of new jobs, since

	beganAt             time.Time // our clock; zero: it was not completed
	loadedAt, blockedAt time.Time // our clock
}

// question identifies a new job: equal questions have equal answers.
type question struct {
	tenant      berth.TenantID
	class       string
	priority    int
	preemptible bool
	limit       time.Duration
	name        string // "": its history does not matter
	data        string // keys
}

// New returns an Explainer by the policy that the leader goes by.
func New(d *db.DB, policy placement.Policy) *Explainer {
	x := &Explainer{db: d, planner: placement.Planner{Pack: placement.Worth, Policy: policy}, turn: make(chan struct{}, 1)}
	x.runs = runtimes.New(d, policy, 0)
	x.turn <- struct{}{}
	return x
}

// Why explains a waiting job, whose row was just read; ok is false if the job no
// longer waits. request is the request of the job's class.
func (x *Explainer) Why(
	ctx context.Context, row db.QueueJob, request berth.Request,
) (w placement.JobExplanation, ok bool, err error) {
	asked := time.Now()
	err = x.take(ctx, func(ctx context.Context) error {
		if !convert.Waits(row) { // its workflow has not taken it up
			if err := x.read(ctx, asked, db.Hinted{}); err != nil {
				return err
			}
			j := convert.Job(row)
			if err := x.expect(ctx, &j, row.Work()); err != nil {
				return err
			}
			w, ok = x.whyNew(j, request), true
			return nil
		}
		if !x.knows(row) {
			x.beganAt = time.Time{}
		}
		if err := x.read(ctx, asked, db.Hinted{Jobs: []berth.JobID{row.ID}}); err != nil {
			return err
		}
		w, ok = x.plan.Why(row.ID)
		x.own(w.Blockers, row.Tenant)
		return nil
	})
	return w, ok, err
}

// WhyNew predicts what would happen to a new job of that name.
func (x *Explainer) WhyNew(
	ctx context.Context, j placement.Job, name string, request berth.Request,
) (answer placement.JobExplanation, err error) {
	asked := time.Now()
	err = x.take(ctx, func(ctx context.Context) error {
		if err := x.read(ctx, asked, db.Hinted{}); err != nil {
			return err
		}
		j.SubmittedAt, j.EligibleAt = x.now, x.now
		if t, ok := x.tenants[j.Tenant]; ok {
			if j.Stalled = t.Stalled; t.StalledSince != nil {
				j.Stalled += max(0, x.now.Sub(*t.StalledSince))
			}
		}
		q := question{j.Tenant, j.Class, j.Priority, j.Preemptible, j.TimeLimit, "", fmt.Sprint(j.Data)}
		if x.runs != nil && j.TimeLimit == 0 {
			q.name = name
		}
		if w, ok := x.asked[q]; ok {
			answer = w
			return nil
		}
		if err := x.expect(ctx, &j, db.Work{Tenant: j.Tenant, Name: name}); err != nil {
			return err
		}
		answer = x.whyNew(j, request)
		x.asked[q] = answer
		return nil
	})
	return answer, err
}

// expect fills in how long a job that is in no snapshot is expected to run.
func (x *Explainer) expect(ctx context.Context, j *placement.Job, w db.Work) (err error) {
	if j.TimeLimit == 0 {
		j.Expected, j.ExpectedBy, err = x.runs.Ask(ctx, w)
	}
	return err
}

func (x *Explainer) whyNew(j placement.Job, request berth.Request) placement.JobExplanation {
	now := x.now
	if j.SubmittedAt.After(now) {
		now = j.SubmittedAt // it came after the reading
	}
	w := x.planner.WhyNew(x.snapshot, j, request, now)
	x.own(w.Blockers, j.Tenant)
	return w
}

// own leaves of the jobs that blockers name those of the tenant: of others it is
// told how many they are.
func (x *Explainer) own(blockers []placement.Blocker, tenant berth.TenantID) {
	for i := range blockers {
		blockers[i].Jobs = slices.DeleteFunc(blockers[i].Jobs, func(id berth.JobID) bool {
			r, runs := x.snapshot.Running(id)
			j, waits := x.snapshot.Job(id)
			return !(runs && r.Tenant == tenant || waits && j.Tenant == tenant)
		})
	}
}

// Forget makes the next answer rest on a new reading: something was changed
// here.
func (x *Explainer) Forget() { x.stale.Store(true) }

// take runs f alone. What f reads serves those after it as well, so it is read
// to its end although the caller may have gone.
func (x *Explainer) take(ctx context.Context, f func(context.Context) error) error {
	defer x.asking.Add(-1)
	x.asking.Add(1)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-x.turn:
	}
	defer func() { x.turn <- struct{}{} }()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readLimit)
	defer cancel()
	return f(ctx)
}

// knows reports whether the row is as it was read, or older.
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

// read brings in what has changed and plans, unless what there is was read since
// the question was asked, or may be used again.
func (x *Explainer) read(ctx context.Context, asked time.Time, hinted db.Hinted) error {
	stale := x.stale.Swap(false)
	if !stale && x.fresh(asked) {
		return nil
	}
	began := time.Now()
	x.beganAt = time.Time{}
	if err := x.block(ctx); err != nil {
		return err
	}
	if err := x.readQueue(ctx, hinted); err != nil {
		return err
	}
	list, err := x.db.TenantRows(ctx)
	if err != nil {
		return err
	}
	x.tenants = convert.Tenants(x.snapshot, list, x.tenants)
	x.plan, x.asked = x.planner.Outlook(x.snapshot, x.now), map[question]placement.JobExplanation{}
	x.beganAt = began
	return nil
}

// rest is for how long a reading is used again. It depends on what there is and
// not on what it took, so that a slow moment makes no answer older.
func (x *Explainer) rest() time.Duration {
	beyond := x.snapshot.Jobs() + x.snapshot.Machines() - freshTo
	return min(longestRest, time.Duration(max(0, beyond))*restEach)
}

// fresh reports whether the reading may answer a question of that time.
func (x *Explainer) fresh(asked time.Time) bool {
	if x.beganAt.IsZero() {
		return false
	}
	rest := x.rest()
	if x.asking.Load() > 1 {
		rest = max(rest, crowdedRest)
	}
	return asked.Before(x.beganAt.Add(rest))
}

// readQueue reads what has changed, or everything. The feed ends before the
// oldest transaction under way; where there is little to read, that is no reason
// to tell what is past.
func (x *Explainer) readQueue(ctx context.Context, hinted db.Hinted) error {
	if x.snapshot == nil || time.Since(x.loadedAt) > reloadEvery {
		return x.load(ctx)
	}
	c, err := x.db.Feed(ctx, x.cursor, hinted)
	if err != nil {
		return err
	}
	if c.Next < c.End && x.rest() == 0 {
		return x.load(ctx)
	}
	return x.apply(ctx, x.snapshot, x.runs, c)
}

// load reads everything.
func (x *Explainer) load(ctx context.Context) error {
	c, err := x.db.LoadQueue(ctx)
	if err != nil {
		return err
	}
	fresh, book, loaded := placement.NewSnapshot(), x.runs.Fresh(), time.Now()
	if err := x.apply(ctx, fresh, book, c); err != nil {
		return err
	}
	if x.snapshot != nil {
		fresh.UseMix(x.snapshot.Mix()) // it has seen more than what waits now
	}
	x.snapshot, x.runs, x.tenants, x.loadedAt = fresh, book, nil, loaded
	return nil
}

func (x *Explainer) apply(ctx context.Context, s *placement.Snapshot, book *runtimes.Book, c db.Changes) error {
	if missing := convert.Missing(s, c.Jobs); len(missing) > 0 {
		requests, err := x.db.Requests(ctx, missing)
		if err != nil {
			return err
		}
		for class, r := range requests {
			s.DefineClass(class, r)
		}
	}
	expected, err := book.Read(ctx, c.Jobs)
	if err != nil {
		return err
	}
	convert.Apply(s, c, func(id berth.MachineID) string { return x.blocked[id] }, func(berth.JobID) bool { return false })
	book.Tell(s, expected)
	x.cursor, x.now = c.Next, c.Now
	return nil
}

// block reads which machines get no work, as the leader does.
func (x *Explainer) block(ctx context.Context) error {
	if time.Since(x.blockedAt) < blockEvery {
		return nil
	}
	disobedient, err := x.db.Disobedient(ctx, db.DisobeyedAfter)
	if err != nil {
		return err
	}
	miscounts, err := x.db.Miscounts(ctx)
	if err != nil {
		return err
	}
	was := x.blocked
	x.blocked, x.blockedAt = convert.Blocked(disobedient, miscounts), time.Now()
	if x.snapshot == nil {
		return nil
	}
	for _, list := range []map[berth.MachineID]string{was, x.blocked} {
		for id := range list {
			if m, ok := x.snapshot.Machine(id); ok && m.Blocked != x.blocked[id] {
				m.Blocked = x.blocked[id]
				x.snapshot.UpsertMachine(m)
			}
		}
	}
	return nil
}
