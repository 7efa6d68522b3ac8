package controlplane

import (
	"context"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"berth"
	"berth/db"
	"berth/internal/lib/tracing"
	"berth/wire"
)

// tracedStore is the database of steps and API, which also exports decisions in the rows
// as spans of the jobs' traces: settled attempts and ended jobs. It reads the row
// again for that, later and in the background, so that no caller waits. Without
// traces it is the database alone.
type tracedStore struct {
	db       *db.DB
	traces   *tracing.Tracing
	log      *slog.Logger
	queue    chan verdict
	exported recent
	last     time.Duration // of all that waits when the process ends
}

// verdict is one decision to export: a settled attempt, or the end of a job.
type verdict struct {
	job     berth.JobID
	attempt int // that was settled; 0: the job has ended
}

const (
	verdictsKept = 4096            // that wait for their export; further ones are dropped
	exportLimit  = 5 * time.Second // of reading a row
	exportLast   = 2 * time.Second
)

// newTracedStore returns a store that exports nothing if traces is nil.
func newTracedStore(d *db.DB, traces *tracing.Tracing, log *slog.Logger) *tracedStore {
	t := &tracedStore{db: d, traces: traces, log: log, last: exportLast}
	if traces != nil {
		t.queue = make(chan verdict, verdictsKept)
		t.exported = recent{has: map[verdict]bool{}, list: make([]verdict, verdictsKept)}
	}
	return t
}

// Settle calls db.Attempts.Settle.
func (t *tracedStore) Settle(ctx context.Context, id berth.JobID, attempt int) (wire.SettleResult, error) {
	result, err := t.db.Attempts.Settle(ctx, id, attempt)
	if err == nil && result.Next != "" {
		t.note(verdict{job: id, attempt: attempt})
	}
	return result, t.noteEnd(id, result.Next, err)
}

// Load calls db.Jobs.Load.
func (t *tracedStore) Load(ctx context.Context, id berth.JobID) (wire.JobView, error) {
	view, err := t.db.Jobs.Load(ctx, id)
	return view, t.noteEnd(id, view.State, err)
}

// View calls db.Jobs.View.
func (t *tracedStore) View(ctx context.Context, id berth.JobID) (wire.JobView, error) {
	view, err := t.db.Jobs.View(ctx, id)
	return view, t.noteEnd(id, view.State, err)
}

// RequestCancel calls db.Jobs.RequestCancel. It ends a job that has no workflow yet, so no
// workflow would export that end.
func (t *tracedStore) RequestCancel(
	ctx context.Context, tenant berth.TenantID, id berth.JobID, actor string, reason *berth.Reason,
) (berth.State, error) {
	state, err := t.db.Jobs.RequestCancel(ctx, tenant, id, actor, reason)
	return state, t.noteEnd(id, state, err)
}

// Reconcile calls db.Parents.Reconcile.
func (t *tracedStore) Reconcile(ctx context.Context, id berth.JobID) (wire.ReconcileResult, error) {
	result, err := t.db.Parents.Reconcile(ctx, id)
	return result, t.noteEnd(id, result.State, err)
}

// StopAttempt calls db.Attempts.Stop.
func (t *tracedStore) StopAttempt(ctx context.Context, id berth.JobID, attempt int) (bool, error) {
	return t.db.Attempts.Stop(ctx, id, attempt)
}

// Escalate calls db.Attempts.Escalate.
func (t *tracedStore) Escalate(ctx context.Context, id berth.JobID, attempt int) error {
	return t.db.Attempts.Escalate(ctx, id, attempt)
}

// noteEnd notes a terminal state as the job's end, and returns err. Every call that may
// return an ended job goes through noteEnd, since any of the calls may be the first to see
// the end.
func (t *tracedStore) noteEnd(id berth.JobID, state berth.State, err error) error {
	if err == nil && state.Terminal() {
		t.note(verdict{job: id})
	}
	return err
}

// note queues a decision for export. It never waits: a full queue drops the decision, and with it
// part of a trace.
func (t *tracedStore) note(v verdict) {
	if !t.traces.Tells(v.job) {
		return
	}
	select {
	case t.queue <- v:
	default:
	}
}

// run exports decisions until ctx ends, and then the remaining ones.
func (t *tracedStore) run(ctx context.Context) error {
	for ctx.Err() == nil {
		select {
		case v := <-t.queue:
			t.export(context.WithoutCancel(ctx), v)
		case <-ctx.Done():
		}
	}
	// Decisions of the last moments are exported too, but must not hold up the stop for long.
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.last)
	defer cancel()
	for last.Err() == nil {
		select {
		case v := <-t.queue:
			t.export(last, v)
		default:
			return ctx.Err()
		}
	}
	return ctx.Err()
}

// export reads the row and exports its decision. A repeated step requests the same
// export again; an export by another process has the same span id. After a failed
// read, the next request for the same decision exports it.
func (t *tracedStore) export(ctx context.Context, v verdict) {
	if t.exported.has[v] {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, exportLimit)
	defer cancel()
	job, err := t.db.Jobs.Get(ctx, "", v.job)
	if err != nil {
		t.log.Debug("cannot export the job's trace", "job_id", v.job, "err", err)
		return
	}
	t.exported.add(v)
	for i := range job.Attempts {
		if job.Attempts[i].Number == v.attempt {
			t.exportAttempt(job, i)
		}
	}
	if v.attempt == 0 {
		t.exportEnd(job)
	}
}

// exportAttempt exports an attempt: its waits for the grant and for the start, and
// its end.
func (t *tracedStore) exportAttempt(job wire.Job, i int) {
	a := job.Attempts[i]
	number := attribute.Int("berth.attempt", a.Number)
	about := append(tracing.AboutJob(job), number)
	since := job.SubmittedAt
	if i > 0 && job.Attempts[i-1].EndedAt != nil {
		since = *job.Attempts[i-1].EndedAt
	}
	t.traces.Tell(tracing.Key{Job: job.ID, Attempt: a.Number, Name: "queue"}, tracing.JobKey(job.ID),
		tracing.Past{Start: since, End: a.PlacedAt, About: about})
	attempt := tracing.AttemptKey(job.ID, a.Number)
	if a.StartedAt != nil {
		t.traces.Tell(tracing.Key{Job: job.ID, Attempt: a.Number, Name: "launch"}, attempt,
			tracing.Past{Start: a.PlacedAt, End: *a.StartedAt, About: about})
	}
	machines := make([]string, len(a.Machines))
	for n, m := range a.Machines {
		machines[n] = string(m)
	}
	p := tracing.Past{Start: a.PlacedAt, End: time.Now(), About: append(about,
		attribute.StringSlice("berth.machines", machines), attribute.Int("berth.gpus", len(a.GPUs)),
		attribute.String("berth.next", string(a.Next)))}
	if a.EndedAt != nil {
		p.End = *a.EndedAt
	}
	if a.ResumeFrom != nil {
		p.About = append(p.About, attribute.Int64("berth.resume_from", *a.ResumeFrom))
	}
	if a.ExitCode != nil {
		p.About = append(p.About, attribute.Int("berth.exit_code", *a.ExitCode))
	}
	if a.Outcome != nil {
		p.About = append(p.About, aboutReason(*a.Outcome)...)
		if a.Next != berth.Canceled {
			p.Fault = string(a.Outcome.Code)
		}
	}
	t.traces.Tell(attempt, tracing.JobKey(job.ID), p)
}

// exportEnd exports the span of the whole job, and a last wait without a grant.
func (t *tracedStore) exportEnd(job wire.Job) {
	end := time.Now()
	if job.FinishedAt != nil {
		end = *job.FinishedAt
	}
	fault := ""
	if job.Status == berth.Failed && job.Reason != nil {
		fault = string(job.Reason.Code)
	}
	if since, waited := inQueue(job); waited {
		n := len(job.Attempts) + 1
		about := append(tracing.AboutJob(job), attribute.Int("berth.attempt", n))
		t.traces.Tell(tracing.Key{Job: job.ID, Attempt: n, Name: "queue"}, tracing.JobKey(job.ID),
			tracing.Past{Start: since, End: end, About: about, Fault: fault})
	}
	p := tracing.Past{Start: job.SubmittedAt, End: end, Fault: fault, About: append(tracing.AboutJob(job),
		attribute.String("berth.status", string(job.Status)), attribute.Int("berth.attempts", len(job.Attempts)),
		attribute.Int("berth.failures", job.Failures), attribute.Int("berth.losses", job.Losses),
		attribute.Int("berth.preemptions", job.Preemptions))}
	if job.Reason != nil {
		p.About = append(p.About, aboutReason(*job.Reason)...)
	}
	p.Links = t.links(job)
	t.traces.Tell(tracing.JobKey(job.ID), tracing.Key{}, p)
}

// inQueue reports whether a job ended during a wait for a place, and the start of that wait.
func inQueue(job wire.Job) (since time.Time, waited bool) {
	if job.Kind != "" && job.Kind != berth.KindJob {
		return since, false // arrays and pipelines wait for no place
	}
	if len(job.Attempts) == 0 {
		return job.SubmittedAt, true
	}
	last := job.Attempts[len(job.Attempts)-1]
	if last.Next != berth.Retrying || last.EndedAt == nil {
		return since, false
	}
	return *last.EndedAt, true
}

// links lead to the traces of the jobs that this one came of.
func (t *tracedStore) links(job wire.Job) (links []trace.Link) {
	if job.Parent != nil {
		links = append(links, t.traces.LinkTo(*job.Parent, "parent"))
	}
	if job.RetryOf != nil {
		links = append(links, t.traces.LinkTo(*job.RetryOf, "retry_of"))
	}
	return links
}

// aboutReason returns a reason as attributes, without its message, which may quote the job's
// output.
func aboutReason(r berth.Reason) []attribute.KeyValue {
	return []attribute.KeyValue{
		attribute.String("berth.reason", string(r.Code)), attribute.String("berth.rule", r.Rule),
	}
}

// recent are the latest exported verdicts, as many as may wait.
type recent struct {
	has  map[verdict]bool
	list []verdict
	next int
}

// add adds a verdict that is not among the recent ones, and drops the oldest.
func (r *recent) add(v verdict) {
	delete(r.has, r.list[r.next])
	r.list[r.next], r.has[v] = v, true
	r.next = (r.next + 1) % len(r.list)
}
