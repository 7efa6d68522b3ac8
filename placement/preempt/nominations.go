package preempt

import (
	"slices"
	"strings"
	"time"

	"berth"
	"berth/placement/backfill"
	"berth/placement/cluster"
	"berth/placement/fit"
	"berth/placement/queue"
)

// Nominations keeps the capacity nominated for single jobs from all other jobs during a
// plan. That capacity is already free, or victims will release it.
type Nominations struct {
	*cluster.Moment
	policy       *queue.Policy
	cluster      *cluster.Cluster
	ledger       *cluster.Ledger
	placer       *fit.Placer
	reservations *backfill.Reservations

	Marks    map[berth.JobID][]Mark  // nominations of earlier plans, by their job
	Classes  map[*cluster.Class]bool // classes of the jobs with nominations
	Unmet    int                     // jobs with nominations that the plan has not decided yet
	Repairs  bool                    // some nomination keeps a gang's own capacity
	promises map[share][]Nomination  // of this plan too
	held     map[*cluster.Holder]map[berth.MachineID][]berth.Grant
	Released []Nomination // to delete: no job needs these nominations
	Written  []Nomination // to insert: nominations of this plan

	Withdrawn []Withdrawal // the part of Released that reserved starts replace
}

// share identifies the part of a job on one machine.
type share struct {
	job     berth.JobID
	machine berth.MachineID
}

// promise records that a nomination takes a part of what its victim releases.
func (r *Nominations) promise(m Nomination) {
	k := share{m.Victim, m.Machine}
	r.promises[k] = append(r.promises[k], m)
}

// heldOn returns the grants of a holder's members on a machine. It groups the members of a wide gang once per plan.
func (r *Nominations) heldOn(n *cluster.Node, h *cluster.Holder) []berth.Grant {
	by, ok := r.held[h]
	if !ok {
		by = make(map[berth.MachineID][]berth.Grant, len(h.Machines))
		for _, g := range h.Ranks {
			by[g.Machine] = append(by[g.Machine], g)
		}
		r.held[h] = by
	}
	return by[n.ID]
}

// NewNominations returns empty nominations for a plan; see Load.
func NewNominations(at *cluster.Moment, policy *queue.Policy, l *cluster.Ledger, p *fit.Placer,
	r *backfill.Reservations) *Nominations {
	return &Nominations{
		Moment: at, policy: policy, cluster: l.Cluster, ledger: l, placer: p, reservations: r,
		promises: map[share][]Nomination{}, held: map[*cluster.Holder]map[berth.MachineID][]berth.Grant{},
	}
}

// Mark is a nomination of an earlier plan, in the state of the present plan.
type Mark struct {
	Nomination
	node   *cluster.Node
	grant  berth.Grant           // nominated capacity; without a Holder, the free part of it
	Holder *cluster.Holder       // the victim, while it still holds the capacity; nil: it has stopped
	start  time.Time             // expected start of the job; zero: unknown
	until  time.Time             // expected end of the job; zero: unknown
	later  *backfill.Reservation // of the capacity from the victim's end on; nil: none
}

// Load keeps the nominated capacity from all other jobs. It lists the nominations to
// delete: expired nominations, and nominations for a job that waits no longer or on an
// unknown machine.
func (r *Nominations) Load(list []Nomination, q *queue.Queue) {
	if len(list) == 0 {
		return
	}
	r.Marks, r.Classes = map[berth.JobID][]Mark{}, map[*cluster.Class]bool{}
	starts := r.startsOf(slices.DeleteFunc(slices.Clone(list), func(m Nomination) bool {
		e := q.Jobs[m.For]
		return e == nil || e.Assumed || r.cluster.Nodes[m.Machine] == nil || r.expired(m)
	}))
	for _, m := range list {
		e, n := q.Jobs[m.For], r.cluster.Nodes[m.Machine]
		switch {
		case e == nil && n != nil && m.Repair && r.cluster.Running[m.For] != nil:
			r.withhold(n, m) // the other members of the gang still stop
			r.promise(m)     // their capacity is kept for the gang, and not for others
			continue
		case e == nil, n == nil, r.expired(m):
			r.Released = append(r.Released, m)
			continue
		case e.Assumed:
			continue // the pending commit gives the job its capacity
		}
		r.add(e, n, m, starts[m.For])
	}
	r.Unmet = len(r.Marks)
}

// expired reports whether the time of a nomination is over.
func (r *Nominations) expired(m Nomination) bool {
	return !m.ExpiresAt.IsZero() && !m.ExpiresAt.After(r.Now)
}

// startsOf returns when the victims of each job with nominations have stopped: the job starts then, and holds all
// of its nominated capacity until its end, also the capacity that is free before. The time is zero if a
// victim has no known end. The list must not contain nominations that Load drops: the job does not wait for their
// victims.
func (r *Nominations) startsOf(list []Nomination) map[berth.JobID]time.Time {
	starts := make(map[berth.JobID]time.Time, len(list))
	for _, m := range list {
		at := r.Now
		if h := r.holderOf(m); h != nil {
			if end, ok := r.reservations.Ends(h); ok {
				at = r.From(end)
			} else {
				at = time.Time{}
			}
		}
		was, known := starts[m.For]
		switch {
		case !known:
			starts[m.For] = at
		case was.IsZero(), at.IsZero():
			starts[m.For] = time.Time{}
		case at.After(was):
			starts[m.For] = at
		}
	}
	return starts
}

// holderOf returns the victim of a nomination while the victim holds the capacity; nil if it has stopped.
func (r *Nominations) holderOf(m Nomination) *cluster.Holder {
	if h := r.cluster.Running[m.Victim]; h != nil && slices.Contains(h.Machines, m.Machine) {
		return h
	}
	return nil
}

// add keeps one nomination for a waiting job, which starts at the given time; zero: unknown. While the victim
// runs on the machine, the capacity is reserved from the victim's end on. Otherwise the free part is subtracted
// from the machine, and the job counts as its occupant, so that reserved starts expect the job's end there.
func (r *Nominations) add(e *queue.Entry, n *cluster.Node, m Nomination, start time.Time) {
	x := Mark{Nomination: m, node: n, start: start, grant: e.Class.GrantFor(
		berth.Grant{Machine: n.ID, Epoch: n.Epoch, Capacity: m.Capacity, GPUs: m.GPUs})}
	if !start.IsZero() {
		x.until = r.reservations.Leaves(start, e)
	}
	if h := r.holderOf(m); h != nil {
		x.Holder = h
		if at, ok := r.reservations.Ends(h); ok && n.Placeable() {
			x.later = &backfill.Reservation{At: r.From(at), Grant: x.grant, Until: x.until}
			r.reservations.Keep(n, *x.later)
		}
	} else {
		x.grant = cluster.Clamp(n, x.grant)
		r.ledger.Move(n, func() { n.Subtract(x.grant) })
		if h := r.occupant(e, x, start); h != nil {
			r.reservations.Occupy(n, h)
		}
	}
	r.Classes[e.Class] = true
	r.Repairs = r.Repairs || m.Repair
	r.Marks[m.For] = append(r.Marks[m.For], x)
	r.promise(m)
}

// occupant returns the job as an occupant of the free capacity nominated for it; nil if nothing is known about the
// end. A gang under repair may lack a place for one member until its nominations expire, so that other jobs
// must not expect the capacity before.
func (r *Nominations) occupant(e *queue.Entry, x Mark, start time.Time) *cluster.Holder {
	if start.IsZero() {
		return nil
	}
	h := &cluster.Holder{Running: cluster.Running{Job: e.ID, Ranks: []berth.Grant{x.grant}, StartedAt: start,
		TimeLimit: e.TimeLimit, Remaining: e.Remaining}}
	if at, ok := r.reservations.Ends(h); ok && x.Repair && at.Before(x.ExpiresAt) {
		h.TimeLimit = x.ExpiresAt.Sub(start)
	}
	return h
}

// Lift returns the kept capacity of nominations to the ledger, to search a place for their
// own job. Restore must follow unless the job starts.
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

// Awaits reports whether the job has room as soon as its victims have stopped; then the job
// needs no further victims. A victim that is not ordered to stop counts for nothing. It tries
// with the nominated capacity, and reverts all changes.
func (r *Nominations) Awaits(e *queue.Entry) bool {
	marks := r.Marks[e.ID]
	if len(marks) == 0 {
		return false
	}
	c, start := e.Class, r.ledger.Mark()
	defer r.placer.Reopen(c)()
	r.Lift(marks)
	for _, m := range marks {
		if m.Holder != nil && r.stops(m.Holder) {
			r.ledger.Give(m.node, r.cluster.GrantTo(m.grant, m.Holder.Tenant))
		}
	}
	passOn(r, c, marks)
	fits := r.placer.FitsAnywhere(c)
	r.ledger.Undo(start)
	r.Restore(marks)
	return fits
}

// Started drops the nominations of a job that starts, since the job now occupies the
// capacity itself, and returns their marks for Rehold.
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

// Rehold recomputes the holds on the machines of nominations after their job has started.
// The job may have taken devices other than the kept ones.
func (r *Nominations) Rehold(marks []Mark) {
	for _, m := range marks {
		if h := r.ledger.HoldOn(m.node); h != nil {
			r.reservations.Rehold(h)
		}
	}
}

// nominate keeps places for a job: the free part at once, the rest from the time at which its holders have
// stopped. The job starts when the last of them has. The nominations expire after Policy.NominationFor.
func (r *Nominations) nominate(e *queue.Entry, places []cluster.Choice, victims []*cluster.Holder) {
	list := r.split(e, places, victims)
	start := r.startsOf(list)[e.ID]
	for _, m := range list {
		if r.policy.NominationFor > 0 {
			m.ExpiresAt = r.Now.Add(r.policy.NominationFor)
		}
		r.Written = append(r.Written, m)
		r.keep(e, m, start)
	}
}

// split splits the places of a job by origin, and promises them; see splitGrant.
func (r *Nominations) split(e *queue.Entry, places []cluster.Choice, victims []*cluster.Holder) []Nomination {
	var list []Nomination
	for _, c := range places {
		split := r.splitGrant(e, c.Grant, c.Node, victims)
		for _, m := range split { // before the next place: a holder gives each part once
			r.promise(m)
		}
		list = append(list, split...)
	}
	return list
}

// keep keeps the capacity of a nomination of this plan.
func (r *Nominations) keep(e *queue.Entry, m Nomination, start time.Time) {
	n := r.cluster.Nodes[m.Machine]
	g := e.Class.GrantFor(berth.Grant{Machine: m.Machine, Epoch: n.Epoch, Capacity: m.Capacity, GPUs: m.GPUs})
	h := r.holderOf(m)
	if h == nil {
		g = cluster.Clamp(n, g)
		r.ledger.Take(cluster.Choice{Node: n, Grant: g})
		if h := r.occupant(e, Mark{Nomination: m, grant: g}, start); h != nil {
			r.reservations.Occupy(n, h)
		}
		return
	}
	at, ok := r.reservations.Ends(h)
	if !ok {
		return // the capacity of the holder counts as taken for all time
	}
	x := backfill.Reservation{At: r.From(at), Grant: g}
	if !start.IsZero() {
		x.Until = r.reservations.Leaves(start, e)
	}
	r.reservations.Keep(n, x)
}

// unpromised returns the capacity that a stopping holder releases on a machine, less the
// part that is nominated already.
func (r *Nominations) unpromised(n *cluster.Node, h *cluster.Holder) berth.Grant {
	var a cluster.Amount
	for _, g := range r.heldOn(n, h) {
		a = a.Plus(n, g, 1)
	}
	for _, m := range r.promises[share{h.Job, n.ID}] {
		a = a.Plus(n, berth.Grant{Capacity: m.Capacity, GPUs: m.GPUs}, -1)
	}
	g := a.Grant(n)
	g.Tenant = h.Tenant
	return g
}

// splitGrant splits a grant by origin. Each victim in turn gives as much as it holds on the machine, device by
// device. Free capacity gives the rest, except for the part that other stopping jobs release: it is not
// free yet, and not nominated for any other job. The result is ordered by the ids of the holders; the free
// part, with victim "", comes first.
func (r *Nominations) splitGrant(e *queue.Entry, g berth.Grant, n *cluster.Node,
	victims []*cluster.Holder) []Nomination {
	var list []Nomination
	left := cluster.Amount{}.Plus(n, g, 1)
	part := func(from berth.Grant, victim berth.JobID) {
		x := draw(n, &left, from)
		if x.Capacity == (berth.Capacity{}) && len(x.GPUs) == 0 {
			return
		}
		i := slices.IndexFunc(list, func(m Nomination) bool { return m.Victim == victim })
		if i < 0 || victim != "" {
			list = append(list, Nomination{For: e.ID, Machine: n.ID, Capacity: x.Capacity, GPUs: x.GPUs,
				Victim: victim})
			return
		}
		sum := cluster.Amount{}.Plus(n, berth.Grant{Capacity: list[i].Capacity, GPUs: list[i].GPUs}, 1).Plus(n, x, 1)
		list[i].Capacity, list[i].GPUs = sum.Capacity, sum.Grant(n).GPUs
	}
	for _, h := range victims {
		for _, v := range r.heldOn(n, h) {
			part(v, h.Job)
		}
	}
	part(cluster.Clamp(n, left.Grant(n)), "")
	for _, h := range r.stopping(n, victims) {
		part(r.unpromised(n, h), h.Job)
	}
	part(left.Grant(n), "")
	slices.SortStableFunc(list, func(a, b Nomination) int {
		return strings.Compare(string(a.Victim),
			string(b.Victim))
	})
	return list
}

// stops reports whether a holder is ordered to stop, by this plan or an earlier order.
func (r *Nominations) stops(h *cluster.Holder) bool { return h.Stopping || h.Stopped == r.Number }

// stopping returns the jobs on a machine that stop, without the given victims.
func (r *Nominations) stopping(n *cluster.Node, victims []*cluster.Holder) []*cluster.Holder {
	var list []*cluster.Holder
	for i := range n.On.List {
		h := n.On.List[i].Holder
		if r.stops(h) && !slices.Contains(victims, h) {
			list = append(list, h)
		}
	}
	slices.SortFunc(list, func(a, b *cluster.Holder) int { return cluster.CompareIDs(a.Job, b.Job) })
	return list
}

// draw takes as much of left as from can give, per resource and device, and returns that
// part.
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
			got.GPUs = append(got.GPUs, berth.DeviceShare{Index: d.Index, Milli: milli, Tenant: d.Tenant})
			got.Capacity.GPUMilli += milli
		}
	}
	return got
}
