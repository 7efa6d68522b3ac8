package preempt

import (
	"slices"
	"time"

	"berth"
	"berth/placement/backfill"
	"berth/placement/cluster"
	"berth/placement/queue"
)

// A blocked job may have nominations that do not give it room. If it finds no victims either, it gets a reserved
// start. Its own nominations must not delay that start, and the start replaces them: a nomination that the job cannot
// start with only keeps capacity idle. docs/design/states.md has the table of all cases.

// Withdrawal is a decision to delete the nominations of a job on a machine, except nominations for a repair.
// ExpiresAt identifies them: the nominations of a later preemption expire at another time, and stay.
type Withdrawal struct {
	For       berth.JobID // the beneficiary
	Machine   berth.MachineID
	ExpiresAt time.Time // zero: never
}

// site is the state of a machine with a nomination before its job gets a reserved start.
type site struct {
	firm         bool // the reserved start of another job depends on the machine
	reservations int
}

// Reserve reserves a start for a blocked job; see backfill.Reservations.Reserve. The capacity nominated for the job
// counts as free for its own start. Others may count on that capacity from the reserved start on, or from the expiry.
//
// If the plan has searched victims in vain, Reserve withdraws the nominations that do not serve the reserved start: the
// start is later than their expiry, or on other machines. Their capacity stays kept for the rest of the plan, since the
// leader has yet to delete them. Without such a search the job may preempt others in the next plan, and needs them.
func (r *Search) Reserve(e *queue.Entry) (at time.Time, ok bool) {
	n := r.nominations
	own := n.Marks[e.ID]
	if len(own) == 0 {
		return r.reservations.Reserve(e)
	}
	n.Lift(own)
	n.vacate(e, own)
	before := make([]site, len(own))
	for i, m := range own {
		before[i] = site{r.ledger.IsFirm(m.node), len(r.reservations.On(m.node))}
	}
	at, ok = r.reservations.Reserve(e)
	final := ok && (!r.policy.Preempt || r.searched == e.ID)
	for i := range own {
		m := &own[i]
		if !ok {
			occupy(n, e, m)
			continue
		}
		until, late := at, !m.ExpiresAt.IsZero() && m.ExpiresAt.Before(at)
		if late {
			until = m.ExpiresAt
		}
		if before[i].firm && !m.Repair && !m.until.IsZero() && m.until.Before(until) {
			until, late = m.until, true // the other start depends on that end
		}
		uses := len(r.reservations.On(m.node)) > before[i].reservations
		if final && !m.Repair && (late || !uses) {
			listWithdrawn(n, m.Nomination)
			until = r.Now
		}
		occupyUntil(n, e, m, until)
	}
	return at, ok
}

// listWithdrawn lists a nomination to delete. The nominations of a job on one machine are one withdrawal.
func listWithdrawn(r *Nominations, m Nomination) {
	r.Released = append(r.Released, m)
	if w := (Withdrawal{m.For, m.Machine, m.ExpiresAt}); !slices.Contains(r.Withdrawn, w) {
		r.Withdrawn = append(r.Withdrawn, w)
	}
}

// vacate removes a job from the occupants of the capacity that is nominated for it, and from the reservations of
// capacity that its victims still hold.
func (r *Nominations) vacate(e *queue.Entry, own []Mark) {
	for _, m := range own {
		if m.Holder == nil {
			r.reservations.Vacate(m.node, e.ID, m.grant)
		} else if m.later != nil {
			r.reservations.Revoke(m.node, *m.later)
		}
	}
}

// occupy reverts Lift and vacate for one nomination.
func occupy(r *Nominations, e *queue.Entry, m *Mark) {
	if m.Holder != nil {
		if m.later != nil {
			r.reservations.Keep(m.node, *m.later)
		}
		return
	}
	subtract(r, m, r.occupant(e, *m, m.start))
}

// occupyUntil is occupy, except that the job leaves the capacity at the given time.
func occupyUntil(r *Nominations, e *queue.Entry, m *Mark, until time.Time) {
	switch {
	case m.Holder == nil:
		running := cluster.Running{Job: e.ID, Ranks: []berth.Grant{m.grant}, Stopping: true, StopBy: until}
		subtract(r, m, &cluster.Holder{Running: running})
	case m.later != nil && m.later.At.Before(until):
		m.later = &backfill.Reservation{At: m.later.At, Grant: m.later.Grant, Until: until}
		r.reservations.Keep(m.node, *m.later)
	default:
		m.later = nil
	}
}

// subtract keeps free nominated capacity from all other jobs, with the given occupant; nil: its end is unknown. A hold
// on the machine may have taken that capacity meanwhile, so it is computed again.
func subtract(r *Nominations, m *Mark, occupant *cluster.Holder) {
	n, h := m.node, r.ledger.HoldOn(m.node)
	var was berth.Grant
	if h != nil {
		was = h.Grant
		r.ledger.Resize(h, cluster.Amount{})
	}
	r.ledger.Move(n, func() { n.Subtract(m.grant) })
	if occupant != nil {
		r.reservations.Occupy(n, occupant)
	}
	if h == nil {
		return
	}
	r.reservations.Rehold(h)
	if !cluster.Covers(n, h.Grant, was) {
		r.placer.Widen() // failed searches of this plan count no longer
	}
}
