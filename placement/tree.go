package placement

import "slices"

// tree is an ordered set: a treap whose shape depends on its items alone, not
// on how they came. Every operation takes O(log n).
type tree[T any] struct {
	root    *leaf[T]
	compare func(a, b T) int
	// gather, if set, is called bottom-up whenever a subtree has changed; the
	// children may be nil.
	gather func(at, left, right *leaf[T])
}

// leaf is an item's place in a tree. It lives in the item, so that moving an
// item allocates nothing.
type leaf[T any] struct {
	item        T
	weight      uint32 // a parent's is never less than its children's
	size        int32
	left, right *leaf[T]
}

// weightOf derives a leaf's weight from a name.
func weightOf(name ...string) uint32 {
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

func (t *tree[T]) len() int { return t.root.count() }

func (l *leaf[T]) count() int {
	if l == nil {
		return 0
	}
	return int(l.size)
}

func (t *tree[T]) update(l *leaf[T]) {
	l.size = int32(1 + l.left.count() + l.right.count())
	if t.gather != nil {
		t.gather(l, l.left, l.right)
	}
}

// insert adds a leaf whose item is not in the tree.
func (t *tree[T]) insert(x *leaf[T]) {
	x.left, x.right = nil, nil
	t.root = t.insertAt(t.root, x)
}

func (t *tree[T]) insertAt(l, x *leaf[T]) *leaf[T] {
	switch {
	case l == nil:
		t.update(x)
		return x
	case x.weight > l.weight:
		x.left, x.right = t.split(l, x.item)
		t.update(x)
		return x
	case t.compare(x.item, l.item) < 0:
		l.left = t.insertAt(l.left, x)
	default:
		l.right = t.insertAt(l.right, x)
	}
	t.update(l)
	return l
}

// split parts a subtree into what is before item and what is after it.
func (t *tree[T]) split(l *leaf[T], item T) (before, after *leaf[T]) {
	if l == nil {
		return nil, nil
	}
	if t.compare(l.item, item) < 0 {
		l.right, after = t.split(l.right, item)
		t.update(l)
		return l, after
	}
	before, l.left = t.split(l.left, item)
	t.update(l)
	return before, l
}

// build makes the tree of leaves in any order, which it sorts, where there was
// none.
func (t *tree[T]) build(list []*leaf[T]) {
	if len(list) > 1 {
		slices.SortFunc(list, func(a, b *leaf[T]) int { return t.compare(a.item, b.item) })
	}
	t.link(list)
}

// link builds the tree from leaves that are in order. The tree is empty before.
func (t *tree[T]) link(list []*leaf[T]) {
	if len(list) == 1 {
		list[0].left, list[0].right = nil, nil
		t.root = list[0]
		t.update(t.root)
		return
	}
	var spine []*leaf[T] // from the root to the right
	for _, x := range list {
		x.left, x.right = nil, nil
		for last := len(spine) - 1; last >= 0 && spine[last].weight < x.weight; last-- {
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

// remove takes out an item that is in the tree. Its order must not have changed
// since it was inserted.
func (t *tree[T]) remove(x *leaf[T]) { t.root = t.removeAt(t.root, x) }

func (t *tree[T]) removeAt(l, x *leaf[T]) *leaf[T] {
	switch {
	case l == nil:
		panic("placement: removed an item that is not in its tree")
	case l == x:
		return t.join(l.left, l.right)
	case t.compare(x.item, l.item) < 0:
		l.left = t.removeAt(l.left, x)
	default:
		l.right = t.removeAt(l.right, x)
	}
	t.update(l)
	return l
}

func (t *tree[T]) join(a, b *leaf[T]) *leaf[T] {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	case a.weight > b.weight:
		a.right = t.join(a.right, b)
		t.update(a)
		return a
	default:
		b.left = t.join(a, b.left)
		t.update(b)
		return b
	}
}

// first returns the first item in order.
func (t *tree[T]) first() (item T, ok bool) {
	l := t.root
	if l == nil {
		return item, false
	}
	for l.left != nil {
		l = l.left
	}
	return l.item, true
}

// cursor walks a tree in order. The tree must not change meanwhile.
type cursor[T any] struct{ path []*leaf[T] }

// begin goes to the first item.
func (c *cursor[T]) begin(t *tree[T]) {
	c.path = c.path[:0]
	c.descend(t.root)
}

func (c *cursor[T]) descend(l *leaf[T]) {
	for ; l != nil; l = l.left {
		c.path = append(c.path, l)
	}
}

// at returns the item that the cursor is at; ok is false past the end.
func (c *cursor[T]) at() (item T, ok bool) {
	if len(c.path) == 0 {
		return item, false
	}
	return c.path[len(c.path)-1].item, true
}

// next goes to the item after the present one.
func (c *cursor[T]) next() {
	last := len(c.path) - 1
	l := c.path[last]
	c.path = c.path[:last]
	c.descend(l.right)
}

// at returns the i-th item in order, counted from 0; ok is false past the end.
func (t *tree[T]) at(i int) (item T, ok bool) {
	l := t.root
	for l != nil {
		switch n := l.left.count(); {
		case i < n:
			l = l.left
		case i == n:
			return l.item, true
		default:
			i, l = i-n-1, l.right
		}
	}
	return item, false
}

// before returns how many items come before one that need not be in the tree.
func (t *tree[T]) before(item T) int {
	n := 0
	for l := t.root; l != nil; {
		if t.compare(l.item, item) < 0 {
			n += l.left.count() + 1
			l = l.right
		} else {
			l = l.left
		}
	}
	return n
}
