package preempt

import (
	"math"
	"time"

	"berth/placement/cluster"
	"berth/placement/queue"
)

// maxSearches is the number of blocked jobs for which one plan searches victims: by the rules of the policy, and once
// more among jobs that give way alone.
const maxSearches = 32

// Budget counts the searches for victims that are left in a plan.
type Budget struct {
	Searches int // with the rules of the policy
	Yields   int // further ones, for jobs that may stop only jobs that give way
	// vain is the least time limit of a job, by class, for which a search of the second kind found nothing.
	vain map[*cluster.Class]time.Duration
}

// MayYield reports whether the plan may search jobs that give way, for a job of the class with the given time limit;
// 0: none. What such a search finds does not depend on the tenant, and a job that ends earlier finds no less. So one
// job speaks for later jobs of its class: many alike jobs must not use up the searches.
func (b *Budget) MayYield(c *cluster.Class, limit time.Duration) bool {
	if b.Yields == 0 {
		return false
	}
	least, vain := b.vain[c]
	return !vain || bounded(limit) < least
}

// fail records a search in vain for jobs that give way.
func (b *Budget) fail(e *queue.Entry) {
	if least, vain := b.vain[e.Class]; !vain || bounded(e.TimeLimit) < least {
		b.vain[e.Class] = bounded(e.TimeLimit)
	}
}

// bounded returns a time limit as a number that orders jobs by their ends. A job without a limit is the last.
func bounded(limit time.Duration) time.Duration {
	if limit <= 0 {
		return math.MaxInt64
	}
	return limit
}

// count takes one search for a blocked job from the ones that are left; ok is false if the job gets none. The searches
// for jobs that give way are counted apart, so that a debug job takes none from the ordinary preemption of other jobs.
func count(r *Search, e *queue.Entry) (ordinary, ok bool) {
	switch {
	case r.Barred[e.ID] || cluster.GivesWay(e.Priority):
		return false, false
	case r.policy.Preempt && waited(e, r.Now) >= r.policy.PreemptAfter && r.Searches > 0:
		r.Searches--
		return true, true
	// A job with nominations of its own may have room that the rest of its class lacks.
	case r.MayYield(e.Class, e.TimeLimit) || r.Yields > 0 && len(r.nominations.Marks[e.ID]) > 0:
		r.Yields--
		return false, true
	}
	return false, false
}
