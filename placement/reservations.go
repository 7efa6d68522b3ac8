package placement

import (
	"slices"
	"time"

	"berth"
)

// reservations keeps capacity for jobs that start later: blocked jobs at the head
// of the queue, and jobs for which victims have been ordered to stop. Other jobs
// may use that capacity only until it is needed.
type reservations struct {
	*moment
	policy  *Policy
	cluster *cluster
	ledger  *ledger
	placer  *placer
	index   *releaseIndex

	lists   [][]reservation // by hold.index, each by time
	longest time.Time       // the last time at which any of them begins
	heads   int             // jobs with a reserved start
	starts  map[berth.JobID]time.Time
	fresh   map[*node][]*holder // started by this plan
	changed bool                // occupants differ from the rows
	events  []release           // buffer
}

// newReservations returns the reservations of a plan, none so far.
func newReservations(at *moment, policy *Policy, l *ledger, p *placer, x *releaseIndex) *reservations {
	return &reservations{
		moment: at, policy: policy, cluster: l.cluster, ledger: l, placer: p, index: x,
		fresh: map[*node][]*holder{}, starts: map[berth.JobID]time.Time{},
	}
}

// reservation is capacity that a job has from a time on.
type reservation struct {
	at    time.Time
	grant berth.Grant
	until time.Time // when the job gives it back; zero: unknown
	firm  bool      // a start that no other job may delay; a nomination is not firm
}

// keep reserves capacity of a machine. It holds as much of the free capacity as
// the occupants that end before do not supply.
func (r *reservations) keep(n *node, x reservation) {
	h := r.ledger.openHold(n)
	if h.index == len(r.lists) {
		r.lists = append(r.lists, nil)
	}
	list := r.lists[h.index]
	i, _ := slices.BinarySearchFunc(list, x.at, func(y reservation, t time.Time) int {
		if y.at.After(t) {
			return 1
		}
		return -1
	})
	list = slices.Insert(list, i, x)
	r.lists[h.index] = list
	h.until, h.firm = list[0].at, h.firm || x.firm
	if x.at.After(r.longest) {
		r.longest = x.at
	}
	r.rehold(h)
}

// on lists the reservations of a machine by time.
func (r *reservations) on(n *node) []reservation {
	if h := r.ledger.holdOn(n); h != nil {
		return r.lists[h.index]
	}
	return nil
}

// rehold recomputes a hold.
func (r *reservations) rehold(h *hold) {
	was := h.grant
	r.ledger.resize(h, r.needed(h))
	if !covers(h.node, h.grant, was) {
		r.placer.widen()
	}
}

// needed is the part of the free capacity that reservations need: the largest
// shortage at any of their times, after the releases before it.
func (r *reservations) needed(h *hold) (out amount) {
	n, list := h.node, r.lists[h.index]
	agenda := r.agenda(n)
	for i := range list {
		if i+1 < len(list) && list[i+1].at.Equal(list[i].at) {
			continue
		}
		var left amount
		for _, x := range list[:i+1] {
			if x.until.IsZero() || x.until.After(list[i].at) {
				left = left.plus(n, x.grant, 1)
			}
		}
		for _, x := range agenda {
			if r.from(x.at).After(list[i].at) {
				break
			}
			left = left.plus(n, *x.grant, -1)
		}
		out = out.most(left)
	}
	return out
}

// ends returns the time at which a holder's capacity is free: now if this plan
// orders it to stop.
func (r *reservations) ends(h *holder) (time.Time, bool) {
	if h.stopped == r.number {
		return r.now, true
	}
	return h.ends(r.policy.AssumeRun)
}

// occupy adds a job to the occupants of a machine for the rest of the plan.
func (r *reservations) occupy(n *node, h *holder) {
	r.changed = true
	r.fresh[n] = append(r.fresh[n], h)
	r.index.drop(n)
}

// forget removes a job from the occupants that this plan has added to a machine.
func (r *reservations) forget(n *node, job berth.JobID) {
	r.fresh[n] = slices.DeleteFunc(r.fresh[n], func(h *holder) bool { return h.Job == job })
	r.index.drop(n)
}

// outdate makes the cached releases of a machine stale, since one of its occupants
// stops.
func (r *reservations) outdate(n *node) {
	r.changed = true
	r.index.drop(n)
}

// started adds a job to the occupants of its machines.
func (r *reservations) started(e *entry, ranks []berth.Grant) {
	h := &holder{Running: Running{Job: e.ID, Ranks: ranks, StartedAt: r.now, TimeLimit: e.TimeLimit,
		Remaining: e.Remaining}}
	for i, g := range ranks {
		if !slices.ContainsFunc(ranks[:i], func(o berth.Grant) bool { return o.Machine == g.Machine }) {
			r.occupy(r.cluster.nodes[g.Machine], h)
		}
	}
}

// leaves returns the time at which a job that starts at the given time gives its
// capacity back; zero if that is unknown.
func (r *reservations) leaves(start time.Time, e *entry) time.Time {
	if t := r.length(e); t > 0 {
		return start.Add(t)
	}
	return time.Time{}
}

// length is the assumed run time of a job; 0: unbounded.
func (r *reservations) length(e *entry) time.Duration {
	if t := remaining(e.Remaining, e.TimeLimit); t > 0 {
		return t + e.RestartCost
	}
	return r.policy.AssumeRun
}

// finish drops the cached agendas that this plan has changed.
func (r *reservations) finish() {
	if r.changed {
		for _, n := range r.ledger.touched {
			r.index.drop(n)
		}
	}
}
