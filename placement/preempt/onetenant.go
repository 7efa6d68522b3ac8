package preempt

import (
	"berth"
	"berth/placement/cluster"
	"berth/placement/queue"
)

// A machine that is used by one tenant at a time is free for another tenant once all its jobs have left. So a stopping
// job counts with its whole capacity there: the part that is nominated for jobs passes on to their tenants, and the
// rest becomes free. Without this, a job that waits for such a machine would never seem to have room, and would
// preempt others again and again.

// passOn makes the trial of Awaits count the machines of a job's nominations as left by the jobs that stop there. The
// capacity that is not nominated for the job stays taken. The caller undoes the entries of the ledger.
func passOn(r *Nominations, c *cluster.Class, marks []Mark) {
	done := map[*cluster.Node]bool{}
	for _, mark := range marks {
		n := mark.node
		if !n.OneTenant() || done[n] {
			continue
		}
		done[n] = true
		for _, h := range r.stopping(n, nil) {
			var rest cluster.Amount
			for _, g := range r.heldOn(n, h) {
				rest = rest.Plus(n, g, 1)
			}
			for _, m := range marks {
				if m.node == n && m.Holder == h {
					rest = rest.Plus(n, m.grant, -1)
				}
			}
			g := r.cluster.GrantTo(rest.Grant(n), h.Tenant)
			r.ledger.Give(n, g)
			r.ledger.Take(cluster.Choice{Node: n, Grant: c.GrantFor(g)})
		}
	}
}

// passedOn returns the grants that pass the nominated part of a stopping holder's capacity on to the tenants of the
// nominations: pairs of the part that the holder's tenant gives and, as a negative amount, that the other tenant takes.
// The sum of a pair frees no capacity. It is empty on machines that tenants share.
func passedOn(r *Nominations, q *queue.Queue, n *cluster.Node, h *cluster.Holder) (pairs []berth.Grant) {
	if !n.OneTenant() {
		return nil
	}
	for _, m := range r.promises[share{h.Job, n.ID}] {
		e := q.Jobs[m.For]
		if e == nil {
			continue
		}
		g := r.cluster.GrantTo(berth.Grant{Machine: n.ID, Epoch: n.Epoch, Capacity: m.Capacity, GPUs: m.GPUs}, h.Tenant)
		pairs = append(pairs, g, e.Class.GrantFor(negative(g)))
	}
	return pairs
}

// negative returns a grant with the opposite amounts.
func negative(g berth.Grant) berth.Grant {
	var nothing berth.Capacity
	g.Capacity = nothing.Sub(g.Capacity)
	list := g.GPUs
	g.GPUs = make([]berth.DeviceShare, len(list))
	for i, d := range list {
		d.Milli = -d.Milli
		g.GPUs[i] = d
	}
	return g
}
