package preempt

import (
	"slices"
	"strings"

	"berth"
	"berth/placement/backfill"
	"berth/placement/cluster"
	"berth/placement/fit"
	"berth/placement/queue"
)

// Nominations is the capacity nominated for single jobs: it was free, or victims
// release it. The engine keeps it for those jobs alone.
type Nominations struct {
	*cluster.Moment
	policy       *queue.Policy
	cluster      *cluster.Cluster
	ledger       *cluster.Ledger
	placer       *fit.Placer
	reservations *backfill.Reservations

	Marks    map[berth.JobID][]Mark
	Classes  map[*cluster.Class]bool      // of the jobs with nominations
	Unmet    int                          // jobs with nominations that are still to be decided
	Repairs  bool                         // some nominations keep a gang's own capacity
	promises map[berth.JobID][]Nomination // by victim
	Released []Nomination                 // no job needs them any longer
	Written  []Nomination                 // of this plan
}

// NewNominations returns the nominations of a plan, none so far.
func NewNominations(at *cluster.Moment, policy *queue.Policy, l *cluster.Ledger, p *fit.Placer,
	r *backfill.Reservations) *Nominations {
	return &Nominations{
		Moment: at, policy: policy, cluster: l.Cluster, ledger: l, placer: p, reservations: r,
		promises: map[berth.JobID][]Nomination{},
	}
}

// Mark is a nomination in a plan.
type Mark struct {
	Nomination
	node   *cluster.Node
	grant  berth.Grant // the part that was free and is kept; none while victim holds it
	Holder *cluster.Holder
}

// Load keeps the nominated capacity from all other jobs, and lists the nominations
// that no job needs any longer.
func (r *Nominations) Load(list []Nomination, q *queue.Queue) {
	if len(list) == 0 {
		return
	}
	r.Marks, r.Classes = map[berth.JobID][]Mark{}, map[*cluster.Class]bool{}
	for _, m := range list {
		e, n := q.Jobs[m.For], r.cluster.Nodes[m.Machine]
		switch {
		case e == nil && n != nil && m.Repair && r.cluster.Running[m.For] != nil:
			r.withhold(n, m) // the rest of its gang stops
			continue
		case e == nil, n == nil, !m.ExpiresAt.IsZero() && !m.ExpiresAt.After(r.Now):
			r.Released = append(r.Released, m)
			continue
		case e.Assumed:
			continue // it has its room
		}
		r.add(e, n, m)
	}
	r.Unmet = len(r.Marks)
}

// add keeps one nomination for a job that waits.
func (r *Nominations) add(e *queue.Entry, n *cluster.Node, m Nomination) {
	x := Mark{Nomination: m, node: n,
		grant: berth.Grant{Machine: n.ID, Epoch: n.Epoch, Capacity: m.Capacity, GPUs: m.GPUs}}
	if h := r.cluster.Running[m.Victim]; h != nil && slices.Contains(h.Machines, m.Machine) {
		x.Holder = h
		if at, ok := r.reservations.Ends(h); ok && n.Placeable() {
			at = r.From(at)
			r.reservations.Keep(n, backfill.Reservation{At: at, Grant: x.grant, Until: r.reservations.Leaves(at, e)})
		}
	} else {
		x.grant = cluster.Clamp(n, x.grant)
		r.ledger.Move(n, func() { n.Subtract(x.grant) })
		r.reservations.Occupy(n, &cluster.Holder{Running: cluster.Running{
			Job: e.ID, Ranks: []berth.Grant{x.grant}, StartedAt: r.Now, TimeLimit: e.TimeLimit, Remaining: e.Remaining,
		}})
	}
	r.Classes[e.Class] = true
	r.Repairs = r.Repairs || m.Repair
	r.Marks[m.For] = append(r.Marks[m.For], x)
	r.promises[m.Victim] = append(r.promises[m.Victim], m)
}

// Lift returns the kept capacity of nominations to the ledger.
func (r *Nominations) Lift(marks []Mark) {
	for _, m := range marks {
		if m.Holder == nil {
			r.ledger.Move(m.node, func() { m.node.Add(m.grant) })
		}
	}
}

// Restore reverts Lift.
func (r *Nominations) Restore(marks []Mark) {
	for _, m := range marks {
		if m.Holder == nil {
			r.ledger.Move(m.node, func() { m.node.Subtract(m.grant) })
		}
	}
}

// Awaits reports whether the job has room as soon as its victims have stopped.
func (r *Nominations) Awaits(e *queue.Entry) bool {
	marks := r.Marks[e.ID]
	if len(marks) == 0 {
		return false
	}
	c, start := e.Class, r.ledger.Mark()
	defer r.placer.Reopen(c)()
	r.Lift(marks)
	for _, m := range marks {
		if m.Holder != nil {
			r.ledger.Give(m.node, m.grant)
		}
	}
	fits := r.placer.FitsAnywhere(c)
	r.ledger.Undo(start)
	r.Restore(marks)
	return fits
}

// Started drops the nominations of a job that starts: it occupies the capacity
// itself now.
func (r *Nominations) Started(e *queue.Entry) []Mark {
	marks := r.Marks[e.ID]
	if len(marks) == 0 {
		return nil
	}
	for _, m := range marks {
		r.Released = append(r.Released, m.Nomination)
		r.reservations.Forget(m.node, e.ID)
	}
	delete(r.Marks, e.ID)
	return marks
}

// Rehold recomputes the holds on the machines of nominations: the job may have
// taken other devices than were kept for it.
func (r *Nominations) Rehold(marks []Mark) {
	for _, m := range marks {
		if h := r.ledger.HoldOn(m.node); h != nil {
			r.reservations.Rehold(h)
		}
	}
}

// nominate keeps a place of a job for it: the free part from now on, the rest from
// when the victims have stopped.
func (r *Nominations) nominate(e *queue.Entry, c cluster.Choice, victims []*cluster.Holder) {
	for _, m := range splitGrant(e, c.Grant, c.Node, victims) {
		if r.policy.NominationFor > 0 {
			m.ExpiresAt = r.Now.Add(r.policy.NominationFor)
		}
		r.Written = append(r.Written, m)
		r.promises[m.Victim] = append(r.promises[m.Victim], m)
		g := berth.Grant{Machine: m.Machine, Epoch: c.Node.Epoch, Capacity: m.Capacity, GPUs: m.GPUs}
		if m.Victim == "" {
			r.ledger.Take(cluster.Choice{Node: c.Node, Grant: cluster.Clamp(c.Node, g)})
		} else {
			r.reservations.Keep(c.Node,
				backfill.Reservation{At: r.Now, Grant: g, Until: r.reservations.Leaves(r.Now, e)})
		}
	}
}

// unpromised is the capacity that a stopping holder releases on a machine, less
// the nominations of it.
func (r *Nominations) unpromised(n *cluster.Node, h *cluster.Holder) berth.Grant {
	var a cluster.Amount
	for _, g := range h.Ranks {
		if g.Machine == n.ID {
			a = a.Plus(n, g, 1)
		}
	}
	for _, m := range r.promises[h.Job] {
		if m.Machine == n.ID {
			a = a.Plus(n, berth.Grant{Capacity: m.Capacity, GPUs: m.GPUs}, -1)
		}
	}
	return a.Grant(n)
}

// splitGrant splits a grant by who gives it: what is free first, then each victim
// in turn.
func splitGrant(e *queue.Entry, g berth.Grant, n *cluster.Node, victims []*cluster.Holder) []Nomination {
	var list []Nomination
	left := cluster.Amount{}.Plus(n, g, 1)
	part := func(from berth.Grant, victim berth.JobID) {
		x := draw(n, &left, from)
		if x.Capacity != (berth.Capacity{}) || len(x.GPUs) > 0 {
			list = append(list, Nomination{For: e.ID, Machine: n.ID, Capacity: x.Capacity, GPUs: x.GPUs,
				Victim: victim})
		}
	}
	for _, h := range victims {
		for _, v := range h.Ranks {
			if v.Machine == n.ID {
				part(v, h.Job)
			}
		}
	}
	part(left.Grant(n), "")
	slices.SortStableFunc(list, func(a, b Nomination) int {
		return strings.Compare(string(a.Victim),
			string(b.Victim))
	})
	return list
}

// draw takes from what is left as much as a grant can give.
func draw(n *cluster.Node, left *cluster.Amount, from berth.Grant) berth.Grant {
	take := func(x *int64, y int64) int64 {
		d := max(0, min(*x, y))
		*x -= d
		return d
	}
	got := berth.Grant{Machine: n.ID, Capacity: berth.Capacity{
		CPUMilli: take(&left.CPUMilli, from.Capacity.CPUMilli), MemoryMiB: take(&left.MemoryMiB,
			from.Capacity.MemoryMiB),
		DiskMiB: take(&left.DiskMiB, from.Capacity.DiskMiB),
	}}
	for _, d := range from.GPUs {
		i := n.Device(d.Index)
		if i < 0 {
			continue
		}
		if milli := take(&left.GPUs[i], d.Milli); milli > 0 {
			got.GPUs = append(got.GPUs, berth.DeviceShare{Index: d.Index, Milli: milli})
			got.Capacity.GPUMilli += milli
		}
	}
	return got
}
