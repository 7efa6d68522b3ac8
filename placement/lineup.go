package placement

import (
	"cmp"
	"container/heap"
	"slices"
	"time"
)

// line puts all jobs that may start into lines, where there are none. That many
// at once are sorted faster than put in one by one: class by class, and where
// many are compared by what they are compared by, told together.
func (s *Snapshot) line() {
	first := make(map[*class]*leaf[*entry], len(s.classes)) // a list, linked to the right
	for _, e := range s.jobs {
		e.line = nil
		e.rate(&s.policy, s.edge)
		if !e.ready {
			continue
		}
		e.leaf.right, first[e.class] = first[e.class], &e.leaf
		e.class.ready++
		if e.TimeLimit > 0 {
			e.class.limits.append(e)
		}
	}
	begun := make([][]*line, 1+len(s.accounts)) // by account.index
	var pool lines
	for _, c := range s.roster {
		s.lineClass(c, first[c], &pool, begun)
	}
	var keys []lineKey
	var sorted []*leaf[*line]
	for _, list := range begun {
		if len(list) == 0 {
			continue
		}
		a := list[0].account
		a.lines = make(map[*class]*line, len(list))
		keys = keys[:0]
		for _, l := range list {
			a.lines[l.class] = l
			keys = append(keys, keyOf(l))
		}
		slices.SortFunc(keys, compareKeys)
		sorted = sorted[:0]
		for i := range keys {
			sorted = append(sorted, &keys[i].line.leaf)
		}
		a.ready.plant(sorted)
	}
}

// lineClass makes the lines of one class and lists them by their accounts.
func (s *Snapshot) lineClass(c *class, list *leaf[*entry], pool *lines, begun [][]*line) {
	heap.Init(&c.limits)
	for x := list; x != nil; {
		e, next := x.item, x.right
		a := s.account(e.Tenant)
		var l *line
		if mine := begun[a.index]; len(mine) > 0 && mine[len(mine)-1].class == c {
			l = mine[len(mine)-1]
		} else {
			l = a.newLine(pool.next(), c)
			begun[a.index] = append(mine, l)
		}
		x.right, l.jobs.root = l.jobs.root, x
		e.line = l
		x = next
	}
	var jobs []*leaf[*entry]
	for _, l := range c.lines {
		jobs = jobs[:0]
		for x := l.jobs.root; x != nil; x = x.right {
			jobs = append(jobs, x)
		}
		l.jobs.build(jobs)
		l.head, _ = l.jobs.first()
	}
}

// lines are new ones, made some at a time.
type lines []line

func (p *lines) next() *line {
	if len(*p) == 0 {
		*p = make(lines, 64)
	}
	l := &(*p)[0]
	*p = (*p)[1:]
	return l
}

// lineKey is what a line is sorted by.
type lineKey struct {
	line    *line
	band    int
	overdue bool
	rank    float64
	since   time.Duration // from the origin of ages until the first job came
}

func keyOf(l *line) lineKey {
	e := l.head
	return lineKey{l, e.band, e.overdue, e.rank, e.SubmittedAt.Sub(origin)}
}

// compareKeys is compareEntries of their first jobs.
func compareKeys(a, b lineKey) int {
	if a.band == b.band && a.overdue == b.overdue {
		if c := cmp.Compare(a.rank, b.rank); c != 0 && !a.overdue {
			return c
		}
		if c := cmp.Compare(a.since, b.since); c != 0 {
			return c
		}
	}
	return compareEntries(a.line.head, b.line.head)
}
