package api

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"berth"
	"berth/db"
	"berth/internal/control/admission"
	"berth/internal/control/autoscale"
	"berth/internal/control/convert"
	"berth/internal/control/explain"
	"berth/internal/lib/enginesilence"
	"berth/placement"
	"berth/spec"
	"berth/wire"
)

// planHandlers answer questions about the queue: the plan of a job that is not submitted,
// and the explanation of a submitted job.
type planHandlers struct {
	jobReader
	queue     *db.Queue
	machines  *db.Machines
	admission *admission.Controller
	explainer *explain.Explainer
	control   controlPlane
	scaling   *db.Scaling
	quoter    *autoscale.Quoter
}

func (h *planHandlers) mount(r *router) {
	plan := r.operation("plan-job", http.MethodPost, "/v1/plans", "jobs",
		"Predict the placement and the start of a job; nothing is stored")
	plan.Description = "The answer rests on the queue and the machines as they were at most two seconds before the " +
		"call, " +
		"and after the latest change of a tenant, a quota or the admission that was made through this server."
	registerWithBody[spec.Job](r, plan, h.plan)
	register(r, r.operation("explain-job", http.MethodGet, "/v1/jobs/{id}/explain", "jobs",
		"Explain why a job waits, with every reason"), h.explain)
}

type planOutput struct{ Body wire.Plan }

// plan predicts the placement of a job that is not submitted. The job gets an id and
// joins a copy of the queue in memory; no row is written.
func (h *planHandlers) plan(ctx context.Context, in *Request) (*planOutput, error) {
	jobSpec, err := readSpec(*in)
	if err != nil {
		return nil, err
	}
	if err := h.admission.Allow(ctx, caller(ctx).Tenant, jobSpec); err != nil {
		return nil, err
	}
	request := jobSpec.Request()
	asked := placement.Job{
		ID: berth.NewJobID(time.Now()), Tenant: caller(ctx).Tenant, Class: request.Class(),
		Priority: int(*jobSpec.Priority), Preemptible: *jobSpec.Preemptible, TimeLimit: longest(jobSpec),
		Data: jobSpec.DataKeys(caller(ctx).Tenant),
	}
	convert.Likeness(&asked, jobSpec.Name, "")
	w, err := h.explainer.WhyNew(ctx, asked, jobSpec.Name, request)
	if err != nil {
		return nil, err
	}
	p := wire.Plan{
		Spec: jobSpec, StartsNow: w.StartsNow, Ahead: w.Ahead, Queue: w.Queue, EstimatedStart: known(w.Start),
		Reserved: w.Reserved, EstimatedBy: estimatedBy(w.Start, w.Guess), RunTime: runTime(w.Run),
		Blockers: blockers(w.Blockers), Priority: terms(w.Terms), Fit: fitOf(w.JobExplanation),
	}
	if p.RunsAs, err = h.admission.RunsAs(ctx, asked.Tenant, jobSpec.User); err != nil {
		return nil, err
	}
	if err := h.planAlternatives(ctx, &p, asked); err != nil {
		return nil, err
	}
	// A pause or an overload concerns every start, so it comes before all other blockers.
	if held := h.control.heldBack(w.Admission, berth.Queued); len(held) > 0 {
		p.StartsNow, p.Blockers = false, append(held, p.Blockers...)
	}
	if w.CostPerHour > 0 {
		p.CostPerHour = &w.CostPerHour
	}
	run := jobSpec.TimeLimit.Std()
	if run == 0 && w.Run.Samples > 0 {
		run = w.Run.Quantile(0.5)
	}
	p.Offers, p.OffersNote, err = h.offers(ctx, autoscale.Quoted{Job: asked, Request: request, Run: run,
		Saves: jobSpec.Checkpoint != nil}, existing(w, p, run))
	return &planOutput{p}, err
}

// longest is the longest time for which a started job may hold its capacity: its time
// limit and its stop grace. 0: no limit.
func longest(jobSpec spec.Job) time.Duration {
	if jobSpec.TimeLimit == 0 {
		return 0
	}
	return jobSpec.TimeLimit.Std() + jobSpec.StopGrace.Std()
}

type explainOutput struct{ Body wire.Explanation }

// explain lists the reasons for a job's state. A step may wait for other steps, a parent
// is described by its children, and a waiting job by its place in the queue.
func (h *planHandlers) explain(ctx context.Context, in *JobInput) (*explainOutput, error) {
	job, err := h.showJob(ctx, in)
	if err != nil {
		return nil, err
	}
	if job.Body.Status == berth.Submitted {
		e, waits, err := h.needs(ctx, job.Body)
		if err != nil || waits {
			return &explainOutput{e}, err
		}
	}
	if job.Body.Tally != nil {
		e := describeParent(job.Body)
		if job.Body.Status == berth.Submitted {
			held, err := h.control.blockers(ctx, berth.Submitted)
			if err != nil {
				return nil, err
			}
			e.Blockers = append(held, e.Blockers...)
		}
		return &explainOutput{e}, nil
	}
	// A job may start or end between two reads, and wait again after a third.
	for job.Body.Status.Waiting() {
		row, request, err := h.queue.Row(ctx, scope(ctx), job.Body.ID)
		if err != nil {
			return nil, err
		}
		w, waits, err := h.explainer.Why(ctx, row, request)
		if err != nil {
			return nil, err
		}
		if waits {
			e, err := h.explainWaiting(ctx, job.Body, row, request, w)
			return &explainOutput{e}, err
		}
		if job, err = h.jobNow(ctx, job.Body.ID); err != nil {
			return nil, err
		}
	}
	e, err := h.explainPlaced(ctx, job.Body)
	return &explainOutput{e}, err
}

// explainWaiting explains a waiting job, with the machines of clouds that boot for it.
func (h *planHandlers) explainWaiting(ctx context.Context, job wire.Job, row db.QueueJob, request spec.Request,
	w placement.JobExplanation) (e wire.Explanation, err error) {
	held, err := h.control.blockers(ctx, row.State)
	if err != nil {
		return e, err
	}
	e = waiting(job, row.State, w, held)
	e.Alternatives = alternativesOf(job, w)
	if err := h.nameHolders(ctx, &e, w.Holders); err != nil {
		return e, err
	}
	notes, err := h.scaling.ShowNotes(ctx, []berth.JobID{job.ID})
	if n, ok := notes[job.ID]; ok {
		explainCloud(&e, n)
	}
	if err != nil || job.Spec == nil || !slices.ContainsFunc(e.Blockers, func(b wire.Blocker) bool {
		return lacksRoom(b.Code)
	}) {
		return e, err
	}
	run := job.Spec.TimeLimit.Std()
	if run == 0 && w.Run.Samples > 0 {
		run = w.Run.Quantile(0.5)
	}
	here := wire.PlanOffer{Provider: wire.OnPremises, Starts: e.EstimatedStart, Note: e.Blockers[0].Message}
	e.Offers, e.OffersNote, err = h.offers(ctx, autoscale.Quoted{Job: convert.Job(row), Request: request, Run: run,
		Saves: job.Spec.Checkpoint != nil}, here)
	return e, err
}

// explainPlaced explains a job that is not waiting. On a machine with a silent container
// engine, the job's end cannot be observed, which the explanation mentions.
func (h *planHandlers) explainPlaced(ctx context.Context, job wire.Job) (wire.Explanation, error) {
	e := wire.Explanation{Job: job.ID, Status: job.Status, Blockers: []wire.Blocker{}, Summary: placed(job)}
	if !job.Status.HoldsCapacity() || len(job.Attempts) == 0 {
		return e, nil
	}
	machines := job.Attempts[len(job.Attempts)-1].Machines
	silent, err := h.machines.SilentEngines(ctx, machines)
	if err != nil {
		return e, err
	}
	if len(silent) > 0 {
		e.Blockers = append(e.Blockers, engineBlocker(silent))
		e.Summary += "; " + enginesilence.Text(silent)
	}
	label := spec.EgressLabel
	if job.Spec != nil && job.Spec.Members > 1 {
		label = spec.EgressGangLabel
	}
	open, err := h.machines.Lacking(ctx, machines, label, spec.EgressHeld)
	if len(open) > 0 {
		e.Blockers = append(e.Blockers, openBlocker(open))
	}
	return e, err
}

// openBlocker is the remark about a running job on machines that do not enforce its egress
// policy, which is then the default.
func openBlocker(machines []berth.MachineID) wire.Blocker {
	names := make([]string, len(machines))
	for i, m := range machines {
		names[i] = string(m)
	}
	return wire.Blocker{
		Code: "egress_open", Machines: machines,
		Message: "egress is not enforced on " + strings.Join(names, ", ") +
			": the job can reach every address that these machines can reach",
		Hint: "set network.egress to none or list to run only on machines that enforce it; nothing restricts gangs " +
			"on an operator's network or on their machines' network",
	}
}

// needs lists the unmet needs of a step and of the pipelines around the step, the
// outermost level first. waits is false if all needs are met.
func (h *planHandlers) needs(ctx context.Context, step wire.Job) (e wire.Explanation, waits bool, err error) {
	e = wire.Explanation{Job: step.ID, Status: step.Status, Blockers: []wire.Blocker{}}
	at, who := step, "it"
	for at.Step != "" && at.Status == berth.Submitted {
		around, err := h.jobs.Get(ctx, scope(ctx), *at.Parent)
		if err != nil {
			return e, false, err
		}
		e.Blockers = append(unmet(around, at.ID, who), e.Blockers...)
		at, who = around, "pipeline "+cmp.Or(around.Step, around.Name)+", which it is in,"
	}
	jobs, err := h.unmetJobs(ctx, at, who)
	if err != nil {
		return e, false, err
	}
	e.Blockers = append(jobs, e.Blockers...)
	if len(e.Blockers) > 0 {
		e.Summary = e.Blockers[0].Message
	}
	return e, len(e.Blockers) > 0, nil
}

// unmetJobs returns a blocker for each job that a job outside of pipelines waits for.
func (h *planHandlers) unmetJobs(ctx context.Context, at wire.Job, who string) ([]wire.Blocker, error) {
	var needs []string
	hint := "wait: it may start when that has succeeded"
	switch {
	case at.Parent != nil || at.Status != berth.Submitted:
		return nil, nil
	case at.Pipeline != nil:
		needs = at.Pipeline.Needs
		hint = hintOf(at.Pipeline.When, hint)
	case at.Spec != nil:
		needs = at.Spec.Needs
		hint = hintOf(at.Spec.When, hint)
	}
	ids := spec.NeededJobs(needs)
	if len(ids) == 0 {
		return nil, nil
	}
	jobs, err := h.jobs.Among(ctx, scope(ctx), ids)
	if err != nil {
		return nil, err
	}
	var list []wire.Blocker
	for _, id := range ids {
		if j, live := jobs[id]; live && !j.Status.Terminal() {
			list = append(list, wire.Blocker{Code: "needs", Hint: hint,
				Message: fmt.Sprintf("%s waits for job %s, %s, which is %s", who, j.Handle, j.Name, j.Status)})
		}
	}
	return list, nil
}

// hintOf returns the hint about an unmet need under a condition; success is the hint for the default.
func hintOf(when, success string) string {
	switch when {
	case spec.WhenFailure:
		return "wait: it starts when all of these have ended, if one failed or was canceled; otherwise it is skipped"
	case spec.WhenAlways:
		return "wait: it may start when that has ended"
	}
	return success
}

// unmet returns a blocker for each need of a step that keeps it from starting. who names the
// step in the messages.
func unmet(pipeline wire.Job, step berth.JobID, who string) []wire.Blocker {
	status, at := map[string]berth.State{}, wire.Step{}
	var others []string
	for _, x := range pipeline.Steps {
		status[x.Name] = x.Status
		if x.Job == step {
			at = x
		}
		if !x.Final {
			others = append(others, x.Name)
		}
	}
	wanted, verb, hint := at.Needs, "needs", hintOf(at.When, "wait: it may start when that has succeeded")
	if at.Final {
		wanted, verb, hint = others, "is a final step and waits for", hintOf(cmp.Or(at.When, spec.WhenAlways), hint)
	}
	var list []wire.Blocker
	for _, need := range wanted {
		s := status[need]
		if s == berth.Succeeded || (at.Final || at.When != "") && s.Terminal() {
			continue
		}
		list = append(list, wire.Blocker{Code: "needs", Hint: hint,
			Message: fmt.Sprintf("%s %s step %s, which is %s", who, verb, need, s)})
	}
	return list
}

// engineBlocker is the blocker of a job that is placed on machines with silent container
// engines: its starts and ends cannot be observed.
func engineBlocker(silent []enginesilence.Machine) wire.Blocker {
	return wire.Blocker{
		Code: "engine_silent", Message: enginesilence.Text(silent) +
			": starts and ends of containers are not seen there",
		Hint: enginesilence.Hint, Machines: enginesilence.IDs(silent),
	}
}

// waiting explains a waiting job. held are blockers that the job's owner cannot change;
// they come first. The summary is the first blocker.
func waiting(job wire.Job, state berth.State, w placement.JobExplanation, held []wire.Blocker) wire.Explanation {
	fit := fitOf(w)
	e := wire.Explanation{
		Job: job.ID, Status: state, Blockers: append(held, blockers(w.Blockers)...), Ahead: &w.Ahead, Queue: &w.Queue,
		Priority:       terms(w.Terms),
		EstimatedStart: known(w.Start), Reserved: w.Reserved, Fit: &fit,
		EstimatedBy: estimatedBy(w.Start, w.Guess), RunTime: runTime(w.Run),
		Summary: "ready to start; the leader places it in its next pass",
	}
	if w.Position > 0 {
		e.Position = &w.Position
	}
	last := job.Reason
	for i, b := range e.Blockers {
		if b.Code == "not_eligible" && last != nil {
			e.Blockers[i].Message = fmt.Sprintf("%s; last attempt: %s", b.Message, last.Message)
			e.Blockers[i].Hint = last.Hint
		}
	}
	if state == berth.Submitted && len(held) == 0 { // otherwise held explains the missing workflow
		e.Blockers = append(e.Blockers, wire.Blocker{
			Code: "not_accepted", Message: "waiting for the control plane to pick it up",
			Hint: "if this lasts, the control workers or Temporal are down",
		})
	}
	switch {
	case len(e.Blockers) > 0:
		e.Summary = e.Blockers[0].Message
	case last != nil:
		e.Summary += "; last attempt: " + last.Message
	}
	return e
}

// known returns a time in UTC, or nil for the zero time.
func known(at time.Time) *time.Time {
	if at.IsZero() {
		return nil
	}
	at = at.UTC()
	return &at
}

// blockers converts the engine's blockers. Every setting of a quota has the code quota,
// and the setting's name in the field Quota.
func blockers(list []placement.Blocker) []wire.Blocker {
	out := make([]wire.Blocker, 0, len(list))
	for _, b := range list {
		code, quota := quotaCode(b.Code)
		out = append(out, wire.Blocker{Code: code, Quota: quota, Message: b.Text, Hint: b.Change, Jobs: b.Jobs,
			Machines: b.Machines})
	}
	return out
}

func terms(list []placement.Term) []wire.Term {
	out := make([]wire.Term, len(list))
	for i, t := range list {
		out[i] = wire.Term(t)
	}
	return out
}

// estimatedBy returns the source of an estimated start, "" without an estimate.
func estimatedBy(start time.Time, guess bool) wire.EstimateBy {
	switch {
	case start.IsZero():
		return ""
	case guess:
		return wire.ByRunTimes
	}
	return wire.ByLimits
}

// runTime converts a prediction, nil if it rests on no job.
func runTime(p placement.Prediction) *wire.RunTime {
	if p.Samples == 0 {
		return nil
	}
	return &wire.RunTime{
		MedianSeconds: p.Quantile(0.5).Seconds(), P90Seconds: p.Quantile(0.9).Seconds(), Jobs: p.Samples,
		Like: p.Level.String(), Confidence: string(p.Confidence()),
	}
}

// fitOf converts the engine's account of machines that fit the job. MiB become bytes.
func fitOf(w placement.JobExplanation) wire.Fit {
	e := w.Fit
	f := wire.Fit{Machines: e.Machines, FitNow: e.FitNow, FitEver: e.FitEver, Candidates: e.Candidates,
		Summary: e.Summary}
	for _, c := range e.Clauses {
		f.Clauses = append(f.Clauses, wire.FitClause(c))
	}
	if s := e.Scarce; s != nil {
		f.Scarce = &wire.ScarceGPUs{GPUTypes: s.Models, Requested: s.Requested, Free: s.Free}
	}
	if s := e.ScarceBlocks; s != nil {
		f.Blocks = &wire.ScarceBlocks{GPUs: s.GPUs, Requested: s.Requested, Free: s.Free}
	}
	for _, l := range e.Lacking {
		f.Lacking = append(f.Lacking, wire.Shortfall(l))
	}
	if e.Members != nil {
		f.MembersNow = &e.Members.Now
	}
	for _, d := range w.Data {
		f.Data = append(f.Data, wire.DataAt{Machine: d.Machine, Bytes: d.MiB << 20, Chosen: d.Chosen})
	}
	return f
}

// placed summarizes the state of a job that is not waiting.
func placed(j wire.Job) string {
	switch {
	case j.Status.Terminal():
		return endText(j)
	case j.Status == berth.Preempting && j.Reason != nil:
		return fmt.Sprintf("the job is %s, attempt %d on %s: %s", j.Status, j.Attempt,
			names(j.Attempts[len(j.Attempts)-1].Machines), j.Reason.Message)
	case len(j.Attempts) > 0:
		return fmt.Sprintf("the job is %s, attempt %d on %s", j.Status, j.Attempt,
			names(j.Attempts[len(j.Attempts)-1].Machines)) + alternativeText(j)
	default:
		return fmt.Sprintf("the job is %s", j.Status)
	}
}

// endText summarizes the end of a job.
func endText(j wire.Job) string {
	text := "it " + string(j.Status)
	if j.Status == berth.Canceled {
		text = "it was canceled"
	}
	switch {
	case j.CachedFrom != nil:
		return fmt.Sprintf("it succeeded without a run; it has the outputs of job %s, which ran the same",
			*j.CachedFrom)
	case j.Reason == nil || j.Reason.Message == "":
		return text
	case strings.HasPrefix(j.Reason.Message, "exit code"):
		return text + " with " + j.Reason.Message
	case j.Status == berth.Canceled && strings.HasPrefix(j.Reason.Message, "canceled "):
		return "it was " + j.Reason.Message
	default:
		return text + ": " + j.Reason.Message
	}
}

func names(machines []berth.MachineID) string {
	list := make([]string, len(machines))
	for i, m := range machines {
		list[i] = string(m)
	}
	return strings.Join(list, ", ")
}
