package outlook

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"berth"
	"berth/db"
	"berth/internal/rows"
	"berth/internal/runs"
	"berth/placement"
)

// Timing of what is read.
const (
	// A reading is used again for restEach for each job and machine beyond
	// freshTo, but not longer than longestRest.
	freshTo     = 1000
	restEach    = 50 * time.Microsecond
	longestRest = 2 * time.Second

	readLimit   = time.Minute      // on one reading
	blockEvery  = 10 * time.Second // which machines get no work for reasons in no row of theirs
	reloadEvery = 5 * time.Minute  // everything, to forget what nobody asks for any more
)

// Outlook answers questions about the queue. It reads nothing before the first.
// It may be used concurrently.
type Outlook struct {
	db      *db.DB
	planner placement.Planner
	stale   atomic.Bool   // the reading is
	turn    chan struct{} // of who may touch what follows
	reading
}

// reading is what the rows said and what was made of it.
type reading struct {
	snapshot *placement.Snapshot // nil: nothing was read
	runs     *runs.Book
	cursor   db.Cursor
	tenants  map[berth.TenantID]db.TenantRow
	blocked  map[berth.MachineID]string
	now      time.Time // the database's clock then
	plan     *placement.Outlook
	asked    map[question]placement.JobExplanation // of new jobs, since

	beganAt             time.Time // our clock; zero: it was not completed
	loadedAt, blockedAt time.Time // our clock
}

// question is what tells new jobs apart.
type question struct {
	tenant      berth.TenantID
	class       string
	priority    int
	preemptible bool
	limit       time.Duration
	name        string // "": its history does not matter
	data        string // keys
}

// New returns an Outlook by the policy that the leader goes by.
func New(d *db.DB, policy placement.Policy) *Outlook {
	o := &Outlook{db: d, planner: placement.Planner{Pack: placement.Worth, Policy: policy}, turn: make(chan struct{}, 1)}
	o.runs = runs.New(d, policy, 0)
	o.turn <- struct{}{}
	return o
}

// Why tells about a job that waits, as its row was just read; ok is false if it
// does not wait any more. request is that of its class.
func (o *Outlook) Why(ctx context.Context, row db.QueueJob, request berth.Request) (w placement.JobExplanation, ok bool, err error) {
	asked := time.Now()
	err = o.take(ctx, func(ctx context.Context) error {
		if !rows.Waits(row) { // its workflow has not taken it up
			if err := o.read(ctx, asked, db.Hinted{}); err != nil {
				return err
			}
			j := rows.Job(row)
			if err := o.expect(ctx, &j, row.Work()); err != nil {
				return err
			}
			w, ok = o.whyNew(j, request), true
			return nil
		}
		if !o.knows(row) {
			o.beganAt = time.Time{}
		}
		if err := o.read(ctx, asked, db.Hinted{Jobs: []berth.JobID{row.ID}}); err != nil {
			return err
		}
		w, ok = o.plan.Why(row.ID)
		o.own(w.Blockers, row.Tenant)
		return nil
	})
	return w, ok, err
}

// WhyNew tells what would become of a job of that name that came now.
func (o *Outlook) WhyNew(ctx context.Context, j placement.Job, name string, request berth.Request) (answer placement.JobExplanation, err error) {
	asked := time.Now()
	err = o.take(ctx, func(ctx context.Context) error {
		if err := o.read(ctx, asked, db.Hinted{}); err != nil {
			return err
		}
		j.SubmittedAt, j.EligibleAt = o.now, o.now
		if t, ok := o.tenants[j.Tenant]; ok {
			if j.Stalled = t.Stalled; t.StalledSince != nil {
				j.Stalled += max(0, o.now.Sub(*t.StalledSince))
			}
		}
		q := question{j.Tenant, j.Class, j.Priority, j.Preemptible, j.TimeLimit, "", fmt.Sprint(j.Data)}
		if o.runs != nil && j.TimeLimit == 0 {
			q.name = name
		}
		if w, ok := o.asked[q]; ok {
			answer = w
			return nil
		}
		if err := o.expect(ctx, &j, db.Work{Tenant: j.Tenant, Name: name}); err != nil {
			return err
		}
		answer = o.whyNew(j, request)
		o.asked[q] = answer
		return nil
	})
	return answer, err
}

// expect fills in how long a job that is in no snapshot is expected to run.
func (o *Outlook) expect(ctx context.Context, j *placement.Job, w db.Work) (err error) {
	if j.TimeLimit == 0 {
		j.Expected, j.ExpectedBy, err = o.runs.Ask(ctx, w)
	}
	return err
}

func (o *Outlook) whyNew(j placement.Job, request berth.Request) placement.JobExplanation {
	now := o.now
	if j.SubmittedAt.After(now) {
		now = j.SubmittedAt // it came after the reading
	}
	w := o.planner.WhyNew(o.snapshot, j, request, now)
	o.own(w.Blockers, j.Tenant)
	return w
}

// own leaves of the jobs that blockers name those of the tenant: of others it is
// told how many they are.
func (o *Outlook) own(blockers []placement.Blocker, tenant berth.TenantID) {
	for i := range blockers {
		blockers[i].Jobs = slices.DeleteFunc(blockers[i].Jobs, func(id berth.JobID) bool {
			r, runs := o.snapshot.Running(id)
			j, waits := o.snapshot.Job(id)
			return !(runs && r.Tenant == tenant || waits && j.Tenant == tenant)
		})
	}
}

// Forget makes the next answer rest on a new reading: something was changed
// here.
func (o *Outlook) Forget() { o.stale.Store(true) }

// take runs f alone. What f reads serves those after it as well, so it is read
// to its end although the caller may have gone.
func (o *Outlook) take(ctx context.Context, f func(context.Context) error) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-o.turn:
	}
	defer func() { o.turn <- struct{}{} }()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readLimit)
	defer cancel()
	return f(ctx)
}

// knows reports whether the row is as it was read, or older.
func (o *Outlook) knows(row db.QueueJob) bool {
	if o.snapshot == nil {
		return false
	}
	if j, ok := o.snapshot.Job(row.ID); ok {
		return j.Version >= row.Version
	}
	r, ok := o.snapshot.Running(row.ID)
	return ok && r.Version >= row.Version
}

// read brings in what has changed and plans, unless what there is was read since
// the question was asked, or may be used again.
func (o *Outlook) read(ctx context.Context, asked time.Time, hinted db.Hinted) error {
	stale := o.stale.Swap(false)
	if !o.beganAt.IsZero() && !stale && asked.Before(o.beganAt.Add(o.rest())) {
		return nil
	}
	began := time.Now()
	o.beganAt = time.Time{}
	if err := o.block(ctx); err != nil {
		return err
	}
	if err := o.readQueue(ctx, hinted); err != nil {
		return err
	}
	list, err := o.db.TenantRows(ctx)
	if err != nil {
		return err
	}
	o.tenants = rows.Tenants(o.snapshot, list, o.tenants)
	o.plan, o.asked = o.planner.Outlook(o.snapshot, o.now), map[question]placement.JobExplanation{}
	o.beganAt = began
	return nil
}

// rest is for how long a reading is used again. It depends on what there is and
// not on what it took, so that a slow moment makes no answer older.
func (o *Outlook) rest() time.Duration {
	beyond := o.snapshot.Jobs() + o.snapshot.Machines() - freshTo
	return min(longestRest, time.Duration(max(0, beyond))*restEach)
}

// readQueue reads what has changed, or everything. The feed ends before the
// oldest transaction under way; where there is little to read, that is no reason
// to tell what is past.
func (o *Outlook) readQueue(ctx context.Context, hinted db.Hinted) error {
	if o.snapshot == nil || time.Since(o.loadedAt) > reloadEvery {
		return o.load(ctx)
	}
	c, err := o.db.Feed(ctx, o.cursor, hinted)
	if err != nil {
		return err
	}
	if c.Next < c.End && o.rest() == 0 {
		return o.load(ctx)
	}
	return o.apply(ctx, o.snapshot, o.runs, c)
}

// load reads everything.
func (o *Outlook) load(ctx context.Context) error {
	c, err := o.db.LoadQueue(ctx)
	if err != nil {
		return err
	}
	fresh, book, loaded := placement.NewSnapshot(), o.runs.Fresh(), time.Now()
	if err := o.apply(ctx, fresh, book, c); err != nil {
		return err
	}
	if o.snapshot != nil {
		fresh.UseMix(o.snapshot.Mix()) // it has seen more than what waits now
	}
	o.snapshot, o.runs, o.tenants, o.loadedAt = fresh, book, nil, loaded
	return nil
}

func (o *Outlook) apply(ctx context.Context, s *placement.Snapshot, book *runs.Book, c db.Changes) error {
	if missing := rows.Missing(s, c.Jobs); len(missing) > 0 {
		requests, err := o.db.Requests(ctx, missing)
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
	rows.Apply(s, c, func(id berth.MachineID) string { return o.blocked[id] }, func(berth.JobID) bool { return false })
	book.Tell(s, expected)
	o.cursor, o.now = c.Next, c.Now
	return nil
}

// block reads which machines get no work, as the leader does.
func (o *Outlook) block(ctx context.Context) error {
	if time.Since(o.blockedAt) < blockEvery {
		return nil
	}
	disobedient, err := o.db.Disobedient(ctx, db.DisobeyedAfter)
	if err != nil {
		return err
	}
	miscounts, err := o.db.Miscounts(ctx)
	if err != nil {
		return err
	}
	was := o.blocked
	o.blocked, o.blockedAt = rows.Blocked(disobedient, miscounts), time.Now()
	if o.snapshot == nil {
		return nil
	}
	for _, list := range []map[berth.MachineID]string{was, o.blocked} {
		for id := range list {
			if m, ok := o.snapshot.Machine(id); ok && m.Blocked != o.blocked[id] {
				m.Blocked = o.blocked[id]
				o.snapshot.UpsertMachine(m)
			}
		}
	}
	return nil
}
