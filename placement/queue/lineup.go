package queue

import (
	"container/heap"
	"slices"

	"berth/placement/cluster"
)

// arrival is a job that is put in line together with many others, with all that
// says where.
type arrival struct {
	stand
	account int32
	entry   *Entry
}

// lineUp puts all jobs that may start into lines, where there are none. That many
// at once are sorted faster than put in one by one: they are dealt out by class
// and then by account, so that each line's jobs come one after the other, without
// a look at any but the one that is dealt.
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

// deal sorts by a small number, and leaves in their order those of which it is
// the same.
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

// lineAccount makes the lines of one account, of its jobs by class.
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

// listByClass lists the lines of each class, of which there are so many.
func (q *Queue) listByClass(counts []int) {
	sum := 0
	for _, n := range counts {
		sum += n
	}
	room := make([]*Line, sum)
	for i, c := range q.classes {
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

// lines are new ones, made some at a time.
type lines []Line

func (p *lines) next() *Line {
	if len(*p) == 0 {
		*p = make(lines, 64)
	}
	l := &(*p)[0]
	*p = (*p)[1:]
	return l
}
