package api

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"berth"
	"berth/db"
	"berth/placement"
)

func (s *Server) registerPlans() {
	plan := s.operation("plan-job", http.MethodPost, "/v1/plans", "jobs", "Say what would become of a job; nothing is stored")
	registerWithBody[berth.JobSpec](s, plan, s.plan)
	register(s, s.operation("explain-job", http.MethodGet, "/v1/jobs/{id}/explain", "jobs", "Say why a job is where it is, and everything that is in its way"), s.explain)
}

type planOutput struct{ Body berth.Plan }

func (s *Server) plan(ctx context.Context, in *Request) (*planOutput, error) {
	spec, err := readSpec(*in)
	if err != nil {
		return nil, err
	}
	snap, err := loadSnapshot(ctx, s.DB)
	if err != nil {
		return nil, err
	}
	ahead, err := s.DB.QueueAhead(ctx, int(*spec.Priority))
	if err != nil {
		return nil, err
	}
	request := spec.Request()
	e := placement.Explain(snap.Snapshot, request)
	p := berth.Plan{Spec: spec, Ahead: ahead, Fit: fitOf(e)}
	if p.Blockers, err = s.standing(ctx, caller(ctx).Tenant, request); err != nil {
		return nil, err
	}
	// What waits ahead of it has no use for this room.
	p.StartsNow = roomFor(e, request) && len(p.Blockers) == 0
	if len(e.Candidates) > 0 {
		cost, err := s.DB.HourlyCost(ctx, e.Candidates[0])
		if err != nil {
			return nil, err
		}
		if cost *= float64(request.Members); cost > 0 {
			p.CostPerHour = &cost
		}
	}
	if p.EstimatedStart, err = snap.estimate(ctx, s.DB, request); err != nil {
		return nil, err
	}
	return &planOutput{p}, nil
}

func fitOf(e placement.Explanation) berth.Fit {
	f := berth.Fit{Machines: e.Machines, FitNow: e.FitNow, FitEver: e.FitEver, Candidates: e.Candidates, Summary: e.Summary}
	for _, c := range e.Clauses {
		f.Clauses = append(f.Clauses, berth.FitClause(c))
	}
	for _, l := range e.Lacking {
		f.Lacking = append(f.Lacking, berth.Shortfall(l))
	}
	if e.Members != nil {
		f.MembersNow = &e.Members.Now
	}
	return f
}

type explainOutput struct{ Body berth.Explanation }

func (s *Server) explain(ctx context.Context, in *JobInput) (*explainOutput, error) {
	job, err := s.showJob(ctx, in)
	if err != nil {
		return nil, err
	}
	e := berth.Explanation{Job: job.Body.ID, Status: job.Body.Status, Blockers: []berth.Blocker{}}
	if !job.Body.Status.Waiting() {
		e.Summary = placed(job.Body)
		return &explainOutput{e}, nil
	}
	w, err := s.DB.Waiting(ctx, scope(ctx), job.Body.ID)
	if err != nil {
		return nil, err
	}
	snap, err := loadSnapshot(ctx, s.DB)
	if err != nil {
		return nil, err
	}
	found := placement.Explain(snap.Snapshot, w.Request)
	fit := fitOf(found)
	e.Fit, e.Ahead = &fit, &w.Ahead
	e.Blockers = append(e.Blockers, blockers(w, job.Body.Reason, found)...)
	quota, err := s.standing(ctx, job.Body.Tenant, w.Request)
	if err != nil {
		return nil, err
	}
	e.Blockers = append(e.Blockers, quota...)
	e.Priority = []berth.Term{
		{Name: "priority", Value: strconv.Itoa(w.Priority)},
		{Name: "submitted_at", Value: w.SubmittedAt.UTC().Format(time.RFC3339Nano)},
		{Name: "id", Value: string(job.Body.ID)},
	}
	if e.EstimatedStart, err = snap.estimate(ctx, s.DB, w.Request); err != nil {
		return nil, err
	}
	if w.Held {
		e.EstimatedStart = nil
	} else if e.EstimatedStart != nil && e.EstimatedStart.Before(w.EligibleAt) {
		e.EstimatedStart = &w.EligibleAt
	}
	e.Summary = "nothing is in its way; the leader places it at its next look"
	if last := job.Body.Reason; last != nil {
		e.Summary += fmt.Sprintf("; its last attempt ended with %s: %s", last.Code, last.Message)
	}
	if len(e.Blockers) > 0 {
		e.Summary = e.Blockers[0].Message
	}
	return &explainOutput{e}, nil
}

// placed says where a job is that does not wait.
func placed(j berth.Job) string {
	switch {
	case j.Status.Terminal() && j.Reason != nil:
		return fmt.Sprintf("the job has ended: %s (%s: %s)", j.Status, j.Reason.Code, j.Reason.Message)
	case j.Status.Terminal():
		return fmt.Sprintf("the job has ended: %s", j.Status)
	case j.Status == berth.Preempting && j.Reason != nil:
		return fmt.Sprintf("the job is %s, attempt %d on %s: it %s", j.Status, j.Attempt, names(j.Attempts[len(j.Attempts)-1].Machines), j.Reason.Message)
	case len(j.Attempts) > 0:
		return fmt.Sprintf("the job is %s, attempt %d on %s", j.Status, j.Attempt, names(j.Attempts[len(j.Attempts)-1].Machines))
	default:
		return fmt.Sprintf("the job is %s", j.Status)
	}
}

func names(machines []berth.MachineID) string {
	list := make([]string, len(machines))
	for i, m := range machines {
		list[i] = string(m)
	}
	return strings.Join(list, ", ")
}

// blockers lists everything that keeps a waiting job from starting, what only
// its owner can change first.
func blockers(w db.Waiting, last *berth.Reason, e placement.Explanation) []berth.Blocker {
	var list []berth.Blocker
	add := func(code, message, hint string) {
		list = append(list, berth.Blocker{Code: code, Message: message, Hint: hint})
	}
	if w.Held {
		add("held", "the job is on hold", "release it")
	}
	for _, l := range e.Lacking {
		add("unsatisfiable", berth.Shortfall(l).String(), "submit it with less, or let a machine join that has it")
	}
	switch {
	case e.Machines == 0:
		add("no_machines", "no machine has joined", "start an agent with a join token")
	case len(e.Lacking) == 0 && e.Members == nil && e.FitNow == 0,
		e.Members != nil && e.Members.Now < e.Members.Asked && len(e.Lacking) == 0:
		add("no_room", e.Summary, "wait, or ask for less")
	}
	if w.EligibleAt.After(w.Now) {
		message, hint := "waits until "+w.EligibleAt.UTC().Format(time.RFC3339)+" before its next attempt", ""
		if last != nil {
			message, hint = fmt.Sprintf("%s; the last one ended with %s: %s", message, last.Code, last.Message), last.Hint
		}
		add("not_eligible", message, hint)
	}
	if w.State == berth.Submitted {
		add("not_accepted", "its workflow has not taken it up yet", "if this lasts, the control workers or Temporal are down")
	}
	switch {
	case w.Ahead == 1:
		add("behind", "1 waiting job comes before it", "raise its priority")
	case w.Ahead > 1:
		add("behind", fmt.Sprintf("%d waiting jobs come before it", w.Ahead), "raise its priority")
	}
	return list
}
