package api

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"berth"
	"berth/db"
	"berth/internal/control/autoscale"
	"berth/internal/control/explain"
	"berth/internal/lib/overload"
	"berth/spec"
	"berth/wire"
)

// admissionHandlers serve the cluster-wide pause of new starts.
type admissionHandlers struct {
	cluster   *db.Cluster
	explainer *explain.Explainer
	quoter    *autoscale.Quoter
	log       *slog.Logger
}

func (h *admissionHandlers) mount(r *router) {
	const tag = "administration"
	register(r, r.operation("show-admission", http.MethodGet, "/v1/admission", tag,
		"Show whether new work may start"), h.showAdmission)
	set := r.operation("set-admission", http.MethodPut, "/v1/admission", tag,
		"Pause or resume the start of new work in the whole cluster")
	set.Description = "While paused, jobs are accepted and wait; what runs, ends or is canceled goes on. Repeats " +
		"change nothing and return the change that holds."
	registerWithBody[spec.NewAdmission](r, set, h.setAdmission)
}

type admissionOutput struct{ Body wire.Admission }

// showAdmission returns the newest change of admission. The route is open to all users,
// so that they can see why their jobs wait.
func (h *admissionHandlers) showAdmission(ctx context.Context, _ *struct{}) (*admissionOutput, error) {
	a, err := h.cluster.Admission(ctx)
	if err != nil {
		return nil, err
	}
	return &admissionOutput{a}, nil
}

// setAdmission pauses or resumes all new starts. The explainer must forget its reading of
// the queue, or its next answers would still describe the state before the change.
func (h *admissionHandlers) setAdmission(ctx context.Context, in *Request) (*admissionOutput, error) {
	n, err := readValid[spec.NewAdmission](*in, nil)
	if err != nil {
		return nil, err
	}
	a, err := h.cluster.SetAdmission(ctx, *n.Paused, n.Reason, operator(ctx))
	if err != nil {
		return nil, err
	}
	h.explainer.Forget()
	h.quoter.Forget()
	h.log.Info("admission set", "paused", a.Paused, "reason", a.Reason, "by", operator(ctx))
	return &admissionOutput{a}, nil
}

// pauseText describes a pause of admission: actor, time and reason; or the quarantine.
func pauseText(a wire.Admission) string {
	if a.Quarantined {
		return a.Reason
	}
	text := "new starts are paused by " + a.Actor
	if a.Since != nil {
		text += " since " + a.Since.UTC().Format(time.RFC3339)
	}
	if a.Reason != "" {
		text += ": " + a.Reason
	}
	return text
}

// pauseHint is the hint of every answer that names a pause as the cause.
func pauseHint(a wire.Admission) string {
	if a.Quarantined {
		return "an operator examines the restored cluster and ends its quarantine with 'berthd backup adopt'"
	}
	return "an admin ends the pause with 'berth admission resume'"
}

// controlPlane describes the limits of the control plane that hold back the starts of
// waiting jobs: a pause of admission, the gate, and the latency of Temporal.
type controlPlane struct {
	cluster  *db.Cluster
	gate     *overload.Gate    // nil: its limit is not described
	temporal *overload.Limiter // nil: its limit is not described
}

// blockers returns the blockers of a waiting job that lie in the control plane. The job's
// owner cannot remove them.
func (p *controlPlane) blockers(ctx context.Context, state berth.State) ([]wire.Blocker, error) {
	a, err := p.cluster.Admission(ctx)
	if err != nil {
		return nil, err
	}
	return p.heldBack(a, state), nil
}

// heldBack is blockers for an admission that the caller has already read. A pause hides
// all other blockers: while it lasts, no limit of the control plane matters.
func (p *controlPlane) heldBack(a wire.Admission, state berth.State) []wire.Blocker {
	if a.Paused {
		return []wire.Blocker{{Code: "paused", Message: pauseText(a), Hint: pauseHint(a)}}
	}
	if text := p.overloaded(state); text != "" {
		return []wire.Blocker{{Code: "control_plane", Message: "waits for the control plane: " + text,
			Hint: "wait: it starts as soon as there is room; operators see docs/operate/overload.md"}}
	}
	return nil
}

// overloaded describes the limit that holds back starts of jobs in the given state, or
// returns "" without such a limit. A replica that places no jobs, or starts no workflows,
// reports no rate: the rate of the leader, or of another replica, is not known here.
func (p *controlPlane) overloaded(state berth.State) string {
	if p.gate == nil {
		return ""
	}
	valve := p.gate.Placements
	if state == berth.Submitted {
		valve = p.gate.Starts
	}
	unsettled := p.gate.Pressure().Unsettled
	switch v := valve.Stats(); {
	case v.Paused || !v.Binding():
	case v.Used:
		return fmt.Sprintf("%d ended jobs are settled first, and %.1f a second may start meanwhile", unsettled, v.Rate)
	case unsettled > overload.TolerateMost:
		return fmt.Sprintf("%d ended jobs are settled first", unsettled)
	}
	if state != berth.Submitted || p.temporal == nil {
		return ""
	}
	if t := p.temporal.Stats(); t.Queued[overload.Start] > 0 {
		return fmt.Sprintf("%d calls to Temporal are under way, as many as its latency allows, and %d starts wait "+
			"for their turn", t.InFlight, t.Queued[overload.Start])
	}
	return ""
}

// tellQuarantine is tellPause for one submitted job of a quarantined cluster: no part of the control plane
// picks it up before the adoption.
func (p *controlPlane) tellQuarantine(ctx context.Context, job *wire.Job) error {
	if job.Status != berth.Submitted {
		return nil
	}
	_, quarantined, err := p.cluster.Quarantine(ctx)
	if err != nil || !quarantined {
		return err
	}
	return p.tellPause(ctx, job)
}

// tellPause sets the pause of admission as the reason of waiting jobs that have no reason
// yet. Without such jobs the database is not asked.
func (p *controlPlane) tellPause(ctx context.Context, jobs ...*wire.Job) error {
	untold := func(j *wire.Job) bool { return j.Status.Waiting() && j.Reason == nil }
	if !slices.ContainsFunc(jobs, untold) {
		return nil
	}
	a, err := p.cluster.Admission(ctx)
	if err != nil || !a.Paused {
		return err
	}
	for _, j := range jobs {
		if untold(j) {
			j.Reason = &berth.Reason{Code: berth.ReasonAdmissionPaused, Message: pauseText(a), Hint: pauseHint(a)}
		}
	}
	return nil
}
