package placement

import (
	"slices"

	"berth"
)

// gang places all members one after the other. If one finds no place, the
// others give theirs back.
func (r *placer) gang(c *class, avoid []berth.MachineID, group string) ([]berth.Grant, bool) {
	start := r.ledger.mark()
	ranks := make([]berth.Grant, 0, c.members())
	r.moved = r.moved[:0]
	for range c.members() {
		found, ok := r.find(c, avoid, group)
		if !ok {
			r.ledger.undo(start)
			return nil, false
		}
		best := found.node
		if len(r.wants) > 0 {
			found = r.nearer(c, avoid, group, found)
		}
		r.ledger.take(found)
		if len(avoid) == 0 && group == "" && found.node == best {
			r.last[c] = found // the best of all candidates, not of the rest
		}
		ranks = append(ranks, found.grant)
	}
	return ranks, true
}

// fitsAnywhere reports whether all members of a job of the class have room. The
// caller reverts the entries in the ledger.
func (r *placer) fitsAnywhere(c *class) bool {
	for _, group := range r.groups(c) {
		if _, ok := r.gang(c, nil, group); ok {
			return true
		}
	}
	return false
}

// site is capacity on one machine that a gang occupied before.
type site struct {
	node  *node
	grant berth.Grant
}

// stay places a gang at its former sites as far as it fits there, and the rest of
// its members anywhere.
func (r *placer) stay(c *class, avoid []berth.MachineID, group string, former []site) ([]berth.Grant, bool) {
	start := r.ledger.mark()
	ranks := make([]berth.Grant, 0, c.members())
	look := search{class: c, avoid: avoid, group: group}
	for _, m := range former {
		ranks = r.staySite(&look, m, ranks)
	}
	for len(ranks) < c.members() {
		found, ok := r.find(c, avoid, group)
		if !ok {
			r.ledger.undo(start)
			return nil, false
		}
		r.ledger.take(found)
		ranks = append(ranks, found.grant)
	}
	return ranks, true
}

// staySite places members at one former site.
func (r *placer) staySite(look *search, m site, ranks []berth.Grant) []berth.Grant {
	c, n := look.class, m.node
	i := slices.IndexFunc(c.matches, func(x match) bool { return x.kind == n.kind })
	if i < 0 || !n.offered() || !look.allows(n) {
		return ranks
	}
	allowed := c.matches[i].devices
	left := (amount{}).plus(n, m.grant, 1)
	var nothing berth.Capacity
	for len(ranks) < c.members() {
		devices, ok := c.fit(n, allowed)
		if !ok {
			break
		}
		g := c.grant(n, devices)
		left = left.plus(n, g, -1)
		if !nothing.Fits(left.Capacity) {
			break // the rest of the machine is as good as any other
		}
		r.ledger.take(choice{node: n, allowed: allowed, grant: g})
		ranks = append(ranks, g)
	}
	return ranks
}

// membersNow is the number of members of a gang that have room at once, by placing
// them on trial.
func membersNow(s *state, c *class) int {
	most := 0
	at := &moment{number: s.cluster.nextPlan()}
	r := newPlacer(at, s, newTrial(at, s.cluster))
	for _, group := range r.groups(c) {
		placed := 0
		for placed < c.members() {
			found, ok := r.find(c, nil, group)
			if !ok {
				break
			}
			r.ledger.take(found)
			r.last[c] = found
			placed++
		}
		r.ledger.undo(0)
		clear(r.last)
		most = max(most, placed)
	}
	return most
}
