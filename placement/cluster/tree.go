package cluster

import (
	"slices"
)

// Tree is an ordered set, implemented as a treap. Weights come from the items' names, so
// the shape depends on the items alone and not on the order of insertion. Every operation
// takes O(log n). A tree with only Compare set is empty and ready to use.
type Tree[T any] struct {
	root    *Leaf[T]
	Compare func(a, b T) int
	// gather, if set, is called bottom-up whenever a subtree has changed; the
	// children may be nil.
	gather func(at, left, right *Leaf[T])
}

// Leaf is an item's place in a tree. It lives in the item, so that moving an
// item allocates nothing.
type Leaf[T any] struct {
	Item        T
	Weight      uint32 // a parent's weight is never less than its children's
	size        int32  // number of leaves in the subtree
	left, right *Leaf[T]
}

// WeightOf derives a leaf's weight from a name.
func WeightOf(name ...string) uint32 {
	x := uint32(2166136261) // FNV-1a, which alone hardly spreads short names
	for _, s := range name {
		for i := range len(s) {
			x = (x ^ uint32(s[i])) * 16777619
		}
	}
	x ^= x >> 16
	x *= 0x85ebca6b
	x ^= x >> 13
	x *= 0xc2b2ae35
	return x ^ x>>16
}

// Len returns the number of items.
func (t *Tree[T]) Len() int { return t.root.count() }

func (l *Leaf[T]) count() int {
	if l == nil {
		return 0
	}
	return int(l.size)
}

// update recomputes a leaf's size and aggregate from its children.
func (t *Tree[T]) update(l *Leaf[T]) {
	l.size = int32(1 + l.left.count() + l.right.count())
	if t.gather != nil {
		t.gather(l, l.left, l.right)
	}
}

// Insert adds a leaf. Its item must not be in the tree yet.
func (t *Tree[T]) Insert(x *Leaf[T]) {
	x.left, x.right = nil, nil
	t.root = t.insertAt(t.root, x)
}

// insertAt descends to the first leaf of lower weight, which x displaces: that subtree is
// split into the children of x.
func (t *Tree[T]) insertAt(l, x *Leaf[T]) *Leaf[T] {
	switch {
	case l == nil:
		t.update(x)
		return x
	case x.Weight > l.Weight:
		x.left, x.right = t.split(l, x.Item)
		t.update(x)
		return x
	case t.Compare(x.Item, l.Item) < 0:
		l.left = t.insertAt(l.left, x)
	default:
		l.right = t.insertAt(l.right, x)
	}
	t.update(l)
	return l
}

// split divides a subtree into the leaves before item and the leaves after it.
func (t *Tree[T]) split(l *Leaf[T], item T) (before, after *Leaf[T]) {
	if l == nil {
		return nil, nil
	}
	if t.Compare(l.Item, item) < 0 {
		l.right, after = t.split(l.right, item)
		t.update(l)
		return l, after
	}
	before, l.left = t.split(l.left, item)
	t.update(l)
	return before, l
}

// Build fills an empty tree with the leaves, which may be in any order. It sorts the list
// in place.
func (t *Tree[T]) Build(list []*Leaf[T]) {
	if len(list) > 1 {
		slices.SortFunc(list, func(a, b *Leaf[T]) int { return t.Compare(a.Item, b.Item) })
	}
	t.link(list)
}

// link builds the tree from sorted leaves in O(n). Each leaf takes the lighter end of the
// right spine as its left child. Size and aggregate of a leaf are computed once it leaves
// the spine, when its children are final.
func (t *Tree[T]) link(list []*Leaf[T]) {
	if len(list) == 1 {
		list[0].left, list[0].right = nil, nil
		t.root = list[0]
		t.update(t.root)
		return
	}
	var spine []*Leaf[T] // from the root to the right
	for _, x := range list {
		x.left, x.right = nil, nil
		for last := len(spine) - 1; last >= 0 && spine[last].Weight < x.Weight; last-- {
			x.left = spine[last]
			t.update(x.left)
			spine = spine[:last]
		}
		if last := len(spine) - 1; last >= 0 {
			spine[last].right = x
		}
		spine = append(spine, x)
	}
	for last := len(spine) - 1; last >= 0; last-- {
		t.update(spine[last])
	}
	t.root = nil
	if len(spine) > 0 {
		t.root = spine[0]
	}
}

// Remove takes out an item that is in the tree. Its order must not have changed
// since it was inserted.
func (t *Tree[T]) Remove(x *Leaf[T]) { t.root = t.removeAt(t.root, x) }

// removeAt removes x from the subtree of l and returns the new root of the subtree. It
// panics if the order does not lead to x.
func (t *Tree[T]) removeAt(l, x *Leaf[T]) *Leaf[T] {
	switch {
	case l == nil:
		panic("placement: removed an item that is not in its tree")
	case l == x:
		return t.join(l.left, l.right)
	case t.Compare(x.Item, l.Item) < 0:
		l.left = t.removeAt(l.left, x)
	default:
		l.right = t.removeAt(l.right, x)
	}
	t.update(l)
	return l
}

// join merges two subtrees; all items of a come before those in b.
func (t *Tree[T]) join(a, b *Leaf[T]) *Leaf[T] {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	case a.Weight > b.Weight:
		a.right = t.join(a.right, b)
		t.update(a)
		return a
	default:
		b.left = t.join(a, b.left)
		t.update(b)
		return b
	}
}

// First returns the first item in order.
func (t *Tree[T]) First() (item T, ok bool) {
	l := t.root
	if l == nil {
		return item, false
	}
	for l.left != nil {
		l = l.left
	}
	return l.Item, true
}

// Cursor walks a tree in order. The tree must not change meanwhile.
type Cursor[T any] struct{ path []*Leaf[T] }

// Begin goes to the first item.
func (c *Cursor[T]) Begin(t *Tree[T]) {
	c.path = c.path[:0]
	c.descend(t.root)
}

// descend goes to the first item of a subtree and records the path to it.
func (c *Cursor[T]) descend(l *Leaf[T]) {
	for ; l != nil; l = l.left {
		c.path = append(c.path, l)
	}
}

// At returns the cursor's current item; ok is false past the end.
func (c *Cursor[T]) At() (item T, ok bool) {
	if len(c.path) == 0 {
		return item, false
	}
	return c.path[len(c.path)-1].Item, true
}

// Next goes to the item after the present one.
func (c *Cursor[T]) Next() {
	last := len(c.path) - 1
	l := c.path[last]
	c.path = c.path[:last]
	c.descend(l.right)
}

// At returns the i-th item in order, counted from 0; ok is false past the end.
func (t *Tree[T]) At(i int) (item T, ok bool) {
	l := t.root
	for l != nil {
		switch n := l.left.count(); {
		case i < n:
			l = l.left
		case i == n:
			return l.Item, true
		default:
			i, l = i-n-1, l.right
		}
	}
	return item, false
}

// Before returns the number of items in the tree that come before the given item. This
// item need not be in the tree.
func (t *Tree[T]) Before(item T) int {
	n := 0
	for l := t.root; l != nil; {
		if t.Compare(l.Item, item) < 0 {
			n += l.left.count() + 1
			l = l.right
		} else {
			l = l.left
		}
	}
	return n
}
