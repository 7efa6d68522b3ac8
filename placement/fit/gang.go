package fit

import (
	"slices"

	"berth"
	"berth/placement/cluster"
)

// Gang places all members one after the other. If one finds no place, the
// others give theirs back.
func (r *Placer) Gang(c *cluster.Class, avoid []berth.MachineID, group string) ([]berth.Grant, bool) {
	start := r.ledger.Mark()
	ranks := make([]berth.Grant, 0, c.Members())
	r.Moved = r.Moved[:0]
	for range c.Members() {
		found, ok := r.Find(c, avoid, group)
		if !ok {
			r.ledger.Undo(start)
			return nil, false
		}
		best := found.Node
		if len(r.Wants) > 0 {
			found = r.nearer(c, avoid, group, found)
		}
		r.ledger.Take(found)
		if len(avoid) == 0 && group == "" && found.Node == best {
			r.last[c] = found // the best of all candidates, not of the rest
		}
		ranks = append(ranks, found.Grant)
	}
	return ranks, true
}

// FitsAnywhere reports whether all members of a job of the class have room. The
// caller reverts the entries in the ledger.
func (r *Placer) FitsAnywhere(c *cluster.Class) bool {
	for _, group := range r.Groups(c) {
		if _, ok := r.Gang(c, nil, group); ok {
			return true
		}
	}
	return false
}

// Site is capacity on one machine that a gang occupied before.
type Site struct {
	Node  *cluster.Node
	Grant berth.Grant
}

// Stay places a gang at its former sites as far as it fits there, and the rest of
// its members anywhere.
func (r *Placer) Stay(c *cluster.Class, avoid []berth.MachineID, group string, former []Site) ([]berth.Grant, bool) {
	start := r.ledger.Mark()
	ranks := make([]berth.Grant, 0, c.Members())
	look := Search{Class: c, avoid: avoid, Group: group}
	for _, m := range former {
		ranks = r.staySite(&look, m, ranks)
	}
	for len(ranks) < c.Members() {
		found, ok := r.Find(c, avoid, group)
		if !ok {
			r.ledger.Undo(start)
			return nil, false
		}
		r.ledger.Take(found)
		ranks = append(ranks, found.Grant)
	}
	return ranks, true
}

// staySite places members at one former site.
func (r *Placer) staySite(look *Search, m Site, ranks []berth.Grant) []berth.Grant {
	c, n := look.Class, m.Node
	i := slices.IndexFunc(c.Matches, func(x cluster.Match) bool { return x.Kind == n.Kind })
	if i < 0 || !n.Offered() || !look.Allows(n) {
		return ranks
	}
	allowed := c.Matches[i].Devices
	left := (cluster.Amount{}).Plus(n, m.Grant, 1)
	var nothing berth.Capacity
	for len(ranks) < c.Members() {
		devices, ok := Devices(c, n, allowed)
		if !ok {
			break
		}
		g := Grant(c, n, devices)
		left = left.Plus(n, g, -1)
		if !nothing.Fits(left.Capacity) {
			break // the rest of the machine is as good as any other
		}
		r.ledger.Take(cluster.Choice{Node: n, Allowed: allowed, Grant: g})
		ranks = append(ranks, g)
	}
	return ranks
}

// MembersNow places the members of a gang on trial, and returns the number of members
// that have room at once.
func MembersNow(s *State, c *cluster.Class) int {
	most := 0
	at := &cluster.Moment{Number: s.Cluster.NextPlan()}
	r := NewPlacer(at, s, cluster.NewTrial(at, s.Cluster))
	for _, group := range r.Groups(c) {
		placed := 0
		for placed < c.Members() {
			found, ok := r.Find(c, nil, group)
			if !ok {
				break
			}
			r.ledger.Take(found)
			r.last[c] = found
			placed++
		}
		r.ledger.Undo(0)
		clear(r.last)
		most = max(most, placed)
	}
	return most
}
