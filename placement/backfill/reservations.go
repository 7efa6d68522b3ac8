package backfill

import (
	"slices"
	"time"

	"berth"
	"berth/placement/cluster"
	"berth/placement/fit"
	"berth/placement/queue"
)

// Reservations keeps capacity for jobs that start later: blocked jobs at the head
// of the queue, and jobs whose victims have been ordered to stop. Other jobs
// may use that capacity only until it is needed.
type Reservations struct {
	*cluster.Moment
	policy  *queue.Policy
	cluster *cluster.Cluster
	ledger  *cluster.Ledger
	placer  *fit.Placer
	index   *Index

	lists   [][]Reservation // by Hold.Index, each by time
	Longest time.Time       // the latest start of a reservation
	Limit   time.Duration   // time limit of the present job of Reserve or Places; 0: none
	Heads   int             // jobs with a reserved start
	Starts  map[berth.JobID]time.Time
	fresh   map[*cluster.Node][]*cluster.Holder // jobs that this plan has started
	changed bool                                // agendas include changes of this plan, see Finish
	events  []release                           // buffer
	chosen  []Opening                           // of the parts that Places has placed, of the present job
	visits  int                                 // machines that Places has read
	bare    bool                                // Places counts no reserved start and no maintenance window
}

// NewReservations returns the reservations of a plan, none so far.
func NewReservations(at *cluster.Moment, policy *queue.Policy, l *cluster.Ledger, p *fit.Placer,
	x *Index) *Reservations {
	return &Reservations{
		Moment: at, policy: policy, cluster: l.Cluster, ledger: l, placer: p, index: x,
		fresh: map[*cluster.Node][]*cluster.Holder{}, Starts: map[berth.JobID]time.Time{},
	}
}

// Reservation is capacity of one machine that belongs to a job from a time on.
type Reservation struct {
	At    time.Time
	Grant berth.Grant
	Until time.Time // when the job releases the capacity; zero: unknown
	Firm  bool      // a start that no other job may delay; a nomination is not firm
	Start bool      // of a job in Reservations.Starts
}

// Keep reserves capacity of a machine from x.At on. It holds free capacity only as far as
// occupants do not release enough before x.At.
func (r *Reservations) Keep(n *cluster.Node, x Reservation) {
	h := r.ledger.OpenHold(n)
	if h.Index == len(r.lists) {
		r.lists = append(r.lists, nil)
	}
	list := r.lists[h.Index]
	i, _ := slices.BinarySearchFunc(list, x.At, func(y Reservation, t time.Time) int {
		if y.At.After(t) {
			return 1
		}
		return -1
	})
	list = slices.Insert(list, i, x)
	r.lists[h.Index] = list
	h.Until, h.Firm = list[0].At, h.Firm || x.Firm
	if x.At.After(r.Longest) {
		r.Longest = x.At
	}
	r.Rehold(h)
}

// Revoke removes a reservation that Keep has added. The reservation must not be firm.
func (r *Reservations) Revoke(n *cluster.Node, x Reservation) {
	h := r.ledger.HoldOn(n)
	if h == nil {
		return
	}
	list := r.lists[h.Index]
	i := slices.IndexFunc(list, func(y Reservation) bool {
		return !y.Firm && y.At.Equal(x.At) && y.Until.Equal(x.Until) && y.Grant.Capacity == x.Grant.Capacity &&
			slices.Equal(y.Grant.GPUs, x.Grant.GPUs)
	})
	if i < 0 {
		return
	}
	list = slices.Delete(list, i, i+1)
	r.lists[h.Index], h.Until = list, time.Time{}
	if len(list) > 0 {
		h.Until = list[0].At
	}
	r.Rehold(h)
}

// On lists the reservations of a machine by time.
func (r *Reservations) On(n *cluster.Node) []Reservation {
	if h := r.ledger.HoldOn(n); h != nil {
		return r.lists[h.Index]
	}
	return nil
}

// Rehold recomputes the hold of a machine from its reservations. A hold that shrinks
// frees capacity, so failed searches of this plan count no longer.
func (r *Reservations) Rehold(h *cluster.Hold) {
	was := h.Grant
	r.ledger.Resize(h, r.needed(h))
	ended := r.ledger.Claim(h, claimant(r.lists[h.Index]))
	if ended || !cluster.Covers(h.Node, h.Grant, was) {
		r.placer.Widen()
	}
}

// claimant returns the tenant of the reservations of a machine of one tenant; "": none of them has a tenant.
func claimant(list []Reservation) (t berth.TenantID) {
	for i := range list {
		t = cluster.Claimant(t, list[i].Grant.Tenant)
	}
	return t
}

// needed returns the free capacity that a machine's reservations need. For the start of
// each reservation, the shortage is the sum of the reservations active then, less the
// releases up to then; needed is the largest shortage, resource by resource.
func (r *Reservations) needed(h *cluster.Hold) (out cluster.Amount) {
	n, list := h.Node, r.lists[h.Index]
	agenda := r.agenda(n)
	for i := range list {
		if i+1 < len(list) && list[i+1].At.Equal(list[i].At) {
			continue // the last reservation of a moment sums up all of them
		}
		if afterWindow(n, list[i].At) {
			break // any job that starts now leaves before
		}
		var left cluster.Amount
		for _, x := range list[:i+1] {
			if x.Until.IsZero() || x.Until.After(list[i].At) {
				left = left.Plus(n, x.Grant, 1)
			}
		}
		for _, x := range agenda {
			if r.From(x.at).After(list[i].At) {
				break
			}
			left = left.Plus(n, *x.grant, -1)
		}
		out = out.Most(left)
	}
	// A share of a device that another tenant shares now can start only when that tenant has left:
	// the tenant must not get more of the device until then.
	for i := range list {
		for _, d := range list[i].Grant.GPUs {
			if r.ledger.Blocked(h, d) {
				out.Whole(n, d)
			}
		}
	}
	return out
}

// Ends returns the time at which a holder's capacity becomes free: now if this plan
// orders the job to stop, otherwise by its limits. ok is false without a known end.
func (r *Reservations) Ends(h *cluster.Holder) (time.Time, bool) {
	if h.Stopped == r.Number {
		return r.Now, true
	}
	return h.Ends(r.policy.AssumeRun)
}

// Occupy adds a job to the occupants of a machine for the rest of the plan.
func (r *Reservations) Occupy(n *cluster.Node, h *cluster.Holder) {
	r.changed = true
	r.fresh[n] = append(r.fresh[n], h)
	r.index.drop(n)
}

// Forget removes a job from the occupants that this plan has added to a machine.
func (r *Reservations) Forget(n *cluster.Node, job berth.JobID) {
	r.fresh[n] = slices.DeleteFunc(r.fresh[n], func(h *cluster.Holder) bool { return h.Job == job })
	r.index.drop(n)
}

// Vacate removes one grant of a job from the occupants that this plan has added to a machine.
func (r *Reservations) Vacate(n *cluster.Node, job berth.JobID, g berth.Grant) {
	i := slices.IndexFunc(r.fresh[n], func(h *cluster.Holder) bool {
		return h.Job == job && h.Ranks[0].Capacity == g.Capacity && slices.Equal(h.Ranks[0].GPUs, g.GPUs)
	})
	if i >= 0 {
		r.fresh[n] = slices.Delete(r.fresh[n], i, i+1)
	}
	r.index.drop(n)
}

// Outdate makes the cached releases of a machine stale, since one of its occupants
// stops.
func (r *Reservations) Outdate(n *cluster.Node) {
	r.changed = true
	r.index.drop(n)
}

// Started adds a job to the occupants of its machines.
func (r *Reservations) Started(e *queue.Entry, ranks []berth.Grant) {
	h := &cluster.Holder{Running: cluster.Running{Job: e.ID, Ranks: ranks, StartedAt: r.Now, TimeLimit: e.TimeLimit,
		Remaining: e.Remaining, Tenant: e.Tenant, Class: e.Job.Class, LikeName: e.LikeName, LikeData: e.LikeData,
		SubmittedAt: e.SubmittedAt, Done: e.Done}, Capacity: e.Class.All}
	for i, g := range ranks {
		if !slices.ContainsFunc(ranks[:i], func(o berth.Grant) bool { return o.Machine == g.Machine }) {
			r.Occupy(r.cluster.Nodes[g.Machine], h)
		}
	}
}

// Leaves returns the time at which a job that starts at the given time releases its
// capacity, or the zero time if this is unknown.
func (r *Reservations) Leaves(start time.Time, e *queue.Entry) time.Time {
	if t := r.length(e); t > 0 {
		return start.Add(t)
	}
	return time.Time{}
}

// length returns the assumed run time of a job, restart included; 0: unbounded.
func (r *Reservations) length(e *queue.Entry) time.Duration {
	if t := queue.Remaining(e.Remaining, e.TimeLimit); t > 0 {
		return t + e.RestartCost
	}
	return r.policy.AssumeRun
}

// Finish drops the cached agendas of machines that this plan has touched: they include
// starts and stops that may never be committed.
func (r *Reservations) Finish() {
	if r.changed {
		for _, n := range r.ledger.Touched {
			r.index.drop(n)
		}
	}
}
