package check

// holdsFollow proves invariant 37: a debug job runs at most once, with one member on the machine of the
// member that it holds, and is placed there only after that member has freed its capacity. So one capacity
// never has two owners, and one folder never has two containers. A debug job never guarantees at_most_one: a
// second container with the files is its purpose.
func holdsFollow(c *jobCase) {
	if !c.j.Debug {
		return
	}
	if c.j.Attempt > 1 {
		c.breach(nil, "the debug job is at attempt %d", c.j.Attempt)
	}
	if c.j.Execution == atMostOne {
		c.breach(nil, "the debug job is at_most_one work")
	}
	h := c.j.Hold
	if h == nil {
		return
	}
	if len(c.j.Allocations) > 1 {
		c.breach(nil, "the debug job has %d allocations", len(c.j.Allocations))
	}
	for _, a := range c.j.Allocations {
		if a.Machine != h.Machine {
			c.of(a, rows(h, a), "the debug job is on %s, and the files of the failed member are on %s", a.Machine,
				h.Machine)
		}
		if a.TakenSeq != 0 && h.FreedSeq != 0 && a.TakenSeq < h.FreedSeq {
			c.of(a, rows(h, a), "the debug job was placed before the failed member had freed its capacity")
		}
	}
}
