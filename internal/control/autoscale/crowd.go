package autoscale

import (
	"slices"
	"time"

	"berth"
	"berth/placement"
	"berth/spec"
)

// waited returns the time for which a job has waited for room: without the time in which it was held, waited for other
// jobs or a backoff, or held capacity. Time in which a quota blocked it counts.
func (p *pass) waited(j placement.Job) time.Duration {
	return max(0, min(p.Now.Sub(j.SubmittedAt)-j.Unaged, p.Now.Sub(j.EligibleAt)))
}

// crowded reports whether so many jobs wait for room that a rule of the tenant's policy sends the job to the cloud.
// The job itself must have waited for the time of the rule.
func (p *pass) crowded(t berth.TenantID, j placement.Job) bool {
	when := p.Policies[t].When
	if when == nil {
		return false
	}
	waited := p.waited(j)
	return slices.ContainsFunc(when.Waiting, func(r spec.BurstWaiting) bool {
		return waited >= r.For.Std() && p.lacking(t, r) >= r.Jobs
	})
}

// lacking returns the number of jobs that have waited for room for the time of a rule of the tenant's policy, among the
// jobs of the tenant that set the rule and of all tenants below it. That is the topmost tenant on the path from which
// the rule was inherited unchanged.
func (p *pass) lacking(t berth.TenantID, r spec.BurstWaiting) int {
	owner := t
	for _, a := range p.path(t)[1:] {
		b, ok := p.Policies[a]
		if !ok || b.When == nil || !slices.Contains(b.When.Waiting, r) {
			break
		}
		owner = a
	}
	n := 0
	for _, d := range p.waits[owner] {
		if d < r.For.Std() {
			break
		}
		n++
	}
	return n
}
