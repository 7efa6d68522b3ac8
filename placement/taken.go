package placement

import "berth"

// taken is what was taken of a machine in a plan, or given back to it.
type taken struct {
	node  *node
	grant berth.Grant
	back  bool         // given, not taken
	held  *berth.Grant // node.kept.held before, if it came from there
}

// take makes the choice count for the rest of the plan.
func (r *run) take(c choice) {
	n := c.node
	t := taken{node: n, grant: c.grant}
	r.move(n, func() {
		if c.brief {
			k := n.kept
			was := k.held
			t.held = &was
			n.add(was)
			n.subtract(c.grant)
			k.held = amount{}.plus(n, was, 1).plus(n, c.grant, -1).within(n)
			n.subtract(k.held)
			return
		}
		n.subtract(c.grant)
	})
	r.taken = append(r.taken, t)
}

// give makes room as if it were free.
func (r *run) give(n *node, list ...berth.Grant) {
	r.move(n, func() { n.addAll(list) })
	for _, g := range list {
		r.taken = append(r.taken, taken{node: n, grant: g, back: true})
	}
}

// undo takes back what was taken and given since mark.
func (r *run) undo(mark int) {
	for i := len(r.taken) - 1; i >= mark; {
		n := r.taken[i].node
		r.move(n, func() {
			for ; i >= mark && r.taken[i].node == n; i-- {
				r.taken[i].revert()
			}
		})
	}
	r.taken = r.taken[:mark]
}

func (t *taken) revert() {
	n := t.node
	switch {
	case t.back:
		n.subtract(t.grant)
	case t.held != nil:
		n.add(n.kept.held)
		n.add(t.grant)
		n.kept.held = *t.held
		n.subtract(*t.held)
	default:
		n.add(t.grant)
	}
}
