package cluster

import (
	"slices"
	"strings"
)

// Follower identifies a cache with an entry for each machine of a kind. The follower's
// feed lists the machines that changed since the cache last read the feed, so that a plan
// recomputes few entries.
type Follower int

// The followers of a roster.
const (
	ReleaseFeed Follower = iota // when capacity becomes free, for reserved starts
	BoundFeed                   // preemption bounds
	followers   = 2
)

// roster lists the placeable machines of a kind by id. Followers keep slices with
// an entry for each machine; a new generation makes all entries invalid.
//
//	machine changes ──> note ──> feed of each follower ──> Changes(follower)
//	machine comes or goes ──> unlisted ──> Refresh lists all, Generation + 1
type roster struct {
	Members    []*Node
	unlisted   bool // Members is out of date
	Generation int  // version of Members
	freshAt    int  // the plan that refreshed the roster
	feeds      [followers][]*Node

	Touched   []*Node // the machines that the plan TouchedAt has changed
	TouchedAt int
	marks     Bitset // the places of Touched
}

// Bitset is a set of small numbers. The nil set is empty.
type Bitset []uint64

// Has reports whether a number is in the set.
func (b Bitset) Has(i int) bool { return len(b) > 0 && b[i>>6]>>(i&63)&1 != 0 }

func (b Bitset) put(i int) { b[i>>6] |= 1 << (i & 63) }

// note records a change to a placeable machine: in the feeds or, for a machine that the
// roster does not list, by marking the roster out of date.
func (k *Kind) note(n *Node) {
	if n.Listed != k {
		k.unlisted = true
		n.leave()
		return
	}
	n.outdate()
}

// outdate puts a machine into the feeds of all followers.
func (n *Node) outdate() {
	for f := range Follower(followers) {
		n.OutdateFor(f)
	}
}

// OutdateFor puts a machine into the feed of one follower.
func (n *Node) OutdateFor(f Follower) {
	if n.Listed != nil && n.changed>>f&1 == 0 {
		n.changed |= 1 << f
		n.Listed.feeds[f] = append(n.Listed.feeds[f], n)
	}
}

// Changes moves the feed of a follower into a list, which reuses the memory of into.
func (k *Kind) Changes(f Follower, into []*Node) []*Node {
	into = into[:0]
	for _, n := range k.feeds[f] {
		if n.Listed == k && n.changed>>f&1 != 0 {
			n.changed &^= 1 << f
			into = append(into, n)
		}
	}
	clear(k.feeds[f])
	k.feeds[f] = k.feeds[f][:0]
	return into
}

// leave removes a machine from its roster, if any. The roster's list keeps a stale entry
// until Refresh, and unlisted marks it out of date.
func (n *Node) leave() {
	if n.Listed != nil {
		n.Listed.unlisted = true
	}
	n.Listed, n.changed = nil, 0
}

// Refresh lists the members again if machines came or went, at most once a plan.
func (k *Kind) Refresh(plan int) {
	if k.freshAt == plan {
		return
	}
	k.freshAt = plan
	if !k.unlisted && len(k.Members) == k.tree.Len() {
		return
	}
	for _, n := range k.Members {
		if n.Listed == k {
			n.leave()
		}
	}
	list := k.Members[:0]
	var c Cursor[*Node]
	for c.Begin(&k.tree); ; c.Next() {
		n, ok := c.At()
		if !ok {
			break
		}
		list = append(list, n)
	}
	slices.SortFunc(list, func(a, b *Node) int { return strings.Compare(string(a.ID), string(b.ID)) })
	k.list(list)
}

// list replaces Members by a list that is sorted by id, and starts a generation. It
// rebuilds marks, since the places of the machines have changed.
func (k *Kind) list(members []*Node) {
	for i, n := range members {
		n.leave()
		n.Listed, n.Place = k, i
	}
	k.Members, k.unlisted = members, false
	k.Generation++
	for f := range k.feeds {
		k.feeds[f] = k.feeds[f][:0]
	}
	k.marks = make(Bitset, (len(members)+63)/64)
	for _, n := range k.Touched {
		if n.Listed == k {
			k.marks.put(n.Place)
		}
	}
}

// touch records that a plan has changed a machine of the kind.
func (k *Kind) touch(n *Node, plan int) {
	if k.TouchedAt != plan {
		k.Touched, k.TouchedAt = k.Touched[:0], plan
		clear(k.marks)
	}
	k.Touched = append(k.Touched, n)
	if n.Listed == k {
		k.marks.put(n.Place)
	}
}

// TouchedBy returns the places of the machines that a plan has changed.
func (k *Kind) TouchedBy(plan int) Bitset {
	if k.TouchedAt != plan {
		return nil
	}
	return k.marks
}
