package preempt

import (
	"cmp"
	"slices"
	"time"

	"berth"
	"berth/placement/backfill"
	"berth/placement/cluster"
	"berth/placement/fit"
	"berth/placement/queue"
)

// maxSearches bounds the blocked jobs for which one plan searches victims.
const maxSearches = 32

// maxHopes bounds the further searches for the sake of estimates.
const maxHopes = 64

// Order is an order to a running job to stop for another one.
type Order struct {
	Job     berth.JobID
	Version int64
	Attempt int
	For     berth.JobID
	Why     Reason
	Lost    time.Duration // GPU time since its last verified checkpoint
}

// Reason is the rule that allows a preemption.
type Reason string

// The reasons for a preemption.
const (
	Band  Reason = "priority"  // the other is of a higher band
	Share Reason = "share"     // its tenant has more than its share, the other's less
	Quota Reason = "guarantee" // its tenant borrows what is guaranteed to the other's
	Rank  Reason = "service"   // the other has much less service to go
)

// Search displaces running jobs for blocked ones. It chooses whole gangs, the
// ones with the least work to lose, and spares every job that need not stop.
type Search struct {
	*cluster.Moment
	policy       *queue.Policy
	cluster      *cluster.Cluster
	queue        *queue.Queue
	ledger       *cluster.Ledger
	placer       *fit.Placer
	reservations *backfill.Reservations
	shares       *queue.Shares
	nominations  *Nominations
	index        *Index

	Searches int // that the plan may still make
	Orders   []Order
	stops    []*cluster.Holder         // ordered to stop by this plan
	estimate bool                      // hope is asked for
	hoped    int                       // searches for hope
	Hopes    map[berth.JobID]time.Time // see hope

	releasing     []*cluster.Node // see releasedNodes
	released      [][]berth.Grant // by Node.Index
	releasedKnown bool
	overlaid      bool // searches count released capacity as free

	rights rights     // of the job that is being searched for
	found  []prospect // buffers
	passed []int
	picked []victim
	best   []victim
}

// NewSearch returns the preemption of a plan. With estimate set, Hope records the times
// at which jobs may preempt later.
func NewSearch(n *Nominations, q *queue.Queue, s *queue.Shares, x *Index, estimate bool) *Search {
	r := &Search{
		Moment: n.Moment, policy: n.policy, cluster: n.cluster, queue: q, ledger: n.ledger, placer: n.placer,
		reservations: n.reservations, shares: s, nominations: n, index: x,
		estimate: estimate, Hopes: map[berth.JobID]time.Time{},
	}
	if r.policy.Preempt {
		r.Searches = maxSearches
	}
	return r
}

// Preempt makes room for a blocked job by ordering other jobs to stop; false if no
// victims release enough.
func (r *Search) Preempt(x *queue.Contender, e *queue.Entry) bool {
	if !r.policy.Preempt || r.Searches == 0 || r.waited(e) < r.policy.PreemptAfter {
		return false
	}
	r.Searches--
	own := r.nominations.ownRoom(e)
	r.nominations.Lift(own) // the job needs no victims for the room kept for its repair
	best := r.choose(x, e)
	if best == nil {
		r.nominations.Restore(own)
		return false
	}
	if len(own) > 0 {
		r.nominations.dropRepairs(e) // the displacement includes the room
		r.placer.Widen()             // any job may have the rest of it
	}
	r.enact(e, best)
	return true
}

// Hope records the time at which a blocked job will have waited long enough to preempt,
// if it could do so now. Only estimates use it.
func (r *Search) Hope(x *queue.Contender, e *queue.Entry) {
	left := r.policy.PreemptAfter - r.waited(e)
	if !r.estimate || !r.policy.Preempt || left <= 0 || r.hoped >= maxHopes {
		return
	}
	r.hoped++
	if r.choose(x, e) != nil {
		r.Hopes[e.ID] = r.Now.Add(left)
	}
}

// choose returns the cheapest displacement for a job; nil if none is enough, or
// if the jobs that stop already release enough.
func (r *Search) choose(x *queue.Contender, e *queue.Entry) *displacement {
	// The job starts after its victims have stopped: held capacity may be needed
	// before it ends.
	r.placer.End = time.Time{}
	r.grantRights(x, e)
	var best *displacement
	for _, group := range r.placer.Groups(e.Class) {
		mark := r.ledger.Mark()
		s := r.displace(e, group)
		r.ledger.Undo(mark)
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
func (r *Search) waited(e *queue.Entry) time.Duration {
	since := e.SubmittedAt
	if e.EligibleAt.After(since) {
		since = e.EligibleAt
	}
	return max(0, r.Now.Sub(since))
}

// displacement is places for all members of a job, and the victims that make room
// for them.
type displacement struct {
	ranks   []cluster.Choice
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
func (r *Search) displace(e *queue.Entry, group string) *displacement {
	s := &displacement{}
	c := e.Class
	defer r.placer.Reopen(c)()
	single := c.Members() == 1
	switch {
	case !single:
		for _, n := range r.releasedNodes() {
			r.giveReleased(n)
		}
	case r.fitsReleased(c, group):
		return s // the search for free capacity failed: released capacity is all there can be
	}
	for range c.Members() {
		found, ok := cluster.Choice{}, false
		if !single {
			found, ok = r.placer.Find(c, nil, group)
		}
		if !ok {
			r.overlaid = single
			victims, some := r.cheapestVictims(e.Class, group, s)
			r.overlaid = false
			if !some {
				return nil
			}
			s.victims = append(s.victims, victims...)
			r.clear(victims, single)
			if found, ok = r.placer.Find(c, nil, group); !ok {
				return nil
			}
		}
		r.ledger.Take(found)
		s.ranks = append(s.ranks, found)
	}
	r.reprieve(s)
	return s
}

// reprieve spares the most expensive victims whose capacity is not needed.
func (r *Search) reprieve(s *displacement) {
	slices.SortStableFunc(s.victims, func(a, b victim) int {
		return cmp.Or(cmp.Compare(b.band, a.band), cmp.Compare(b.cost, a.cost), cluster.CompareIDs(a.Job, b.Job))
	})
	s.victims = slices.DeleteFunc(s.victims, func(v victim) bool {
		for _, g := range v.Ranks {
			if n := r.cluster.Nodes[g.Machine]; n != nil && !hasFree(n, g, v.Ranks) {
				return false
			}
		}
		for _, g := range v.Ranks {
			if n := r.cluster.Nodes[g.Machine]; n != nil {
				r.ledger.Take(cluster.Choice{Node: n, Grant: g})
			}
		}
		return true
	})
}

// hasFree reports whether all that members take of the machine of g is free.
func hasFree(n *cluster.Node, g berth.Grant, ranks []berth.Grant) bool {
	var all cluster.Amount
	for _, o := range ranks {
		if o.Machine == g.Machine {
			all = all.Plus(n, o, 1)
		}
	}
	if !all.Fits(n.Free) {
		return false
	}
	for i, x := range all.GPUs {
		if x > 0 && x > n.FreeMilli[i] && n.FreeMilli[i] != cluster.Unhealthy {
			return false
		}
	}
	return true
}

// cost is the cost of displacing a holder: the GPU time lost, or under order srsf
// the inverse of the service it has to go, so that jobs near their end are spared.
func (r *Search) cost(h *cluster.Holder) float64 {
	if r.policy.Order == queue.SRSF {
		return 1 / max(1e-9, r.policy.Running(h, r.Now))
	}
	return h.Lost(r.Now).Seconds()
}

// enact orders the victims to stop and nominates their capacity for the job.
func (r *Search) enact(e *queue.Entry, s *displacement) {
	holders := make([]*cluster.Holder, 0, len(s.victims))
	for _, v := range s.victims {
		holders = append(holders, v.Holder)
		v.Stopped = r.Number
		r.stops = append(r.stops, v.Holder)
		r.Orders = append(r.Orders, Order{v.Job, v.Version, v.Attempt, e.ID, v.why, v.Lost(r.Now)})
		r.shares.Discharge(v.Holder)
		for _, id := range v.Machines {
			if n := r.cluster.Nodes[id]; n != nil {
				r.reservations.Outdate(n)
				r.ledger.Touch(n)
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
func together(ranks []cluster.Choice) []cluster.Choice {
	var list []cluster.Choice
	for _, c := range ranks {
		i := slices.IndexFunc(list, func(o cluster.Choice) bool { return o.Node == c.Node })
		if i < 0 {
			c.Grant.GPUs = slices.Clone(c.Grant.GPUs)
			list = append(list, c)
			continue
		}
		g := &list[i].Grant
		g.Capacity = g.Capacity.Add(c.Grant.Capacity)
		for _, d := range c.Grant.GPUs {
			if j := slices.IndexFunc(g.GPUs, func(o berth.DeviceShare) bool { return o.Index == d.Index }); j >= 0 {
				g.GPUs[j].Milli += d.Milli
			} else {
				g.GPUs = append(g.GPUs, d)
			}
		}
	}
	return list
}
