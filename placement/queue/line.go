package queue

import (
	"cmp"
	"math"
	"slices"

	"berth/placement/cluster"
)

// Line is the eligible jobs of one class of one account, in order. The fields that
// plans read of many lines come first, close together.
type Line struct {
	class     *cluster.Class
	account   *Account
	head      *Entry // the first of jobs
	at        *Entry // in the plan enteredAt, the next job
	enteredAt int    // the plan whose walk it is
	over      bool   // none of it is left for that plan
	number    int32  // in ClassQueue.Lines
	jobs      cluster.Tree[*Entry]
	walk      cluster.Cursor[*Entry] // of that plan, once past the first job
}

// lineOf is a line with the number of its class.
type lineOf struct {
	class int32
	line  *Line
}

// stand is a line with what it is sorted by in its account, told so shortly that
// a walk past many reads nothing else.
type stand struct {
	// front is the band, the highest first; who is not overdue, last; and in its
	// last 31 bits, which do not order, the number of the class.
	front uint64
	rank  uint64 // of one that is overdue, when it was submitted
	line  *Line
}

const classBits = 31

// class is the number of the line's class.
func (s *stand) class() int { return int(s.front & (1<<classBits - 1)) }

// standOf tells where a job's line belongs while that job is the first of it.
func standOf(e *Entry) (s stand) {
	s.front = uint64(^(uint32(e.Band)^1<<31))<<32 | uint64(e.Class.Number)
	if e.Overdue {
		s.rank = uint64(e.submitted) ^ 1<<63
		return s
	}
	s.front |= 1 << classBits
	s.rank = floatKey(e.Rank)
	return s
}

// floatKey orders as floats do.
func floatKey(f float64) uint64 {
	if f == 0 {
		f = 0 // not -0
	}
	b := math.Float64bits(f)
	if b>>63 != 0 {
		return ^b
	}
	return b | 1<<63
}

// compareStands compares the first jobs of two lines as CompareEntries does.
func compareStands(a, b stand) int {
	if a.front>>classBits != b.front>>classBits {
		return cmp.Compare(a.front>>classBits, b.front>>classBits)
	}
	if a.rank != b.rank {
		return cmp.Compare(a.rank, b.rank)
	}
	return CompareEntries(a.line.head, b.line.head)
}

// place puts the line where its first job belongs.
func (a *Account) place(l *Line) {
	s := standOf(l.head)
	s.line = l
	i, _ := slices.BinarySearchFunc(a.order, s, compareStands)
	a.order = slices.Insert(a.order, i, s)
}

// displace takes it out. Its first job must be the one that it was placed by.
func (a *Account) displace(l *Line) {
	s := standOf(l.head)
	s.line = l
	i, found := slices.BinarySearchFunc(a.order, s, compareStands)
	if !found || a.order[i].line != l {
		panic("placement: a line is not where it belongs")
	}
	a.order = slices.Delete(a.order, i, i+1)
}

// find the account's line of a class: its place in the list.
func (a *Account) find(c *cluster.Class) (i int, found bool) {
	return slices.BinarySearchFunc(a.lines, int32(c.Number),
		func(x lineOf, number int32) int { return cmp.Compare(x.class, number) })
}

// push puts an eligible job into the line of its account and class.
func (q *Queue) push(e *Entry) {
	a, c := e.tally.account, q.Of(e.Class)
	i, found := a.find(e.Class)
	if !found {
		l := &Line{account: a, class: e.Class, number: int32(len(c.Lines))}
		l.jobs.Compare = CompareEntries
		c.Lines = append(c.Lines, l)
		a.lines = slices.Insert(a.lines, i, lineOf{int32(e.Class.Number), l})
	}
	l := a.lines[i].line
	if first := l.head == nil || CompareEntries(e, l.head) < 0; first {
		if l.head != nil {
			a.displace(l)
		}
		l.head = e
		a.place(l)
	}
	l.jobs.Insert(&e.leaf)
	e.Line = l
	c.count(e, 1)
}

// pull takes a job out of its line.
func (q *Queue) pull(e *Entry) {
	l, a := e.Line, e.Line.account
	first := l.head == e
	if first {
		a.displace(l)
	}
	l.jobs.Remove(&e.leaf)
	e.Line = nil
	q.Of(e.Class).count(e, -1)
	if l.jobs.Len() == 0 {
		q.drop(l)
	} else if first {
		l.head, _ = l.jobs.First()
		a.place(l)
	}
}

// drop removes a line without jobs.
func (q *Queue) drop(l *Line) {
	l.head = nil
	i, _ := l.account.find(l.class)
	l.account.lines = slices.Delete(l.account.lines, i, i+1)
	c := q.Of(l.class)
	last := len(c.Lines) - 1
	c.Lines[l.number], c.Lines[last].number = c.Lines[last], l.number
	c.Lines[last] = nil
	c.Lines = c.Lines[:last]
}
