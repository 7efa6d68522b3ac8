package placement

import (
	"fmt"

	"berth"
)

// sibling counts an element of a parent that holds room, or no more.
func (s *Snapshot) sibling(parent berth.JobID, n int) {
	if parent == "" {
		return
	}
	if s.siblings[parent] += n; s.siblings[parent] == 0 {
		delete(s.siblings, parent)
	}
}

// full reports whether as many elements of the job's parent hold room as may at
// once, those counted that this plan gives some.
func (r *run) full(e *entry) bool {
	return e.Parallel > 0 && r.snapshot.siblings[e.Parent]+r.siblings[e.Parent] >= e.Parallel
}

// join counts a job among the elements of its parent that hold room, for the
// rest of the plan.
func (r *run) join(e *entry) {
	if e.Parallel > 0 {
		if r.siblings == nil {
			r.siblings = map[berth.JobID]int{}
		}
		r.siblings[e.Parent]++
	}
}

// crowded says how many of the job's siblings hold room.
func (r *run) crowded(e *entry) string {
	return fmt.Sprintf("%d elements of its array hold room, as many as may at once (parallel)", r.snapshot.siblings[e.Parent])
}
