package api

import (
	"context"
	"fmt"
	"slices"
	"time"

	"berth/placement"
	"berth/spec"
	"berth/wire"
)

// alternativesOf converts the explanations of the hardware that a waiting job may take.
func alternativesOf(job wire.Job, w placement.JobExplanation) []wire.HardwareFit {
	if job.Spec == nil {
		return nil
	}
	s := job.Spec.WithDefaults()
	list := make([]wire.HardwareFit, 0, len(w.Alternatives))
	for _, a := range w.Alternatives {
		list = append(list, wire.HardwareFit{
			Number: a.Number, Resources: s.ResourcesOf(a.Number), InForce: a.InForce, After: waitOf(s, a.Number),
			OpensAt: known(a.Opens), Blockers: blockers(a.Blockers), Room: a.Fit.Summary,
		})
	}
	return list
}

// waitOf returns the wait before a job may take its hardware of a number.
func waitOf(s spec.Job, number int) spec.Duration {
	if number < 1 || number > len(s.Alternatives) {
		return 0
	}
	return s.Alternatives[number-1].After
}

// planAlternatives adds the alternatives of a job to its plan, each asked about as if it were the job's
// only hardware. asked is the job with its resources.
func (h *planHandlers) planAlternatives(ctx context.Context, p *wire.Plan, asked placement.Job) error {
	if len(p.Spec.Alternatives) == 0 {
		return nil
	}
	now := time.Now()
	p.Alternatives = []wire.HardwareFit{{Resources: p.Spec.Resources, InForce: true, Blockers: slices.Clone(p.Blockers),
		Room: p.Fit.Summary}}
	satisfiable := len(p.Fit.Lacking) == 0
	for i, request := range spec.RequestsOf(p.Spec)[1:] {
		asked.Class = request.Class()
		w, err := h.explainer.WhyNew(ctx, asked, p.Spec.Name, request)
		if err != nil {
			return err
		}
		satisfiable = satisfiable || !w.Fit.Unsatisfiable()
		after := p.Spec.Alternatives[i].After
		p.Alternatives = append(p.Alternatives, wire.HardwareFit{Number: i + 1, Resources: p.Spec.ResourcesOf(i + 1),
			After: after, Blockers: blockers(w.Blockers), Room: w.Fit.Summary})
		planSooner(p, w.JobExplanation, after, now)
	}
	if satisfiable { // the job may wait for an alternative, so it would be accepted
		p.Fit.Lacking = nil
		for i, b := range p.Blockers {
			if b.Code == "unsatisfiable" {
				p.Blockers[i].Code, p.Blockers[i].Hint = "no_room", "wait for an alternative that a machine has"
			}
		}
	}
	return nil
}

// planSooner brings the start of a plan forward to that on an alternative which may be taken after a wait.
func planSooner(p *wire.Plan, w placement.JobExplanation, after spec.Duration, now time.Time) {
	switch opens := now.Add(after.Std()); {
	case p.StartsNow:
	case w.StartsNow && after == 0:
		p.StartsNow, p.EstimatedStart, p.Reserved, p.EstimatedBy = true, known(now), false, wire.ByLimits
		p.Blockers = nil // the list of alternatives has the blockers of resources
	case w.Start.IsZero():
	default:
		if w.Start.After(opens) {
			opens = w.Start
		}
		if p.EstimatedStart == nil || opens.Before(*p.EstimatedStart) {
			p.EstimatedStart, p.Reserved, p.EstimatedBy = known(opens), false, estimatedBy(opens, w.Guess)
		}
	}
}

// alternativeText names the alternative that a placed job got; "" for resources.
func alternativeText(j wire.Job) string {
	if j.Alternative == nil || *j.Alternative == 0 {
		return ""
	}
	return fmt.Sprintf(", with alternative %d of its file", *j.Alternative)
}
