package check

import (
	"time"

	"berth"
	"berth/db/history"
)

// membersSuitTheirGroups proves invariant 35. The class has the request of each group, and a start
// reserves capacity by it, in order of rank. A process that knows no groups would give all members the
// resources of one of them. After the attempt the request may have grown.
func membersSuitTheirGroups(c *jobCase) {
	j := c.j
	if !j.Grouped || j.Request == nil || !j.State.HoldsCapacity() {
		return
	}
	ranks, first := c.ranks(j.Attempt), 0
	for i, one := range j.Request.Split() {
		for _, a := range ranks[min(first, len(ranks)):min(first+one.Members, len(ranks))] {
			if !suits(a, one) {
				c.of(a, rows(a), "rank %d has other capacity than group %s: %+v", a.Rank, j.Request.Groups[i].Name,
					one.Capacity())
			}
		}
		first += one.Members
	}
	if first != len(ranks) {
		c.breach(nil, "attempt %d has %d ranks, and the groups have %d members", j.Attempt, len(ranks), first)
	}
}

// leads reports whether a member decides the success of the job: it is in the leading group, or no group
// leads.
func (c *jobCase) leads(rank int) bool {
	return c.j.LeadFirst == nil || c.j.LeadLast == nil || rank >= *c.j.LeadFirst && rank <= *c.j.LeadLast
}

// leadDone returns the time at which the leading group had completed its work and stored its data; zero if it has
// not, or no group leads.
func (c *jobCase) leadDone(ranks []history.Allocation) (at time.Time) {
	if c.j.LeadFirst == nil {
		return at
	}
	for _, a := range ranks {
		switch {
		case !c.leads(a.Rank):
		case a.OrphanedAt != nil, a.Exit == nil, !a.Exit.Done(), a.SealedAt == nil:
			return time.Time{}
		case a.SealedAt.After(at):
			at = *a.SealedAt
		}
	}
	return at
}

// followersStop proves the part of invariant 10 about the leading group: once its work is done, no other member
// runs on without an order to stop.
func followersStop(c *jobCase) {
	if !holds(c.j.State) {
		return
	}
	ranks := c.ranks(c.j.Attempt)
	done := c.leadDone(ranks)
	if done.IsZero() || c.v.now.Sub(done) <= partlyFor+c.v.o.Patience {
		return
	}
	for _, a := range ranks {
		if a.State == berth.AllocActive && !a.Orders.Stop && !a.Orders.Kill {
			c.of(a, rows(a), "rank %d runs on, untold, %s after the leading group had ended", a.Rank,
				c.v.now.Sub(done).Round(time.Second))
		}
	}
}
