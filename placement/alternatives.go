package placement

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"berth"
	"berth/placement/cluster"
	"berth/placement/queue"
)

// A waiting job with alternatives is in a class with the request that is in force, which lists the
// classes of all hardware that the job may take now (Class.Choices). Reserved starts, preemption,
// nominations, shares and estimates use the request in force. Only a start may use another one: at the
// job's turn the first choice with room wins. The commit makes that choice the one in force, in the
// transaction that reserves its capacity, so a waiting job never moves between alternatives.

// classOf returns the class of a waiting job, and defines it if it is new.
func classOf(s *Snapshot, j queue.Job) *cluster.Class {
	in := ownClass(s, j.ID, j.Class, j.Tenant)
	// The class rests on the times that have passed in s.opened, not on a clock of its own.
	n := openedAt(j, s.opened)
	if n == len(j.Alternatives) && n == 0 || n == 1 && j.InForce == 0 {
		return in
	}
	choices := make([]*cluster.Class, n)
	var name strings.Builder
	name.WriteString(in.Name + "\x00alternatives")
	for i := range choices {
		if choices[i] = in; i != j.InForce {
			choices[i] = ownClass(s, j.ID, j.Alternatives[i].Class, j.Tenant)
		}
		name.WriteString("\x00" + choices[i].Name)
	}
	fmt.Fprintf(&name, "\x00%d", j.InForce)
	if c := s.cluster.Classes[name.String()]; c != nil {
		return c
	}
	c := cluster.NewClass(name.String(), in.Request)
	c.Tenant, c.Sharer, c.OfTenant, c.ClosedPools = in.Tenant, in.Sharer, in.OfTenant, in.ClosedPools
	if in.Untrusted {
		c.Distrust()
	}
	c.Choices, c.InForce = choices, j.InForce
	s.define(c)
	return c
}

// ownClass returns the class of a tenant's jobs with the request of a class, and defines it if it is new.
func ownClass(s *Snapshot, job berth.JobID, name string, tenant berth.TenantID) *cluster.Class {
	c := s.cluster.Classes[name]
	if c == nil {
		panic(fmt.Sprintf("placement: job %s is of class %q, which is not defined", job, name))
	}
	c, created := s.cluster.ClassFor(c, tenant)
	if created {
		s.define(c)
	}
	return c
}

// openedAt returns the number of alternatives that a job may take at a time. They open in order, and
// the one in force is always open.
func openedAt(j queue.Job, now time.Time) int {
	n := min(j.InForce+1, len(j.Alternatives))
	for n < len(j.Alternatives) && !j.Alternatives[n].Opens.After(now) {
		n++
	}
	return n
}

// expectOpening keeps opening no later than the time at which the job's next alternative opens.
func expectOpening(s *Snapshot, j queue.Job) {
	n := openedAt(j, s.opened)
	if n == len(j.Alternatives) {
		return
	}
	if at := j.Alternatives[n].Opens; s.opening.IsZero() || at.Before(s.opening) {
		s.opening = at
	}
}

// openAlternatives moves the waiting jobs with an alternative that has opened to their new classes. It
// reads the queue only once the earliest opening has come.
func openAlternatives(s *Snapshot, now time.Time) {
	if now.After(s.opened) {
		s.opened = now
	}
	if s.opening.IsZero() || s.opening.After(now) {
		return
	}
	s.opening = time.Time{}
	for _, e := range slices.Clone(s.queue.Waiting) {
		if len(e.Alternatives) == 0 {
			continue
		}
		if classOf(s, e.Job) != e.Class {
			s.UpsertJob(e.Job)
		} else {
			expectOpening(s, e.Job)
		}
	}
}

// onlyChoice is the result of choicesFor for most jobs, which must not cost an allocation.
var onlyChoice = []int{0}

// choicesFor returns the numbers of the alternatives that no quota keeps from the job, in order. For a
// job without alternatives it is 0, or nothing.
func (r *run) choicesFor(x *queue.Contender, e *queue.Entry) (list []int) {
	if e.Class.Choices == nil {
		if _, barred := r.shares.Barred(x, e); barred {
			return nil
		}
		return onlyChoice
	}
	for i := range e.Class.Choices {
		if _, barred := r.shares.Barred(x, chosen(e, i)); !barred {
			list = append(list, i)
		}
	}
	return list
}

// chosen returns a copy of a job as if one of its alternatives were its only hardware. The copy is in no
// line of the queue.
func chosen(e *queue.Entry, number int) *queue.Entry {
	if e.Class.Choices == nil || number == e.Class.InForce {
		return e
	}
	x := *e
	x.Class, x.Job.Class = e.Class.Choices[number], e.Alternatives[number].Class
	return &x
}

// placeFirst places a job on the first of some alternatives that has room. A job with nominations waits
// for the capacity that is kept for it, so only the alternative in force is tried.
func (r *run) placeFirst(e *queue.Entry, choices []int) (berth.Start, bool) {
	in := e.Class.InForce
	nominated := len(r.nominations.Marks[e.ID]) > 0
	if e.Class.Choices == nil {
		start, ok := r.place(e)
		start.Alternative = e.InForce
		return start, ok
	}
	r.placer.End = r.over(e)
	r.placer.Over = r.placer.End
	if !nominated && r.placer.Hopeless(e.Class) {
		return berth.Start{}, false // no choice had room for an earlier job of the class
	}
	for _, i := range choices {
		if nominated && i != in {
			continue
		}
		x := chosen(e, i)
		if start, ok := r.place(x); ok {
			start.Alternative = i
			return start, true
		}
		if i != in {
			r.placer.Fail(x.Class) // the search did without nominations, as it does for every job of the class
		}
	}
	return berth.Start{}, false
}
