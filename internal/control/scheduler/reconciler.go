package scheduler

import (
	"context"
	"math"
	"slices"
	"time"

	"berth"
	"berth/db"
	"berth/internal/control/convert"
	"berth/lifecycle"
)

// Ages are the times for which a divergence may last before its repair. Tests use short ones.
type Ages struct {
	Submitted  time.Duration // no workflow yet: start it; 10 s
	NoWorkflow time.Duration // a live row without one: start it; 30 s
	Deaf       time.Duration // submitted, with a workflow whose task no worker carries out: replace it; 5 min
	Closing    time.Duration // an ended row with an open one: poke it; 30 s
	Terminate  time.Duration // and then end it; 10 min
	Unclaimed  time.Duration // poke; 15 s
	Lost       time.Duration // unclaimed: settle; a little over 2 min
	Unheard    time.Duration // an ended member, ignored by its workflow: settle, and later poke; 2 s
	Unwaited   time.Duration // claimed, and no replica waits for its end: start its waiter again; 25 s
	Unsettled  time.Duration // poke; 1 min
	Settle     time.Duration // settle from the row; 10 min
	Overdue    time.Duration // past stop_by: order the kill; 30 s
	Disobeyed  time.Duration // past stop_by and killed: no work there; 1 min
	Barrier    time.Duration // ready to start before the last member of its gang: order the kill of that one; 15 min
	Prepare    time.Duration // claimed and not prepared: order the kill; 75 min, the agent's own limit is 1 h
	Untended   time.Duration // a parent whose elements have ended, or that is to make more: poke, then do it; 5 s
	Objects    time.Duration // without a row, of an attempt that is over: removed; 24 h
	Uploads    time.Duration // unused for so long: removed; 30 days
	Chunks     time.Duration // that no checkpoint names: removed; 1 h, in which a member may register them
	Looked     time.Duration // since the last look at a chunk in the object store: look again; 24 h
	Seal       time.Duration // ended and not sealed: give the uploads up; 20 min, the agent's own limit is 10
	Compare    time.Duration // the longest that a pass compares rows with Temporal; 30 s
}

// withDefaults returns the ages with the defaults in place of zero fields.
func (a Ages) withDefaults() Ages {
	for _, x := range []struct {
		age      *time.Duration
		standard time.Duration
	}{
		{&a.Submitted, 10 * time.Second},
		{&a.Uploads, 30 * 24 * time.Hour},
		{&a.NoWorkflow, 30 * time.Second},
		{&a.Deaf, 5 * time.Minute},
		{&a.Closing, 30 * time.Second},
		{&a.Terminate, 10 * time.Minute},
		{&a.Unclaimed, 15 * time.Second},
		{&a.Lost, lifecycle.UnclaimedAfter + time.Second},
		{&a.Unheard, 2 * time.Second},
		{&a.Unwaited, 25 * time.Second},
		{&a.Unsettled, time.Minute},
		{&a.Settle, 10 * time.Minute},
		{&a.Overdue, 30 * time.Second},
		{&a.Disobeyed, db.DisobeyedAfter},
		{&a.Prepare, 75 * time.Minute},
		{&a.Barrier, berth.GangBarrier},
		{&a.Seal, 20 * time.Minute},
		{&a.Objects, 24 * time.Hour},
		{&a.Chunks, time.Hour},
		{&a.Looked, 24 * time.Hour},
		{&a.Untended, 5 * time.Second},
		{&a.Compare, 30 * time.Second},
	} {
		if *x.age == 0 {
			*x.age = x.standard
		}
	}
	return a
}

// passLimit bounds the repairs of each kind in one pass: after an outage all work is
// late at once.
const passLimit = 500

// compareEvery is the number of passes per comparison of all rows with Temporal's list, which
// reads every open workflow.
const compareEvery = 3

// reconciler finds and repairs inconsistencies: lost pokes, dead workflows, stray
// members, wrong counters. A pass over a sound database writes only the planner's
// statistics.
type reconciler struct {
	*Scheduler
	term   db.Term
	marks  *marks
	since  time.Time // the term's begin, or a little before
	passes int
	told   map[berth.MachineID]string // marks that were logged
	strays int                        // open workflows without a row, at the last comparison
	stops  int                        // most jobs below parents that a pass stops
	parent berth.JobID                // the first that the next pass reconciles; "": the first of all
	asked  berth.JobID                // whose workflow the next comparison asks about first; "": the first of all
	missed berth.JobID                // whose missing workflow the next comparison starts first; "": the first of all
	list   berth.JobID                // the array whose list was read last; "": none
	pace   pace
}

// run makes a pass every ReconcileEvery until the term ends.
func (r *reconciler) run(ctx context.Context) error {
	// The pokes of a dead leader's last writes are lost, so the new leader sends them first.
	r.takeOver(ctx)
	for sleep(ctx, r.ReconcileEvery) {
		r.pass(ctx)
		r.passes++
		r.Logger.Debug("reconciler passed", "passes", r.passes)
	}
	return ctx.Err()
}

// takeOver pokes the jobs that the last leader may have written without a poke, from
// before this term. Otherwise they would wait for the reconciler's patience.
func (r *reconciler) takeOver(ctx context.Context) {
	for kind, read := range map[string]func(context.Context, time.Duration, int) ([]db.Aged, error){
		"unclaimed": r.DB.Attempts.Unclaimed, "unsettled": r.DB.Attempts.Unsettled,
	} {
		jobs, err := read(ctx, time.Since(r.since), passLimit)
		if err != nil {
			if ctx.Err() == nil {
				r.Logger.Warn("cannot read the previous leader's leftovers", "kind", kind, "err", err)
			}
			continue
		}
		for _, j := range jobs {
			r.Poker.Poke(j.ID)
		}
	}
}

// pass repairs every divergence of the design's table that is the leader's to repair; the
// agent's sync and registration repair divergences of containers and allocations. A failed
// step does not stop the other steps.
func (r *reconciler) pass(ctx context.Context) {
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"statistics", r.refresh},
		{"counters", r.mark},    // rows 5, 8
		{"kills", r.kill},       // 5, 9
		{"deadlines", r.expire}, // 15
		{"holds", r.holds},
		{"unclaimed", r.unclaimed}, // 4
		{"stuck", r.stuck},         // 4, 11: on machines that are heard
		{"unsettled", r.unsettled}, // 11
		{"lists", r.lists},         // 12
		{"parents", r.parents},     // 12
		{"workflows", r.workflows}, // 1, 2, 3
	} {
		if err := step.do(ctx); err != nil && ctx.Err() == nil {
			r.Logger.Error("reconciler step failed", "step", step.name, "err", err)
		}
	}
}

// refresh updates the planner's statistics, without which plans get more expensive as tables
// grow.
func (r *reconciler) refresh(ctx context.Context) error {
	tables, err := r.DB.Cluster.RefreshStatistics(ctx)
	if len(tables) > 0 {
		r.Logger.Debug("planner statistics refreshed", "tables", tables)
	}
	return err
}

// did counts and logs repairs.
func (s *Scheduler) did(kind string, n int) {
	if n > 0 {
		s.Metrics.repairs.WithLabelValues(kind).Add(float64(n))
		s.Logger.Info("rows repaired", "kind", kind, "count", n)
	}
}

// mark keeps new work off machines with wrong counters, which only an operator may
// correct, and off machines that do not carry out orders to kill.
func (r *reconciler) mark(ctx context.Context) error {
	disobedient, err := r.DB.Machines.Disobedient(ctx, r.Ages.Disobeyed)
	if err != nil {
		return err
	}
	miscounts, err := r.DB.Cluster.Miscounts(ctx)
	if err != nil {
		return err
	}
	why := convert.Blocked(disobedient, miscounts)
	for id, reason := range why {
		if r.told[id] != reason {
			r.Logger.Error("machine excluded from placement", "machine_id", id, "reason", reason)
		}
	}
	r.told = why
	r.marks.set(why)
	r.Metrics.marked.Set(float64(len(why)))
	return nil
}

// kill orders the kill of members that should have stopped by now, and of stray members.
func (r *reconciler) kill(ctx context.Context) error {
	n, err := r.DB.Attempts.KillOverdue(ctx, r.term, r.Ages.Overdue, passLimit)
	r.did("kill_overdue", n)
	if err != nil {
		return err
	}
	n, err = r.DB.Attempts.KillStray(ctx, r.term, passLimit)
	r.did("kill_stray", n)
	return err
}

// expire fails jobs past their queue deadline, which the placer may have missed, clears expired
// nominations, and ends expired sessions of users.
func (r *reconciler) expire(ctx context.Context) error {
	failed, err := r.DB.Jobs.FailExpired(ctx, r.term, nil, passLimit)
	if err != nil {
		return err
	}
	r.did("queue_timeout", len(failed))
	r.Poker.Poke(failed...)
	n, err := r.DB.Queue.ClearNominations(ctx, r.term)
	r.did("earmark", n)
	if err != nil {
		return err
	}
	n, err = r.DB.JobSessions.EndExpired(ctx, passLimit)
	r.did("session_expired", n)
	return err
}

// unclaimed pokes jobs with an allocation that its machine has not claimed. After Ages.Lost
// the attempt is settled, unless the machine may have been unable to claim.
func (r *reconciler) unclaimed(ctx context.Context) error {
	jobs, err := r.DB.Attempts.Unclaimed(ctx, r.Ages.Unclaimed, passLimit)
	if err != nil {
		return err
	}
	if len(jobs) == 0 {
		r.pace.forget("unclaimed", nil)
		return nil
	}
	proves, err := r.DB.Machines.SilenceProves(ctx)
	if err != nil {
		return err
	}
	limit := r.Ages.Lost
	if !proves {
		limit = math.MaxInt64
	}
	return r.nudge(ctx, "unclaimed", jobs, limit)
}

// unsettled pokes jobs with an unsettled attempt although all members have ended. After
// Ages.Settle it settles the attempt from the row, since the job then seems to have no
// workflow.
func (r *reconciler) unsettled(ctx context.Context) error {
	jobs, err := r.DB.Attempts.Unsettled(ctx, r.Ages.Unsettled, passLimit)
	if err != nil {
		return err
	}
	return r.nudge(ctx, "unsettled", jobs, r.Ages.Settle)
}

// stuck ends work that a responding machine does not prepare, and waits for uploads
// that do not end, unless the machine may have been unable to report or to upload.
func (r *reconciler) stuck(ctx context.Context) error {
	proves, err := r.DB.Machines.SilenceProves(ctx)
	if err != nil || !proves {
		return err
	}
	fleet, err := r.DB.Machines.Fleet(ctx, r.Silence)
	if err != nil {
		return err
	}
	patience := db.Patience{
		Prepare: r.Ages.Prepare, Obey: r.Ages.Disobeyed, Seal: r.Ages.Seal, Barrier: r.Ages.Barrier,
		Suspect: r.Silence.Suspect, Frozen: fleet.Frozen() || fleet.Held,
	}
	n, err := r.DB.Attempts.KillUnprepared(ctx, r.term, patience, passLimit)
	r.did("kill_unprepared", n)
	if err != nil {
		return err
	}
	jobs, err := r.DB.Attempts.GiveUpStuck(ctx, r.term, patience, passLimit)
	r.did("give_up_stuck", len(jobs))
	r.Poker.Poke(jobs...)
	return err
}

// parents pokes coordinators of parents with pending steps, and takes these steps
// itself in the next pass. A pass stops a bounded number of jobs, since the other steps
// wait for it; the next pass begins where the last one ended.
func (r *reconciler) parents(ctx context.Context) error {
	if err := r.judgeDependents(ctx); err != nil {
		return err
	}
	list, err := r.DB.Parents.Untended(ctx, r.Ages.Untended, passLimit)
	if err != nil {
		return err
	}
	var pokes []berth.JobID
	tended, left := 0, r.stops
	from := r.parent
	r.parent = ""
	for _, p := range startingAt(list, from) {
		if r.pace.due("parent", p, time.Now()) {
			pokes = append(pokes, p.ID)
			continue
		}
		if left <= 0 {
			if r.parent == "" {
				r.parent = p.ID
			}
			continue
		}
		_, err := r.DB.Parents.ReconcileThrough(ctx, p.ID, &left)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			r.Logger.Error("parent not reconciled", "job_id", p.ID, "err", err)
			continue
		}
		pokes = append(pokes, p.ID) // it may have ended
		tended++
	}
	r.pace.forget("parent", list)
	r.did("parent_tended", tended)
	r.did("parent_poked", len(pokes))
	r.Poker.Poke(pokes...)
	return nil
}

// judgeLimit bounds the time in which a pass judges jobs that wait for others: the other repairs wait
// for this one.
const judgeLimit = 5 * time.Second

// judgeDependents judges jobs whose needs have ended, and which the end of the need has left: it
// judges a few itself.
func (r *reconciler) judgeDependents(ctx context.Context) error {
	for began := time.Now(); time.Since(began) < judgeLimit; {
		n, err := r.DB.Parents.JudgeDependents(ctx, passLimit)
		r.did("judge_dependents", n)
		if err != nil || n < passLimit {
			return err
		}
	}
	return nil
}

// startingAt rotates a list sorted by id, so that the list begins with the first id at or after
// from.
func startingAt(list []db.Aged, from berth.JobID) []db.Aged {
	i := slices.IndexFunc(list, func(p db.Aged) bool { return p.ID >= from })
	if i < 0 {
		return list
	}
	return slices.Concat(list[i:], list[:i])
}

// nudge pokes the jobs' workflows, each at once and then with growing pauses, and settles the
// jobs older than limit.
func (r *reconciler) nudge(ctx context.Context, kind string, jobs []db.Aged, limit time.Duration) error {
	pokes, settled := make([]berth.JobID, 0, len(jobs)), 0
	for _, j := range jobs {
		if j.Age >= limit {
			result, err := r.Settler.Settle(ctx, j.ID, j.Attempt)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				r.Logger.Error("cannot settle attempt", "job_id", j.ID, "attempt", j.Attempt, "err", err)
			} else if !result.NotReady {
				settled++
			}
		}
		if r.pace.due(kind, j, time.Now()) {
			pokes = append(pokes, j.ID)
		}
	}
	r.pace.forget(kind, jobs)
	r.did(kind+"_settled", settled)
	r.did(kind+"_poked", len(pokes))
	r.Poker.Poke(pokes...)
	return nil
}
