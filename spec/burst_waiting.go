package spec

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Limits on BurstWhen.Waiting.
const (
	maxBurstWaiting = 16
	maxBurstFor     = 30 * 24 * time.Hour
)

// BurstWaiting sends jobs to the cloud when many of them wait: once at least Jobs jobs of the tenant, and of all
// tenants below it, have each waited for room for at least For, machines are launched for these jobs.
//
// A rule is narrower than another one if it needs as many jobs or more, and waits as long or longer.
type BurstWaiting struct {
	Jobs int      `json:"jobs" doc:"least number of jobs that wait for room, tenants below included"`
	For  Duration `json:"for,omitempty" doc:"time for which each of them has waited; default 0s"`
}

// within reports whether the rule sends jobs only if the other one does, too.
func (w BurstWaiting) within(o BurstWaiting) bool { return w.Jobs >= o.Jobs && w.For >= o.For }

// validateWaiting checks the rules on numbers of jobs.
func validateWaiting(v *validation, rules []BurstWaiting) {
	v.require(len(rules) <= maxBurstWaiting, "when.waiting", "has too many rules",
		fmt.Sprintf("at most %d", maxBurstWaiting))
	for i, r := range rules[:min(len(rules), maxBurstWaiting)] {
		v.require(r.Jobs >= 1 && r.Jobs <= maxBurstCount, fmt.Sprintf("when.waiting[%d].jobs", i),
			fmt.Sprintf("%d is out of range", r.Jobs), fmt.Sprintf("1 to %d", maxBurstCount))
		v.require(r.For >= 0 && r.For.Std() <= maxBurstFor, fmt.Sprintf("when.waiting[%d].for", i),
			fmt.Sprintf("%s is out of range", r.For), fmt.Sprintf("0s to %s", Duration(maxBurstFor)))
	}
}

// narrowWaiting returns rules that send jobs only if a rule of each list does. Without rules on one side it returns
// none. The rules of the child are counted over the child's own jobs, which are a part of the parent's jobs.
func narrowWaiting(parent, child []BurstWaiting) []BurstWaiting {
	var both []BurstWaiting
	for _, p := range parent {
		for _, c := range child {
			both = append(both, BurstWaiting{Jobs: max(p.Jobs, c.Jobs), For: max(p.For, c.For)})
		}
	}
	return weakest(both)
}

// weakest returns the rules that no other rule makes redundant, in order. A rule within another one is redundant.
func weakest(rules []BurstWaiting) []BurstWaiting {
	rules = slices.Clone(rules)
	slices.SortFunc(rules, func(a, b BurstWaiting) int {
		return cmp.Or(cmp.Compare(a.Jobs, b.Jobs), cmp.Compare(a.For, b.For))
	})
	var list []BurstWaiting
	for _, r := range rules {
		if !slices.ContainsFunc(list, r.within) {
			list = append(list, r)
		}
	}
	return list
}

// widensWaiting adds a fault for each rule that is within none of the rules above.
func widensWaiting(v *validation, rules, above []BurstWaiting) {
	allowed := "none: the policy above has no waiting"
	if len(above) > 0 {
		allowed = "at least the jobs and the time of one of " + fmt.Sprint(above)
	}
	for i, r := range rules {
		v.require(slices.ContainsFunc(above, r.within), fmt.Sprintf("when.waiting[%d]", i),
			r.String()+" is less than the policy above demands", allowed)
	}
}

// String returns the rule as a text, such as 5 jobs for 10m.
func (w BurstWaiting) String() string { return fmt.Sprintf("%d jobs for %s", w.Jobs, w.For) }
