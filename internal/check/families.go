package check

import (
	"cmp"
	"slices"
	"strconv"

	"berth"
	"berth/db/history"
	"berth/spec"
)

// parallelHolds proves invariant 26: at no number of the ledger do more elements hold
// capacity than the array's parallel. It replays the takes and releases of all elements
// in the order of the ledger. The capacity of an element that is being archived may
// already be missing, so the count may be too low, and never too high.
func parallelHolds(c *familyCase) {
	if c.f.Parallel <= 0 {
		return
	}
	// A change of one element's number of allocations with capacity.
	type change struct {
		seq int64
		by  int
		of  history.Child
	}
	var list []change
	for _, e := range c.f.Children {
		for _, s := range e.Spans {
			list = append(list, change{s.Taken, 1, e})
			if s.Until != 0 {
				list = append(list, change{s.Until, -1, e})
			}
		}
	}
	slices.SortFunc(list, func(a, b change) int { return cmp.Compare(a.seq, b.seq) })
	holding := map[berth.JobID]int{}
	for _, x := range list {
		if holding[x.of.ID] += x.by; holding[x.of.ID] == 0 {
			delete(holding, x.of.ID)
		}
		if len(holding) > c.f.Parallel {
			c.breach(rows(x.of), "%d elements hold capacity at number %d of the ledger, at most %d may", len(holding),
				x.seq, c.f.Parallel)
			return
		}
	}
}

// parentsFollow proves invariant 27. Each index of an array is at most one element, and
// one of the array's indexes. A terminal parent has only terminal children, and none
// ended after its parent. A parent succeeds exactly if all its children do, apart from skipped
// steps; the results of archived children are unknown, so these make no breach.
func parentsFollow(c *familyCase) {
	f := c.f
	if n := len(f.Children) + f.Archived; n > f.Total {
		c.breach(nil, "it has %d elements, of %d", n, f.Total)
	}
	seen := map[int]bool{}
	succeeded, skipped := 0, 0
	for _, e := range f.Children {
		switch {
		case e.Step != "": // the schema forbids a second step of a name
		case e.Index < 0 || f.Indexes == nil && e.Index >= f.Total ||
			f.Indexes != nil && !slices.Contains(f.Indexes, e.Index):
			c.breach(rows(e), "element %d is none of its indexes", e.Index)
		case seen[e.Index]:
			c.breach(rows(e), "element %d is there twice", e.Index)
		}
		seen[e.Index] = true
		switch {
		case e.State == berth.Succeeded:
			succeeded++
		case e.Skipped:
			skipped++
		}
		if !f.State.Terminal() {
			continue
		}
		switch {
		case !e.State.Terminal():
			c.breach(rows(e), "it is %s, and element %s is %s", f.State, nameOf(e), e.State)
		case e.FinishedAt != nil && f.FinishedAt != nil && e.FinishedAt.After(f.FinishedAt.Add(c.v.o.Skew)):
			c.breach(rows(e), "element %s ended after it", nameOf(e))
		}
	}
	whole := succeeded+skipped == len(f.Children) && len(f.Children)+f.Archived == f.Total
	switch {
	case f.State == berth.Succeeded && !whole:
		c.breach(nil, "it succeeded, and of %d elements %d did, beside %d in the archive", f.Total,
			succeeded, f.Archived)
	case f.State.Terminal() && f.State != berth.Succeeded && f.Archived == 0 && succeeded+skipped == f.Total:
		c.breach(nil, "it is %s, and all its elements succeeded", f.State)
	}
}

// nameOf is the step's name, or the element's index.
func nameOf(e history.Child) string {
	if e.Step != "" {
		return e.Step
	}
	return strconv.Itoa(e.Index)
}

// needsComeFirst proves invariant 28 by numbers of the ledger: before a step takes
// capacity, all its needs have freed theirs, and have ended as its condition demands. A final
// step needs all other steps. For a need that is a pipeline or an array, this applies to all
// its children. Ends are final (invariant 5), so the present state of a need decides, and the
// numbers prove the order.
func needsComeFirst(c *familyCase) {
	byID := map[berth.JobID]history.Child{}
	for _, e := range c.f.Children {
		byID[e.ID] = e
	}
	for _, e := range c.f.Children {
		failed := 0
		for _, id := range c.needsOf(e) {
			need, ok := byID[id]
			if !ok || len(e.Spans) == 0 { // the need is archived, or the step never began
				failed++
				continue
			}
			if unsuccessful(need) {
				failed++
			}
			if !need.State.Terminal() || needsSuccess(e) && need.State != berth.Succeeded ||
				e.When == spec.WhenSuccess && unsuccessful(need) {
				c.breach(rows(need, e), "step %s was placed, and %s, which it needs, is %s", nameOf(e),
					nameOf(need), need.State)
				continue
			}
			for _, s := range need.Spans {
				if s.Until == 0 || slices.ContainsFunc(e.Spans,
					func(x history.Span) bool { return x.Taken < s.Until }) {
					c.breach(rows(need, e), "step %s took capacity before %s, which it needs, had freed its own",
						nameOf(e), nameOf(need))
					break
				}
			}
		}
		if e.When == spec.WhenFailure && failed == 0 && len(e.Spans) > 0 {
			c.breach(rows(e), "step %s runs after a failure, and none of its needs failed", nameOf(e))
		}
	}
}

// unsuccessful reports whether a need failed or was canceled. A skipped step did neither.
func unsuccessful(need history.Child) bool {
	return need.State == berth.Failed || need.State == berth.Canceled && !need.Skipped
}

// needsSuccess reports whether a step starts only after the success of all its needs.
func needsSuccess(e history.Child) bool {
	return !e.Final && e.When != spec.WhenFailure && e.When != spec.WhenAlways
}

// needsOf returns the jobs for which a step waits.
func (c *familyCase) needsOf(e history.Child) []berth.JobID {
	if !e.Final {
		return e.Needs
	}
	var others []berth.JobID
	for _, x := range c.f.Children {
		if !x.Final {
			others = append(others, x.ID)
		}
	}
	return others
}
