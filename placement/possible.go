package placement

// possible reports whether the machines could hold all members of a job of the
// class if they were empty.
func (r *placer) possible(c *class) bool {
	m := r.memory.of(c)
	switch r.cluster.shape {
	case m.never:
		return false
	case m.ever:
		return true
	}
	r.cluster.settle(c)
	members := map[string]int{} // by group
	for _, x := range c.matches {
		for _, n := range x.kind.all(r.number) {
			group := c.groupOf(&n.Machine)
			if members[group] += c.membersOn(n); members[group] >= c.members() {
				m.ever = r.cluster.shape
				return true
			}
		}
	}
	m.never = r.cluster.shape
	return false
}
