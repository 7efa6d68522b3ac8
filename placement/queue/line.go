package queue

import (
	"cmp"
	"math"
	"slices"

	"berth/placement/cluster"
)

// Line holds the eligible jobs of one class of one account, in queue order. The fields that
// plans read of many lines come first, close together in memory.
//
// A plan walks over a line without copying it: at is the position of the walk, and is valid
// only for the plan enteredAt.
type Line struct {
	class     *cluster.Class
	account   *Account
	head      *Entry // first of jobs; nil only while the line is empty
	at        *Entry // next job in the plan enteredAt; nil: past the end
	enteredAt int    // number of the plan that last walked the line
	over      bool   // that plan is done with the line
	number    int32  // index in ClassQueue.Lines
	jobs      cluster.Tree[*Entry]
	walk      cluster.Cursor[*Entry] // position of that plan's walk beyond the first job
}

// lineOf is a line with the number of its class, the key of Account.lines.
type lineOf struct {
	class int32
	line  *Line
}

// stand is a line with its sort key in the account, in 24 bytes, so that a walk over many
// lines reads neither the lines nor their jobs.
type stand struct {
	// front holds, from the highest bit: the band, inverted so that the highest band comes
	// first; a bit that is set unless the first job is overdue; and the number of the class
	// in the last 31 bits, which do not order.
	front uint64
	rank  uint64 // key of the first job's rank, or of its submission if the job is overdue
	line  *Line
}

// classBits is the number of low bits of stand.front that hold the class.
const classBits = 31

// class returns the number of the line's class.
func (s *stand) class() int { return int(s.front & (1<<classBits - 1)) }

// standOf returns the sort key of a line with the first job e.
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

// floatKey maps a float to an unsigned integer with the same order: negative numbers are
// inverted, and the sign bit of the others is set.
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

// compareStands compares the first jobs of two lines as CompareEntries does. It reads the
// jobs only for lines of equal band and rank.
func compareStands(a, b stand) int {
	if a.front>>classBits != b.front>>classBits {
		return cmp.Compare(a.front>>classBits, b.front>>classBits)
	}
	if a.rank != b.rank {
		return cmp.Compare(a.rank, b.rank)
	}
	return CompareEntries(a.line.head, b.line.head)
}

// place inserts the line into the account's order by its first job.
func (a *Account) place(l *Line) {
	s := standOf(l.head)
	s.line = l
	i, _ := slices.BinarySearchFunc(a.order, s, compareStands)
	a.order = slices.Insert(a.order, i, s)
}

// displace removes the line from the account's order. The line's first job must be the one
// that place used.
func (a *Account) displace(l *Line) {
	s := standOf(l.head)
	s.line = l
	i, found := slices.BinarySearchFunc(a.order, s, compareStands)
	if !found || a.order[i].line != l {
		panic("placement: a line is not where it belongs")
	}
	a.order = slices.Delete(a.order, i, i+1)
}

// find returns the index of the class's line in the account's lines, or the index at which
// to insert one.
func (a *Account) find(c *cluster.Class) (i int, found bool) {
	return slices.BinarySearchFunc(a.lines, int32(c.Number),
		func(x lineOf, number int32) int { return cmp.Compare(x.class, number) })
}

// push inserts an eligible job into the line of its account and class, and creates the line
// for its first job.
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

// pull removes a job from its line, and removes the line with its last job.
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

// drop removes a line without jobs from its account and its class. The last line of the
// class takes its index.
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
