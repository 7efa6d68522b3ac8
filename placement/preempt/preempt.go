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

// maxHopes is the number of further searches that serve estimates only.
const maxHopes = 64

// Order is an order to a running job to stop for another job.
type Order struct {
	Job     berth.JobID
	Version int64 // of the row of the job to stop
	Attempt int
	For     berth.JobID // the blocked job
	Why     Reason
	Lost    time.Duration // GPU time since the last verified checkpoint, plus the restart
}

// Reason is the rule that allows a preemption.
type Reason string

// The reasons for a preemption.
const (
	Band  Reason = "priority"  // the blocked job is of a higher band
	Share Reason = "share"     // the victim's tenant holds more than its share, the other less
	Quota Reason = "guarantee" // the victim's tenant borrows; the other stays within its guarantee
	Rank  Reason = "service"   // the blocked job has much less remaining service
)

// Search preempts running jobs for blocked ones. It stops gangs as a whole, prefers the
// victims that lose the least work, and spares every job that need not stop.
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

	Budget
	Barred   map[berth.JobID]bool // jobs that must not preempt; nil: none
	Orders   []Order
	stops    []*cluster.Holder         // jobs that this plan orders to stop
	searched berth.JobID               // the last job for which Preempt has searched victims
	estimate bool                      // Hope records times
	hoped    int                       // searches made for Hope
	Hopes    map[berth.JobID]time.Time // by blocked job; see Hope

	releasing     []*cluster.Node // see releasedNodes
	released      [][]berth.Grant // by Node.Index; capacity that stopping jobs release
	releasedKnown bool            // releasing and released are computed
	overlaid      bool            // searches count released capacity as free

	onlyYielding bool // the present blocked job may stop only jobs that give way to every other job

	rights rights     // of the present blocked job
	found  []prospect // buffer of prospects
	passed []int      // by match: length of the ranking that prospects has read
	picked []victim   // buffer of victimsOn
	best   []victim   // buffer of cheapestVictims
}

// NewSearch returns the victim search of a plan. With estimate set, Hope records the times
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
	if r.cluster.Yielding > 0 {
		r.Yields, r.vain = maxSearches, map[*cluster.Class]time.Duration{}
	}
	return r
}

// Preempt orders other jobs to stop for a blocked job, and nominates their capacity, in
// place of all earlier nominations for the job. If a job with nominations needs no victims, its
// places are nominated alone, except for a gang that has only the nominations of its repair: these
// last for a short time and yield to other gangs, and the new ones would do neither. Preempt
// returns false if no allowed victims release enough,
// if it is barred, if it would delay a reserved start, or if the plan has no searches left. A job that has not waited
// for PreemptAfter stops only jobs that give way to every other job, and so does any job of a policy without Preempt.
func (r *Search) Preempt(x *queue.Contender, e *queue.Entry) bool {
	ordinary, ok := count(r, e)
	if !ok {
		return false
	}
	r.onlyYielding = !ordinary
	if ordinary {
		r.searched = e.ID
	}
	own := r.nominations.withdraw(e) // the job needs no victims for capacity that is nominated for it
	renewReleased(r, machinesOf(own))
	nominated := slices.ContainsFunc(own, func(m Mark) bool { return !m.Repair })
	best := r.choose(x, e, ordinary && nominated)
	if best == nil && !ordinary && len(own) == 0 {
		r.fail(e)
	}
	if best == nil || delays(r, e, own, best) {
		r.nominations.reinstate(own)
		renewReleased(r, machinesOf(own))
		return false
	}
	r.nominations.retire(e, own)
	r.enact(e, best, own)
	return true
}

// Hope records the time at which a blocked job will have waited for PreemptAfter, if
// preemption would succeed now. Only estimates use it.
func (r *Search) Hope(x *queue.Contender, e *queue.Entry) {
	left := r.policy.PreemptAfter - waited(e, r.Now)
	if !r.estimate || !r.policy.Preempt || left <= 0 || r.hoped >= maxHopes {
		return
	}
	r.hoped++
	r.onlyYielding = false
	if r.choose(x, e, false) != nil {
		r.Hopes[e.ID] = r.Now.Add(left)
	}
}

// choose returns the cheapest displacement for a job, over all groups of machines. It
// returns nil if no displacement gives enough capacity. If stopping jobs already release
// enough, it returns nil as well, unless the job is nominated: its places must become its
// nominations, or a lower job may preempt others and take them.
func (r *Search) choose(x *queue.Contender, e *queue.Entry, nominated bool) *displacement {
	// The job starts only after its victims have stopped, so its end is unknown here: it
	// must not count on held capacity.
	r.placer.End, r.placer.Over = time.Time{}, time.Time{}
	r.placer.Latest = r.Now.Add(r.policy.NominationFor)
	defer func() { r.placer.Latest = time.Time{} }()
	if e.TimeLimit > 0 {
		r.placer.Over = r.placer.Latest.Add(e.TimeLimit)
	}
	r.grantRights(x, e)
	var best *displacement
	for _, group := range fit.Roomy(r.placer, e.Class) {
		mark := r.ledger.Mark()
		s := r.displace(e, group, nominated)
		r.ledger.Undo(mark)
		if s != nil && len(s.victims) == 0 {
			if nominated {
				return s
			}
			return nil
		}
		if s != nil && (best == nil || s.cost() < best.cost()) {
			best = s
		}
	}
	return best
}

// waited returns the time for which the job has been eligible at a time.
func waited(e *queue.Entry, now time.Time) time.Duration {
	since := e.SubmittedAt
	if e.EligibleAt.After(since) {
		since = e.EligibleAt
	}
	return max(0, now.Sub(since))
}

// displacement is a set of places for all members of a job, together with the victims.
type displacement struct {
	ranks   []cluster.Choice
	victims []victim
}

// cost returns the sum over all victims.
func (s *displacement) cost() float64 {
	sum := 0.0
	for _, v := range s.victims {
		sum += v.cost
	}
	return sum
}

// displace places all members of a job in one group, with victims on machines without room;
// nil if that is impossible. The caller reverts the entries in the ledger. Without victims, the
// place of a single job is known only if the job is nominated.
//
// Gangs see released capacity in the ledger from the start. A single job does not: its
// search for free capacity has just failed, so either released capacity is enough, or one
// machine needs victims, where overlaid adds the released capacity.
func (r *Search) displace(e *queue.Entry, group string, nominated bool) *displacement {
	s := &displacement{}
	c := e.Class
	defer r.placer.Reopen(c)()
	single := c.Members() == 1
	switch {
	case !single:
		for _, n := range r.releasedNodes() {
			r.giveReleased(n)
		}
		if short(r, c, group) {
			return nil
		}
	default:
		if found, ok := r.findReleased(c, group, nominated); ok {
			s.ranks = append(s.ranks, found)
			return s // released capacity is enough, so there are no victims
		}
	}
	for _, p := range c.Parts {
		for range p.Members {
			if !r.displaceMember(p.Class, group, s, single) {
				return nil
			}
		}
	}
	r.reprieve(s)
	return s
}

// displaceMember adds the place of one member to a displacement, with victims if no machine has room.
func (r *Search) displaceMember(c *cluster.Class, group string, s *displacement, single bool) bool {
	found, ok := cluster.Choice{}, false
	if !single {
		found, ok = r.placer.Find(c, nil, group)
	}
	if !ok {
		r.overlaid = single
		victims, some := r.cheapestVictims(c, group, s)
		r.overlaid = false
		if !some {
			return false
		}
		s.victims = append(s.victims, victims...)
		r.clear(victims, single)
		if found, ok = r.placer.Find(c, nil, group); !ok {
			return false
		}
	}
	r.ledger.Take(found)
	s.ranks = append(s.ranks, found)
	return true
}

// reprieve spares the most expensive victims that turn out to be unnecessary. Victims of
// one member may free enough for others, since gangs stop as a whole.
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
		// The spared victim keeps its capacity, so that this capacity spares no further
		// victim.
		for _, g := range v.Ranks {
			if n := r.cluster.Nodes[g.Machine]; n != nil {
				r.ledger.Take(cluster.Choice{Node: n, Grant: g})
			}
		}
		return true
	})
}

// hasFree reports whether the capacity that ranks hold on the machine of g is still free,
// with all members together.
func hasFree(n *cluster.Node, g berth.Grant, ranks []berth.Grant) bool {
	var all cluster.Amount
	for _, o := range ranks {
		if o.Machine == g.Machine {
			all = all.Plus(n, o, 1)
		}
	}
	if !all.Fits(n.Free) || !cluster.MayStay(n, g) {
		return false
	}
	for i, x := range all.GPUs {
		if x > 0 && x > n.FreeMilli[i] && n.FreeMilli[i] != cluster.Unhealthy {
			return false
		}
		// The beneficiary may be of another tenant, and have a share of the device now.
		if x > 0 && !all.MayJoin(n, i) {
			return false
		}
	}
	return true
}

// cost returns the cost of preempting a holder: the lost GPU time in GPU seconds. In order
// srsf it is the inverse of the remaining service instead, so that jobs near their end are
// the last to stop.
func (r *Search) cost(h *cluster.Holder) float64 {
	if r.policy.Order == queue.SRSF {
		return 1 / max(1e-9, r.policy.Running(h, r.Now))
	}
	return h.Lost(r.Now).Seconds()
}

// enact orders the victims to stop and nominates their capacity for the job, in place of
// its earlier nominations, own. The victims leave the shares of their accounts at once.
// Capacity that they release beyond the nominations is available to later searches of the
// plan.
func (r *Search) enact(e *queue.Entry, s *displacement, own []Mark) {
	holders, changed := make([]*cluster.Holder, 0, len(s.victims)), machinesOf(own)
	for _, v := range s.victims {
		holders, changed = append(holders, v.Holder), append(changed, v.Machines...)
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
	before := len(r.nominations.Written)
	r.nominations.nominate(e, together(s.ranks), holders)
	written := r.nominations.Written[before:]
	r.nominations.keepRest(own, written)
	for _, m := range written {
		changed = append(changed, m.Machine)
	}
	renewReleased(r, changed)
}

// together returns one choice per machine, with the sum of the machine's grants.
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
