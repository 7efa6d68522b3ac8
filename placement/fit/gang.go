package fit

import (
	"berth"
	"berth/placement/cluster"
)

// Gang places all members one after the other, and takes their capacity from the ledger. If
// one member has no place, Gang reverts all entries and tries the next order of the parts; without
// one it returns false. The result is in order of rank.
func (r *Placer) Gang(c *cluster.Class, avoid []berth.MachineID, group string) ([]berth.Grant, bool) {
	r.Moved = r.Moved[:0]
	// A search among all machines that fails has a trace, the machine from which later searches go on (last).
	if restricted := group != "" || len(avoid) > 0 || spreads(c); restricted && short(r, c, avoid, group) {
		return nil, false
	}
	for i, parts := range c.Orders {
		if i == 1 && short(r, c, avoid, group) {
			break // no order helps
		}
		if i > 0 { // nothing is left of the failed try
			r.Moved = r.Moved[:0]
			for _, p := range parts {
				delete(r.last, p.Class)
			}
		}
		if ranks, ok := inOrder(r, parts, c, avoid, group); ok {
			return ranks, true
		}
	}
	return nil, false
}

// inOrder places the parts of a gang one after the other, or none.
func inOrder(
	r *Placer, parts []cluster.Part, c *cluster.Class, avoid []berth.MachineID, group string,
) ([]berth.Grant, bool) {
	start := r.ledger.Mark()
	ranks := make([]berth.Grant, c.Members())
	for _, p := range parts {
		for i := range p.Members {
			found, ok := r.member(p.Class, avoid, group)
			if !ok {
				r.ledger.Undo(start)
				return nil, false
			}
			ranks[p.First+i] = found.Grant
		}
	}
	return ranks, true
}

// member places one member, near the data of its job, and takes its capacity from the ledger.
func (r *Placer) member(c *cluster.Class, avoid []berth.MachineID, group string) (cluster.Choice, bool) {
	found, ok := r.Find(c, avoid, group)
	if !ok {
		return found, false
	}
	best := found.Node
	if len(r.Wants) > 0 {
		found = r.nearer(c, avoid, group, found)
	}
	r.ledger.Take(found)
	if len(avoid) == 0 && group == "" && found.Node == best && !r.crosses() {
		r.last[c] = found // the best of all machines, not of a restricted set
	}
	return found, true
}

// FitsAnywhere reports whether all members of a job of the class have room. On success the
// members stay in the ledger; the caller reverts these entries.
func (r *Placer) FitsAnywhere(c *cluster.Class) bool {
	for _, group := range Roomy(r, c) {
		if _, ok := r.Gang(c, nil, group); ok {
			return true
		}
	}
	return false
}

// Site is capacity on one machine that a gang occupied before its repair.
type Site struct {
	Node  *cluster.Node
	Grant berth.Grant
}

// Stay places a gang at its former sites as far as the sites have room, and the other
// members anywhere. The result is in order of rank.
func (r *Placer) Stay(c *cluster.Class, avoid []berth.MachineID, group string, former []Site) ([]berth.Grant, bool) {
	start := r.ledger.Mark()
	left := make([]cluster.Amount, len(former)) // of the former grants, for members of all parts
	for i, m := range former {
		left[i] = left[i].Plus(m.Node, m.Grant, 1)
	}
	ranks := make([]berth.Grant, c.Members())
	for _, p := range c.Parts {
		look := r.search(p.Class, avoid, group)
		placed := ranks[p.First : p.First : p.First+p.Members]
		for i, m := range former {
			placed = r.staySite(&look, m.Node, &left[i], placed)
		}
		for len(placed) < p.Members {
			found, ok := r.Find(p.Class, avoid, group)
			if !ok {
				r.ledger.Undo(start)
				return nil, false
			}
			r.ledger.Take(found)
			placed = append(placed, found.Grant)
		}
	}
	return ranks, true
}

// staySite places members of one part on the machine of a former site, at most as many as left, the rest
// of the former grant, holds. It appends their grants to placed, up to its capacity.
func (r *Placer) staySite(look *Search, n *cluster.Node, left *cluster.Amount, placed []berth.Grant) []berth.Grant {
	c := look.Class
	m, ok := c.MatchOf(n.Kind)
	if !ok || !n.Offered() || !look.Allows(n) {
		return placed
	}
	allowed := m.Devices
	var nothing berth.Capacity
	for len(placed) < cap(placed) {
		devices, ok := Devices(c, n, allowed)
		if !ok {
			break
		}
		g := Grant(c, n, devices)
		rest := left.Plus(n, g, -1)
		if !nothing.Fits(rest.Capacity) {
			break // the rest of the machine is as good as any other
		}
		*left = rest
		r.ledger.Take(cluster.Choice{Node: n, Allowed: allowed, Grant: g})
		placed = append(placed, g)
	}
	return placed
}

// MembersNow returns the number of members of a gang that have room at once, in the best
// group of machines. It places them on trial, outside of any plan.
func MembersNow(s *State, c *cluster.Class) int {
	most := 0
	at := &cluster.Moment{Number: s.Cluster.NextPlan()}
	r := NewPlacer(at, s, cluster.NewTrial(at, s.Cluster))
	for _, group := range r.Groups(c) {
		placed := 0
		for _, p := range c.Parts {
			for range p.Members {
				found, ok := r.Find(p.Class, nil, group)
				if !ok {
					break
				}
				r.ledger.Take(found)
				// Find continues on this machine while it has room, which saves a search per
				// member.
				r.last[p.Class] = found
				placed++
			}
		}
		r.ledger.Undo(0)
		clear(r.last)
		most = max(most, placed)
	}
	return most
}
