package api

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"berth"
	"berth/internal/lib/overload"
	"berth/spec"
	"berth/wire"
)

func (s *Server) registerAdmission() {
	const tag = "administration"
	register(s, s.operation("show-admission", http.MethodGet, "/v1/admission", tag, "Show whether new work may start"), s.showAdmission)
	set := s.operation("set-admission", http.MethodPut, "/v1/admission", tag, "Pause or resume the start of new work in the whole cluster")
	set.Description = "While paused, jobs are accepted and wait; what runs, ends or is canceled goes on. Repeats change nothing and return the change that holds."
	registerWithBody[spec.NewAdmission](s, set, s.setAdmission)
}

type admissionOutput struct{ Body wire.Admission }

func (s *Server) showAdmission(ctx context.Context, _ *struct{}) (*admissionOutput, error) {
	a, err := s.DB.Cluster.Admission(ctx)
	if err != nil {
		return nil, err
	}
	return &admissionOutput{a}, nil
}

func (s *Server) setAdmission(ctx context.Context, in *Request) (*admissionOutput, error) {
	n, err := readValid[spec.NewAdmission](*in, nil)
	if err != nil {
		return nil, err
	}
	a, err := s.DB.Cluster.SetAdmission(ctx, *n.Paused, n.Reason, operator(ctx))
	if err != nil {
		return nil, err
	}
	s.explainer.Forget()
	s.Logger.Info("admission set", "paused", a.Paused, "reason", a.Reason, "by", operator(ctx))
	return &admissionOutput{a}, nil
}

// pauseText describes a pause of admission: actor, time and reason.
func pauseText(a wire.Admission) string {
	text := "new starts are paused by " + a.Actor
	if a.Since != nil {
		text += " since " + a.Since.UTC().Format(time.RFC3339)
	}
	if a.Reason != "" {
		text += ": " + a.Reason
	}
	return text
}

const pauseHint = "an admin ends the pause with 'berth admission resume'"

// controlPlane returns the blockers of a waiting job that lie in the control
// plane, which its owner cannot change.
func (s *Server) controlPlane(ctx context.Context, state berth.State) ([]wire.Blocker, error) {
	a, err := s.DB.Cluster.Admission(ctx)
	if err != nil {
		return nil, err
	}
	return s.heldBack(a, state), nil
}

// heldBack is controlPlane with an admission that was read before.
func (s *Server) heldBack(a wire.Admission, state berth.State) []wire.Blocker {
	if a.Paused {
		return []wire.Blocker{{Code: "paused", Message: pauseText(a), Hint: pauseHint}}
	}
	if text := s.overloaded(state); text != "" {
		return []wire.Blocker{{Code: "control_plane", Message: "waits for the control plane: " + text, Hint: "wait: it starts as soon as there is room; operators see docs/operate/overload.md"}}
	}
	return nil
}

// overloaded describes the limit that holds back starts of jobs in that state, ""
// if none does. A replica that places nothing, or starts no workflows, reports no
// rate: that of the leader, or of another replica, is not known here.
func (s *Server) overloaded(state berth.State) string {
	if s.Gate == nil {
		return ""
	}
	valve := s.Gate.Placements
	if state == berth.Submitted {
		valve = s.Gate.Starts
	}
	unsettled := s.Gate.Pressure().Unsettled
	switch v := valve.Stats(); {
	case v.Paused || !v.Binding():
	case v.Used:
		return fmt.Sprintf("%d ended jobs are settled first, and %.1f a second may start meanwhile", unsettled, v.Rate)
	case unsettled > overload.TolerateMost:
		return fmt.Sprintf("%d ended jobs are settled first", unsettled)
	}
	if state != berth.Submitted || s.Temporal == nil {
		return ""
	}
	if t := s.Temporal.Stats(); t.Queued[overload.Start] > 0 {
		return fmt.Sprintf("%d calls to Temporal are under way, as many as its latency allows, and %d starts wait for their turn", t.InFlight, t.Queued[overload.Start])
	}
	return ""
}

// tellPause gives waiting jobs that have no reason yet the pause as theirs.
func (s *Server) tellPause(ctx context.Context, jobs ...*wire.Job) error {
	untold := func(j *wire.Job) bool { return j.Status.Waiting() && j.Reason == nil }
	if !slices.ContainsFunc(jobs, untold) {
		return nil
	}
	a, err := s.DB.Cluster.Admission(ctx)
	if err != nil || !a.Paused {
		return err
	}
	for _, j := range jobs {
		if untold(j) {
			j.Reason = &berth.Reason{Code: berth.ReasonAdmissionPaused, Message: pauseText(a), Hint: pauseHint}
		}
	}
	return nil
}
