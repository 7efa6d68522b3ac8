package preempt

import (
	"slices"

	"berth"
	"berth/placement/cluster"
	"berth/placement/queue"
)

// A job preempts again if a part of its nominations has failed: a machine is lost, a device is unhealthy, or a victim
// runs on. The rest of the nominations still counts for the job, so that no more work stops than it lacks, except for
// capacity not yet released on a machine of a reserved start. The new nominations replace all earlier ones, in one
// transaction.

// withdraw takes back the nominations of a job, for the search of its victims: their capacity counts as free, or as
// released by the victims that still stop and promised to no job. reinstate or replace must follow.
func (r *Nominations) withdraw(e *queue.Entry) []Mark {
	own := r.Marks[e.ID]
	r.Lift(own)
	for _, m := range own {
		k := share{m.Victim, m.Machine}
		r.promises[k] = slices.DeleteFunc(r.promises[k], func(o Nomination) bool { return o.For == e.ID })
	}
	return own
}

// reinstate reverts withdraw.
func (r *Nominations) reinstate(own []Mark) {
	r.Restore(own)
	for _, m := range own {
		r.promise(m.Nomination)
	}
}

// delays reports whether a job that preempts again would delay a reserved start. Such a start may depend on the time at
// which the job leaves the capacity that is nominated for it, and a displacement may have the job start later, if it
// counts on capacity of further jobs that stop.
func delays(r *Search, e *queue.Entry, own []Mark, s *displacement) bool {
	i := slices.IndexFunc(own, func(m Mark) bool { return !m.start.IsZero() && r.ledger.IsFirm(m.node) })
	if i < 0 {
		return false
	}
	list := r.nominations.split(e, together(s.ranks), holdersOf(s))
	r.nominations.forget(e, list)
	list = slices.DeleteFunc(list, func(m Nomination) bool { // this plan stops them, so they end now
		return slices.ContainsFunc(s.victims, func(v victim) bool { return v.Job == m.Victim })
	})
	at, some := r.nominations.startsOf(list)[e.ID]
	return some && (at.IsZero() || at.After(own[i].start))
}

// forget removes the promises of a job's nominations.
func (r *Nominations) forget(e *queue.Entry, list []Nomination) {
	for _, m := range list {
		k := share{m.Victim, m.Machine}
		r.promises[k] = slices.DeleteFunc(r.promises[k], func(o Nomination) bool { return o.For == e.ID })
	}
}

// holdersOf returns the victims of a displacement.
func holdersOf(s *displacement) []*cluster.Holder {
	list := make([]*cluster.Holder, len(s.victims))
	for i, v := range s.victims {
		list[i] = v.Holder
	}
	return list
}

// retire drops the withdrawn nominations of a job that preempts again. The job occupies their capacity no longer.
func (r *Nominations) retire(e *queue.Entry, own []Mark) {
	for _, m := range own {
		r.Released = append(r.Released, m.Nomination)
	}
	r.vacate(e, own)
	delete(r.Marks, e.ID)
}

// keepRest keeps the part of retired nominations that the new ones do not contain, until the end of the plan: the
// database may refuse the preemption, and the earlier nominations then remain. Otherwise another preemption of the plan
// could nominate the same capacity, and both jobs would be refused at the commit of their starts.
func (r *Nominations) keepRest(own []Mark, written []Nomination) {
	var order []share
	rest, nodes := map[share]cluster.Amount{}, map[share]*cluster.Node{}
	var tenant berth.TenantID // of the job
	for _, m := range own {
		k := share{m.Victim, m.Machine}
		if m.Holder == nil {
			k.job = ""
		}
		if nodes[k] == nil {
			order, nodes[k] = append(order, k), m.node
		}
		rest[k], tenant = rest[k].Plus(m.node, m.grant, 1), m.grant.Tenant
	}
	for _, m := range written {
		k := share{m.Victim, m.Machine}
		if n := nodes[k]; n != nil {
			rest[k] = rest[k].Plus(n, berth.Grant{Capacity: m.Capacity, GPUs: m.GPUs}, -1)
		}
	}
	for _, k := range order {
		n := nodes[k]
		g := rest[k].Grant(n)
		g.Tenant = tenant
		switch {
		case g.Capacity == (berth.Capacity{}) && len(g.GPUs) == 0:
		case k.job != "":
			r.promise(Nomination{Machine: k.machine, Victim: k.job, Capacity: g.Capacity, GPUs: g.GPUs})
		default:
			g = cluster.Clamp(n, g)
			r.ledger.Move(n, func() { n.Subtract(g) })
		}
	}
}

// machinesOf returns the machines of nominations.
func machinesOf(marks []Mark) []berth.MachineID {
	var list []berth.MachineID
	for _, m := range marks {
		list = append(list, m.Machine)
	}
	return list
}
