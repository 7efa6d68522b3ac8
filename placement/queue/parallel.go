package queue

import (
	"fmt"

	"berth"
)

// countElement adds a running element to the count of its parent, or with n -1 removes one.
func (q *Queue) countElement(parent berth.JobID, n int) {
	if parent == "" {
		return
	}
	if q.siblings[parent] += n; q.siblings[parent] == 0 {
		delete(q.siblings, parent)
	}
}

// Full reports whether the parent of a job has reached its limit of elements on machines
// (Job.Parallel), including the starts of this plan.
func (r *Shares) Full(e *Entry) bool {
	return e.Parallel > 0 && r.queue.siblings[e.Parent]+r.siblings[e.Parent] >= e.Parallel
}

// join counts a job among the elements of its parent that hold capacity, for the rest of
// the plan.
func (r *Shares) join(e *Entry) {
	if e.Parallel > 0 {
		if r.siblings == nil {
			r.siblings = map[berth.JobID]int{}
		}
		r.siblings[e.Parent]++
	}
}

// Crowded returns a text with the number of the job's running siblings, for explanations.
func (r *Shares) Crowded(e *Entry) string {
	return fmt.Sprintf("the array is at its limit of %d running elements (parallel)", e.Parallel)
}
