package placement

import (
	"slices"
	"strings"
)

// follower is a cache of a kind's machines. It reads the machines that changed
// since its last look, so that a plan looks at few.
type follower int

// The followers of a roster.
const (
	releaseFeed follower = iota // when capacity becomes free, for reserved starts
	boundFeed                   // preemption bounds
	followers   = 2
)

// roster lists the placeable machines of a kind by id. Followers keep slices with
// an entry for each member, which are void once the generation has changed.
//
//	machine changes ──> note ──> feed of each follower ──> changes(follower)
//	machine comes or goes ──> unlisted ──> refresh lists all, generation + 1
type roster struct {
	members    []*node
	unlisted   bool // members is out of date
	generation int  // of members
	freshAt    int  // the plan that refreshed the roster
	feeds      [followers][]*node

	touched   []*node // by the plan touchedAt
	touchedAt int
	marks     bitset // the touched ones, by place
}

// bitset is a set of small numbers. The nil set is empty.
type bitset []uint64

// has reports whether a number is in the set.
func (b bitset) has(i int) bool { return len(b) > 0 && b[i>>6]>>(i&63)&1 != 0 }

func (b bitset) put(i int) { b[i>>6] |= 1 << (i & 63) }

// note takes notice of a change to a placeable machine.
func (k *kind) note(n *node) {
	if n.listed != k {
		k.unlisted = true
		n.leave()
		return
	}
	n.outdate()
}

// outdate puts a machine into the feeds of all followers.
func (n *node) outdate() {
	for f := range follower(followers) {
		n.outdateFor(f)
	}
}

// outdateFor puts a machine into the feed of one follower.
func (n *node) outdateFor(f follower) {
	if n.listed != nil && n.changed>>f&1 == 0 {
		n.changed |= 1 << f
		n.listed.feeds[f] = append(n.listed.feeds[f], n)
	}
}

// changes empties the feed of a follower into a list.
func (k *kind) changes(f follower, into []*node) []*node {
	into = into[:0]
	for _, n := range k.feeds[f] {
		if n.listed == k && n.changed>>f&1 != 0 {
			n.changed &^= 1 << f
			into = append(into, n)
		}
	}
	clear(k.feeds[f])
	k.feeds[f] = k.feeds[f][:0]
	return into
}

// leave takes a machine off the roster that lists it.
func (n *node) leave() {
	if n.listed != nil {
		n.listed.unlisted = true
	}
	n.listed, n.changed = nil, 0
}

// refresh lists the members again if machines came or went, at most once a plan.
func (k *kind) refresh(plan int) {
	if k.freshAt == plan {
		return
	}
	k.freshAt = plan
	if !k.unlisted && len(k.members) == k.tree.len() {
		return
	}
	for _, n := range k.members {
		if n.listed == k {
			n.leave()
		}
	}
	list := k.members[:0]
	var c cursor[*node]
	for c.begin(&k.tree); ; c.next() {
		n, ok := c.at()
		if !ok {
			break
		}
		list = append(list, n)
	}
	slices.SortFunc(list, func(a, b *node) int { return strings.Compare(string(a.ID), string(b.ID)) })
	k.list(list)
}

// list makes a list by id the members.
func (k *kind) list(members []*node) {
	for i, n := range members {
		n.leave()
		n.listed, n.place = k, i
	}
	k.members, k.unlisted = members, false
	k.generation++
	for f := range k.feeds {
		k.feeds[f] = k.feeds[f][:0]
	}
	k.marks = make(bitset, (len(members)+63)/64)
	for _, n := range k.touched {
		if n.listed == k {
			k.marks.put(n.place)
		}
	}
}

// touch notes that a plan has changed a machine of the kind.
func (k *kind) touch(n *node, plan int) {
	if k.touchedAt != plan {
		k.touched, k.touchedAt = k.touched[:0], plan
		clear(k.marks)
	}
	k.touched = append(k.touched, n)
	if n.listed == k {
		k.marks.put(n.place)
	}
}

// touchedBy returns the machines that a plan has changed, by place.
func (k *kind) touchedBy(plan int) bitset {
	if k.touchedAt != plan {
		return nil
	}
	return k.marks
}
