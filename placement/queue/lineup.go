package queue

import (
	"container/heap"
	"slices"

	"berth/placement/cluster"
)

// arrival is a job that lineUp inserts, with all sort keys, so that sorting does not read
// the job.
type arrival struct {
	stand
	account int32 // Account.Index
	entry   *Entry
}

// lineUp inserts all eligible jobs into new lines; no lines may exist. Sorting so many jobs
// at once is faster than single insertions: two counting sorts, by class and then by
// account, bring the jobs of each line together, and read only the arrival that they move.
func (q *Queue) lineUp() {
	list := make([]arrival, 0, len(q.Waiting))
	for _, e := range q.Waiting {
		e.Line = nil
		e.rate(&q.Policy, q.edge)
		if !e.ready {
			continue
		}
		c := q.Of(e.Class)
		c.Ready++
		if e.Limit > 0 {
			c.limits.append(e)
		}
		list = append(list, arrival{standOf(e), int32(e.tally.account.Index), e})
	}
	// Both sorts are stable, so the second one keeps the order by class within an account
	// (a radix sort with two digits).
	spare := make([]arrival, len(list))
	deal(list, spare, len(q.classes), func(x *arrival) int { return x.class() })
	deal(spare, list, 1+len(q.accounts), func(x *arrival) int { return int(x.account) })

	var pool lines
	counts := make([]int, len(q.classes)) // of lines, by class
	for len(list) > 0 {
		i := 1
		for i < len(list) && list[i].account == list[0].account {
			i++
		}
		q.lineAccount(list[:i], &pool, counts)
		list = list[i:]
	}
	q.listByClass(counts)
	for _, c := range q.classes {
		heap.Init(&c.limits)
	}
}

// deal is a stable counting sort of from into to, by number, which is below numbers.
func deal(from, to []arrival, numbers int, number func(*arrival) int) {
	at := make([]int, numbers+1)
	for i := range from {
		at[number(&from[i])+1]++
	}
	for i := range numbers {
		at[i+1] += at[i]
	}
	for i := range from {
		n := number(&from[i])
		to[at[n]] = from[i]
		at[n]++
	}
}

// lineAccount creates the lines of one account from its jobs, which list holds by class. It
// adds each line to counts, by class.
func (q *Queue) lineAccount(list []arrival, pool *lines, counts []int) {
	a, n := list[0].entry.tally.account, 1
	for i := 1; i < len(list); i++ {
		if list[i].class() != list[i-1].class() {
			n++
		}
	}
	a.lines, a.order = make([]lineOf, 0, n), make([]stand, 0, n)
	var jobs []*cluster.Leaf[*Entry]
	for len(list) > 0 {
		first, number, l := list[0].stand, list[0].class(), pool.next()
		jobs = jobs[:0]
		i := 0
		for ; i < len(list) && list[i].class() == number; i++ {
			list[i].entry.Line = l
			jobs = append(jobs, &list[i].entry.leaf)
		}
		l.account, l.class, l.jobs.Compare = a, q.classes[number].class, CompareEntries
		l.jobs.Build(jobs)
		// A line of one job keeps the key of its arrival; the tree decides the first of
		// several.
		if l.head = list[0].entry; i > 1 {
			l.head, _ = l.jobs.First()
			first = standOf(l.head)
		}
		first.line = l
		a.lines, a.order = append(a.lines, lineOf{int32(number), l}), append(a.order, first)
		counts[number]++
		list = list[i:]
	}
	slices.SortFunc(a.order, compareStands)
}

// listByClass fills ClassQueue.Lines from the accounts. counts is the number of lines per
// class; one shared array holds all lists.
func (q *Queue) listByClass(counts []int) {
	sum := 0
	for _, n := range counts {
		sum += n
	}
	room := make([]*Line, sum)
	for i, c := range q.classes {
		// The bounded capacity keeps a later append of one class off the next class's part.
		c.Lines, room = room[:0:counts[i]], room[counts[i]:]
	}
	each := func(a *Account) {
		for _, x := range a.lines {
			c := q.Of(x.line.class)
			x.line.number = int32(len(c.Lines))
			c.Lines = append(c.Lines, x.line)
		}
	}
	each(q.shared)
	for _, a := range q.accounts {
		each(a)
	}
}

// lines is a pool of unused lines, allocated 64 at a time.
type lines []Line

// next returns an unused line.
func (p *lines) next() *Line {
	if len(*p) == 0 {
		*p = make(lines, 64)
	}
	l := &(*p)[0]
	*p = (*p)[1:]
	return l
}
