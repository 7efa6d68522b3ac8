package placement

import (
	"fmt"

	"berth"
)

// countElement adds a running element to its parent, or with n -1 removes it.
func (q *queue) countElement(parent berth.JobID, n int) {
	if parent == "" {
		return
	}
	if q.siblings[parent] += n; q.siblings[parent] == 0 {
		delete(q.siblings, parent)
	}
}

// full reports whether as many elements of the job's parent hold room as may at
// once, those counted that this plan gives some.
func (r *shares) full(e *entry) bool {
	return e.Parallel > 0 && r.queue.siblings[e.Parent]+r.siblings[e.Parent] >= e.Parallel
}

// join counts a job among the elements of its parent that hold room, for the
// rest of the plan.
func (r *shares) join(e *entry) {
	if e.Parallel > 0 {
		if r.siblings == nil {
			r.siblings = map[berth.JobID]int{}
		}
		r.siblings[e.Parent]++
	}
}

// crowded says how many of the job's siblings hold room.
func (r *shares) crowded(e *entry) string {
	return fmt.Sprintf("%d elements of its array hold room, as many as may at once (parallel)",
		r.queue.siblings[e.Parent])
}
