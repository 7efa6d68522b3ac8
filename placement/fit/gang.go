package fit

import (
	"slices"

	"berth"
	"berth/placement/cluster"
)

// Gang places all members one after the other, and takes their capacity from the ledger. If
// one member has no place, Gang reverts all entries and returns false. The result is in
// order of rank.
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
		if len(avoid) == 0 && group == "" && found.Node == best && !r.crosses() {
			r.last[c] = found // the best of all machines, not of a restricted set
		}
		ranks = append(ranks, found.Grant)
	}
	return ranks, true
}

// FitsAnywhere reports whether all members of a job of the class have room. On success the
// members stay in the ledger; the caller reverts these entries.
func (r *Placer) FitsAnywhere(c *cluster.Class) bool {
	for _, group := range r.Groups(c) {
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
// members anywhere.
func (r *Placer) Stay(c *cluster.Class, avoid []berth.MachineID, group string, former []Site) ([]berth.Grant, bool) {
	start := r.ledger.Mark()
	ranks := make([]berth.Grant, 0, c.Members())
	look := r.search(c, avoid, group)
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

// staySite places members at one former site, at most as many as its former grant holds,
// and appends their grants to ranks.
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

// MembersNow returns the number of members of a gang that have room at once, in the best
// group of machines. It places them on trial, outside of any plan.
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
			// Find continues on this machine while it has room, which saves a search per
			// member.
			r.last[c] = found
			placed++
		}
		r.ledger.Undo(0)
		clear(r.last)
		most = max(most, placed)
	}
	return most
}
