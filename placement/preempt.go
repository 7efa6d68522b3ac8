package placement

import (
	"cmp"
	"slices"
	"time"

	"berth"
)

// maxSearches bounds the blocked jobs for which one plan searches victims.
const maxSearches = 32

// maxHopes bounds the further searches for the sake of estimates.
const maxHopes = 64

// Preempt tells a running job to give way to another.
type Preempt struct {
	Job     berth.JobID
	Version int64
	Attempt int
	For     berth.JobID
	Why     PreemptReason
	Lost    time.Duration // GPU time since its last verified checkpoint
}

// PreemptReason is what allows a preemption.
type PreemptReason string

// The reasons for a preemption.
const (
	PreemptBand  PreemptReason = "priority"  // the other is of a higher band
	PreemptShare PreemptReason = "share"     // its tenant has more than its share, the other's less
	PreemptQuota PreemptReason = "guarantee" // its tenant borrows what is guaranteed to the other's
	PreemptRank  PreemptReason = "service"   // the other has much less service to go
)

// preemption displaces running jobs for blocked ones. It chooses whole gangs, the
// ones with the least work to lose, and spares every job that need not stop.
type preemption struct {
	*moment
	policy       *Policy
	cluster      *cluster
	queue        *queue
	ledger       *ledger
	placer       *placer
	reservations *reservations
	shares       *shares
	nominations  *nominations
	index        *boundIndex

	searches int // that the plan may still make
	orders   []Preempt
	stops    []*holder                 // ordered to stop by this plan
	estimate bool                      // hope is asked for
	hoped    int                       // searches for hope
	hopes    map[berth.JobID]time.Time // see hope

	releasing     []*node         // see releasedNodes
	released      [][]berth.Grant // by node.index
	releasedKnown bool
	overlaid      bool // searches count released capacity as free

	rights rights     // of the job that is being searched for
	found  []prospect // buffers
	passed []int
	picked []victim
	best   []victim
}

// newPreemption returns the preemption of a plan. With estimate set, hope notes the
// times at which jobs may preempt later.
func newPreemption(n *nominations, q *queue, s *shares, x *boundIndex, estimate bool) *preemption {
	r := &preemption{
		moment: n.moment, policy: n.policy, cluster: n.cluster, queue: q, ledger: n.ledger, placer: n.placer,
		reservations: n.reservations, shares: s, nominations: n, index: x,
		estimate: estimate, hopes: map[berth.JobID]time.Time{},
	}
	if r.policy.Preempt {
		r.searches = maxSearches
	}
	return r
}

// preempt makes room for a blocked job by ordering others to stop; false if there
// are no victims that would do.
func (r *preemption) preempt(x *contender, e *entry) bool {
	if !r.policy.Preempt || r.searches == 0 || r.waited(e) < r.policy.PreemptAfter {
		return false
	}
	r.searches--
	own := r.nominations.ownRoom(e)
	r.nominations.lift(own) // the job needs no victims for the room kept for its repair
	best := r.choose(x, e)
	if best == nil {
		r.nominations.restore(own)
		return false
	}
	if len(own) > 0 {
		r.nominations.dropRepairs(e) // the displacement includes the room
		r.placer.widen()             // any job may have the rest of it
	}
	r.enact(e, best)
	return true
}

// hope notes the time at which a blocked job will have waited long enough to
// displace others, if it could do so now. Only estimates use it.
func (r *preemption) hope(x *contender, e *entry) {
	left := r.policy.PreemptAfter - r.waited(e)
	if !r.estimate || !r.policy.Preempt || left <= 0 || r.hoped >= maxHopes {
		return
	}
	r.hoped++
	if r.choose(x, e) != nil {
		r.hopes[e.ID] = r.now.Add(left)
	}
}

// choose returns the cheapest displacement for a job; nil if none is enough, or
// if the jobs that stop already release enough.
func (r *preemption) choose(x *contender, e *entry) *displacement {
	// The job starts after its victims have stopped: held capacity may be needed
	// before it ends.
	r.placer.end = time.Time{}
	r.grantRights(x, e)
	var best *displacement
	for _, group := range r.placer.groups(e.class) {
		mark := r.ledger.mark()
		s := r.displace(e, group)
		r.ledger.undo(mark)
		if s != nil && len(s.victims) == 0 {
			return nil
		}
		if s != nil && (best == nil || s.cost() < best.cost()) {
			best = s
		}
	}
	return best
}

// waited is the time for which the job has been eligible.
func (r *preemption) waited(e *entry) time.Duration {
	since := e.SubmittedAt
	if e.EligibleAt.After(since) {
		since = e.EligibleAt
	}
	return max(0, r.now.Sub(since))
}

// displacement is places for all members of a job, and the victims that make room
// for them.
type displacement struct {
	ranks   []choice
	victims []victim
}

func (s *displacement) cost() float64 {
	sum := 0.0
	for _, v := range s.victims {
		sum += v.cost
	}
	return sum
}

// displace places all members of a job in one group, with victims where there is
// no room; nil if that is impossible. The caller reverts the entries in the ledger.
func (r *preemption) displace(e *entry, group string) *displacement {
	s := &displacement{}
	c := e.class
	defer r.placer.reopen(c)()
	single := c.members() == 1
	switch {
	case !single:
		for _, n := range r.releasedNodes() {
			r.giveReleased(n)
		}
	case r.fitsReleased(c, group):
		return s // the search for free capacity failed: released capacity is all there can be
	}
	for range c.members() {
		found, ok := choice{}, false
		if !single {
			found, ok = r.placer.find(c, nil, group)
		}
		if !ok {
			r.overlaid = single
			victims, any := r.cheapestVictims(e.class, group, s)
			r.overlaid = false
			if !any {
				return nil
			}
			s.victims = append(s.victims, victims...)
			r.clear(victims, single)
			if found, ok = r.placer.find(c, nil, group); !ok {
				return nil
			}
		}
		r.ledger.take(found)
		s.ranks = append(s.ranks, found)
	}
	r.reprieve(s)
	return s
}

// reprieve spares the most expensive victims whose capacity is not needed.
func (r *preemption) reprieve(s *displacement) {
	slices.SortStableFunc(s.victims, func(a, b victim) int {
		return cmp.Or(cmp.Compare(b.band, a.band), cmp.Compare(b.cost, a.cost), compareIDs(a.Job, b.Job))
	})
	s.victims = slices.DeleteFunc(s.victims, func(v victim) bool {
		for _, g := range v.Ranks {
			if n := r.cluster.nodes[g.Machine]; n != nil && !n.hasFree(g, v.Ranks) {
				return false
			}
		}
		for _, g := range v.Ranks {
			if n := r.cluster.nodes[g.Machine]; n != nil {
				r.ledger.take(choice{node: n, grant: g})
			}
		}
		return true
	})
}

// hasFree reports whether all that ranks take of the machine of g is free.
func (n *node) hasFree(g berth.Grant, ranks []berth.Grant) bool {
	var all amount
	for _, o := range ranks {
		if o.Machine == g.Machine {
			all = all.plus(n, o, 1)
		}
	}
	if !all.Fits(n.free) {
		return false
	}
	for i, x := range all.gpus {
		if x > 0 && x > n.gpus[i] && n.gpus[i] != unhealthy {
			return false
		}
	}
	return true
}

// cost is the cost of displacing a holder: the GPU time lost, or under order srsf
// the inverse of the service it has to go, so that jobs near their end are spared.
func (r *preemption) cost(h *holder) float64 {
	if r.policy.Order == SRSF {
		return 1 / max(1e-9, r.policy.running(h, r.now))
	}
	return h.lost(r.now).Seconds()
}

// enact orders the victims to stop and nominates their capacity for the job.
func (r *preemption) enact(e *entry, s *displacement) {
	holders := make([]*holder, 0, len(s.victims))
	for _, v := range s.victims {
		holders = append(holders, v.holder)
		v.stopped = r.number
		r.stops = append(r.stops, v.holder)
		r.orders = append(r.orders, Preempt{v.Job, v.Version, v.Attempt, e.ID, v.why, v.lost(r.now)})
		r.shares.discharge(v.holder)
		for _, id := range v.machines {
			if n := r.cluster.nodes[id]; n != nil {
				r.reservations.outdate(n)
				r.ledger.touch(n)
			}
		}
	}
	for _, c := range together(s.ranks) {
		r.nominations.nominate(e, c, holders)
	}
	if r.releasedKnown {
		for _, h := range holders {
			r.release(h)
		}
	}
}

// together adds up what is granted on one machine.
func together(ranks []choice) []choice {
	var list []choice
	for _, c := range ranks {
		i := slices.IndexFunc(list, func(o choice) bool { return o.node == c.node })
		if i < 0 {
			c.grant.GPUs = slices.Clone(c.grant.GPUs)
			list = append(list, c)
			continue
		}
		g := &list[i].grant
		g.Capacity = g.Capacity.Add(c.grant.Capacity)
		for _, d := range c.grant.GPUs {
			if j := slices.IndexFunc(g.GPUs, func(o berth.DeviceShare) bool { return o.Index == d.Index }); j >= 0 {
				g.GPUs[j].Milli += d.Milli
			} else {
				g.GPUs = append(g.GPUs, d)
			}
		}
	}
	return list
}
