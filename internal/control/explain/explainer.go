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

	// The run times of ended jobs are used again for learnEach for each of them, and for learnTimes the time of
	// the read, but not shorter than learnLeast and not longer than learnMost. So the first jobs of a new
	// cluster count as soon as they have ended.
	learnEach  = 15 * time.Millisecond
	learnTimes = 20
	learnLeast = time.Second
	learnMost  = time.Minute
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
	loadedAt, blockedAt time.Time     // our clock; zero: never
	learnedAt           time.Time     // our clock when ended jobs were read; zero: never
	learnRest           time.Duration // for which these jobs are used again
}

// reading is the contents of the rows and the plan derived from the rows.
type reading struct {
	snapshot *placement.Snapshot // nil: nothing was read
	tenants  map[berth.TenantID]db.TenantRow
	shown    map[berth.MachineID]string            // source.blocked then
	drained  map[berth.MachineID]bool              // machines whose state is drained
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

	Best placement.Machine // the best machine with room now; without an id: none has

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
			p.Best = m
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
