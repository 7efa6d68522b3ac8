package explain

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"berth"
	"berth/db"
	"berth/internal/control/convert"
	"berth/internal/control/runtimes"
	"berth/internal/lib/background"
	"berth/placement"
	"berth/spec"
	"berth/wire"
)

// Timing of readings.
const (
	// A reading is used again for restEach for each job and machine beyond
	// freshTo, but not longer than longestRest.
	freshTo     = 1000
	restEach    = 50 * time.Microsecond
	longestRest = 2 * time.Second

	// A question that others wait behind takes a reading of this age, so that a
	// queue of them costs little more than one.
	crowdedRest = time.Second

	// A question about a new job accepts a reading of up to planRest, for any size
	// of the queue. From planRenew on, such a question starts the next reading and
	// does not wait for it.
	planRest  = 2 * time.Second
	planRenew = 500 * time.Millisecond

	readLimit   = time.Minute      // on one reading
	blockEvery  = 10 * time.Second // which machines get no work for reasons in no row of theirs
	reloadEvery = 5 * time.Minute  // reread everything, to drop entries without questions
	learnEvery  = time.Minute      // read the run times of ended jobs
)

// Explainer answers questions about the queue. It reads nothing before the first.
// It may be used concurrently.
//
// One question at a time reads, while others are answered from the reading before:
//
//	turn    guards                               is held for
//	reads   source                               queries
//	turn    reading, and the engine's snapshot   computing, never for a query
//
// Who wants both takes reads first.
type Explainer struct {
	db        *db.DB
	planner   placement.Planner
	asking    atomic.Int64 // questions under way
	changes   atomic.Int64 // calls of Forget
	renews    atomic.Bool  // a reading that no question waits for is under way
	owner     *background.Group
	boards    boards
	*promises // guarded by turn

	history *runtimes.Book // of no snapshot: it answers questions about single jobs

	reads chan struct{}
	source
	turn chan struct{}
	reading
}

// source is how far the rows were read.
type source struct {
	runs                *runtimes.Book
	cursor              db.Cursor
	blocked             map[berth.MachineID]string
	loadedAt, blockedAt time.Time // our clock; zero: never
	learnedAt           time.Time // our clock when ended jobs were read; zero: never
}

// reading is the contents of the rows and the plan derived from the rows.
type reading struct {
	snapshot *placement.Snapshot // nil: nothing was read
	tenants  map[berth.TenantID]db.TenantRow
	shown    map[berth.MachineID]string            // source.blocked then
	now      time.Time                             // the database's clock then
	plan     *placement.Forecast                   // nil: no question has needed it
	asked    map[question]placement.JobExplanation // of new jobs

	costs     map[string]float64 // of an hour of a machine, by pool
	admission wire.Admission

	beganAt time.Time // our clock
	changed int64     // Explainer.changes then
}

// Prospect is the explanation of a new job.
type Prospect struct {
	placement.JobExplanation

	// CostPerHour is the price of an hour of all members, 0 where nothing is charged
	// or no machine has room.
	CostPerHour float64

	Admission wire.Admission // whether new work may start
}

// question identifies a new job: equal questions have equal answers.
type question struct {
	tenant      berth.TenantID
	class       string
	priority    int
	preemptible bool
	limit       time.Duration
	expected    time.Duration
	by          string // source of expected
	data        string // keys
	name        string
}

// New returns an Explainer that uses the leader's policy. It registers the metric of its estimates
// with r, unless r is nil.
func New(d *db.DB, policy placement.Policy, r prometheus.Registerer) *Explainer {
	x := &Explainer{
		promises: newPromises(r),
		db:       d, planner: placement.Planner{Pack: placement.LeastFragmentation, Policy: policy},
		reads: make(chan struct{}, 1), turn: make(chan struct{}, 1), owner: background.New(),
	}
	x.history = runtimes.New(d, policy, 0)
	x.runs = x.history.Fresh()
	return x
}

// Close ends the readings under way and waits for a reading that no question waits for.
// Later questions may fail.
func (x *Explainer) Close() { x.owner.Close() }

// Why explains a waiting job from its present row; ok is false if the job no longer waits.
// request is the request of the job's class.
func (x *Explainer) Why(
	ctx context.Context, row db.QueueJob, request spec.Request,
) (w placement.JobExplanation, ok bool, err error) {
	defer x.asking.Add(-1)
	x.asking.Add(1)
	asked := time.Now()
	if !convert.Waits(row) { // its workflow has not taken it up
		j := convert.Job(row)
		if err := x.expect(ctx, &j, row.Work()); err != nil {
			return w, false, err
		}
		enough := func() bool { return x.fresh(asked) }
		err := x.answer(ctx, enough, db.Hinted{}, func() { w, ok = x.whyNew(j, request), true })
		return w, ok, err
	}
	enough := func() bool { return x.fresh(asked) && x.knows(row) }
	err = x.answer(ctx, enough, db.Hinted{Jobs: []berth.JobID{row.ID}}, func() {
		if w, ok = x.forecast().Why(row.ID); ok && holdsNoRoom(w) {
			w.Holders = x.snapshot.Holders(row.Class)
		}
		x.own(w.Blockers, row.Tenant)
	})
	return w, ok, err
}

// forecast makes the plan of the present reading, once. The caller has the turn.
func (x *Explainer) forecast() *placement.Forecast {
	if x.plan == nil {
		x.plan = x.planner.Forecast(x.snapshot, x.now)
		x.note(x.plan.Estimates(), x.now)
	}
	return x.plan
}

// holdsNoRoom reports whether running jobs keep a job from starting.
func holdsNoRoom(w placement.JobExplanation) bool {
	return !w.Fit.Shut && slices.ContainsFunc(w.Blockers, func(b placement.Blocker) bool { return b.Code == "no_room" })
}

// WhyNew predicts the wait of a new job of that name, from a reading at most planRest old:
// rows written since may be missing.
func (x *Explainer) WhyNew(
	ctx context.Context, j placement.Job, name string, request spec.Request,
) (p Prospect, err error) {
	defer x.asking.Add(-1)
	x.asking.Add(1)
	if err := x.expect(ctx, &j, db.Work{Tenant: j.Tenant, Name: name}); err != nil {
		return p, err
	}
	convert.Likeness(&j, name, "")
	asked := time.Now()
	renew, enough := false, func() bool { return x.within(asked, planRest) }
	err = x.answer(ctx, enough, db.Hinted{}, func() {
		renew = asked.Sub(x.beganAt) > planRenew
		j.SubmittedAt, j.EligibleAt = x.now, x.now
		if t, ok := x.tenants[j.Tenant]; ok {
			if j.Stalled = t.Stalled; t.StalledSince != nil {
				j.Stalled += max(0, x.now.Sub(*t.StalledSince))
			}
		}
		p.JobExplanation, p.Admission = x.whyAsked(j, request), x.admission
		if list := p.Fit.Candidates; len(list) > 0 {
			m, _ := x.snapshot.Machine(list[0])
			p.CostPerHour = x.costs[m.Pool] * float64(request.Members)
		}
	})
	if err == nil && renew {
		x.renew(ctx)
	}
	return p, err
}

// whyAsked is whyNew, once for equal questions.
func (x *Explainer) whyAsked(j placement.Job, request spec.Request) placement.JobExplanation {
	q := question{
		j.Tenant, j.Class, j.Priority, j.Preemptible, j.TimeLimit, j.Expected, j.ExpectedBy, fmt.Sprint(j.Data),
		j.LikeName,
	}
	w, ok := x.asked[q]
	if !ok {
		w = x.whyNew(j, request)
		x.asked[q] = w
	}
	return w
}

// renew starts a reading, unless one is under way.
func (x *Explainer) renew(ctx context.Context) {
	if !x.renews.CompareAndSwap(false, true) {
		return
	}
	asked := time.Now()
	if !x.owner.Go(func(context.Context) { // ends after readLimit, or with the owner's context: see read
		defer x.renews.Store(false)
		defer func() {
			if p := recover(); p != nil { // in a handler it would be that call's alone
				slog.Warn("queue forecast panicked", "panic", p, "stack", string(debug.Stack()))
			}
		}()
		// An error is that of the next question that has to wait for a reading.
		_ = x.read(context.WithoutCancel(ctx), func() bool { return x.within(asked, 0) }, db.Hinted{})
	}) {
		x.renews.Store(false)
	}
}

// expect fills in how long a job that is in no snapshot is expected to run.
func (x *Explainer) expect(ctx context.Context, j *placement.Job, w db.Work) (err error) {
	if j.TimeLimit == 0 {
		j.Expected, j.ExpectedBy, err = x.history.Ask(ctx, w)
	}
	return err
}

func (x *Explainer) whyNew(j placement.Job, request spec.Request) placement.JobExplanation {
	now := x.now
	if j.SubmittedAt.After(now) {
		now = j.SubmittedAt // it came after the reading
	}
	w := x.planner.WhyNew(x.snapshot, j, request, now)
	x.own(w.Blockers, j.Tenant)
	return w
}

// own removes other tenants' jobs from blockers, and leaves their number.
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
func (x *Explainer) Forget() { x.changes.Add(1) }

// answer runs f alone, on the present reading if enough reports true, else on the next one.
func (x *Explainer) answer(ctx context.Context, enough func() bool, hinted db.Hinted, f func()) error {
	done := false
	unless := func() error {
		if done = x.snapshot != nil && enough(); done {
			f()
		}
		return nil
	}
	if err := hold(ctx, x.turn, unless); err != nil || done {
		return err
	}
	if err := x.read(ctx, enough, hinted); err != nil {
		return err
	}
	return hold(ctx, x.turn, func() error {
		f() // the row may be in no reading: its job has ended
		return nil
	})
}

// hold runs f with the turn, which only one caller has at a time.
func hold(ctx context.Context, turn chan struct{}, f func() error) error {
	select {
	case turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-turn }()
	return f()
}

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
	if n.costs, err = x.db.Queue.PoolCosts(ctx); err != nil {
		return err
	}
	if n.admission, err = x.db.Cluster.Admission(ctx); err != nil {
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
// a time limit are predicted. The read is bounded, and serves all questions of a minute.
func (x *Explainer) readPast(ctx context.Context, n *news) error {
	if time.Since(x.learnedAt) < learnEvery {
		return nil
	}
	list, err := x.db.Attempts.Latest(ctx)
	if err != nil {
		return err
	}
	n.past, x.learnedAt = convert.RunTimes(list), time.Now()
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
	x.keep(s, n.rows.Now)
	x.runs, x.cursor = n.book, n.rows.Next
	x.reading = reading{
		snapshot: s, tenants: convert.Tenants(s, n.tenants, before), shown: x.blocked,
		costs: n.costs, admission: n.admission,
		now: n.rows.Now, asked: map[question]placement.JobExplanation{}, beganAt: n.began, changed: n.changed,
	}
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
