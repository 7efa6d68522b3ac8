package placement

import (
	"cmp"
	"math"
	"slices"
)

// line is the jobs of one class of one account that may start, in order. What
// plans look at of many lines stands first, close together.
type line struct {
	class     *class
	account   *account
	head      *entry // the first of jobs
	at        *entry // in the plan enteredAt, the next job
	enteredAt int    // the plan whose walk it is
	over      bool   // none of it is left for that plan
	number    int32  // in class.lines
	jobs      tree[*entry]
	walk      cursor[*entry] // of that plan, once past the first job
}

// lineOf is a line with the number of its class.
type lineOf struct {
	class int32
	line  *line
}

// stand is a line with what it is sorted by in its account, told so shortly that
// a walk past many reads nothing else.
type stand struct {
	// front is the band, the highest first; who is not overdue, last; and in its
	// last 31 bits, which do not order, the number of the class.
	front uint64
	rank  uint64 // of one that is overdue, when it was submitted
	line  *line
}

const classBits = 31

// class is the number of the line's class.
func (s *stand) class() int { return int(s.front & (1<<classBits - 1)) }

// standOf tells where a job's line belongs while that job is the first of it.
func standOf(e *entry) (s stand) {
	s.front = uint64(^(uint32(e.band)^1<<31))<<32 | uint64(e.class.number)
	if e.overdue {
		s.rank = uint64(e.submitted) ^ 1<<63
		return s
	}
	s.front |= 1 << classBits
	s.rank = floatKey(e.rank)
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

// compareStands is compareEntries of the lines' first jobs.
func compareStands(a, b stand) int {
	if a.front>>classBits != b.front>>classBits {
		return cmp.Compare(a.front>>classBits, b.front>>classBits)
	}
	if a.rank != b.rank {
		return cmp.Compare(a.rank, b.rank)
	}
	return compareEntries(a.line.head, b.line.head)
}

// place puts the line where its first job belongs.
func (a *account) place(l *line) {
	s := standOf(l.head)
	s.line = l
	i, _ := slices.BinarySearchFunc(a.order, s, compareStands)
	a.order = slices.Insert(a.order, i, s)
}

// displace takes it out. Its first job must be the one that it was placed by.
func (a *account) displace(l *line) {
	s := standOf(l.head)
	s.line = l
	i, found := slices.BinarySearchFunc(a.order, s, compareStands)
	if !found || a.order[i].line != l {
		panic("placement: a line is not where it belongs")
	}
	a.order = slices.Delete(a.order, i, i+1)
}

// find the account's line of a class: its place in the list.
func (a *account) find(c *class) (i int, found bool) {
	return slices.BinarySearchFunc(a.lines, int32(c.number),
		func(x lineOf, number int32) int { return cmp.Compare(x.class, number) })
}

// push puts an eligible job into the line of its account and class.
func (q *queue) push(e *entry) {
	a, c := e.tally.account, q.of(e.class)
	i, found := a.find(e.class)
	if !found {
		l := &line{account: a, class: e.class, number: int32(len(c.lines))}
		l.jobs.compare = compareEntries
		c.lines = append(c.lines, l)
		a.lines = slices.Insert(a.lines, i, lineOf{int32(e.class.number), l})
	}
	l := a.lines[i].line
	if first := l.head == nil || compareEntries(e, l.head) < 0; first {
		if l.head != nil {
			a.displace(l)
		}
		l.head = e
		a.place(l)
	}
	l.jobs.insert(&e.leaf)
	e.line = l
	c.count(e, 1)
}

// pull takes a job out of its line.
func (q *queue) pull(e *entry) {
	l, a := e.line, e.line.account
	first := l.head == e
	if first {
		a.displace(l)
	}
	l.jobs.remove(&e.leaf)
	e.line = nil
	q.of(e.class).count(e, -1)
	if l.jobs.len() == 0 {
		q.drop(l)
	} else if first {
		l.head, _ = l.jobs.first()
		a.place(l)
	}
}

// drop removes a line without jobs.
func (q *queue) drop(l *line) {
	l.head = nil
	i, _ := l.account.find(l.class)
	l.account.lines = slices.Delete(l.account.lines, i, i+1)
	c := q.of(l.class)
	last := len(c.lines) - 1
	c.lines[l.number], c.lines[last].number = c.lines[last], l.number
	c.lines[last] = nil
	c.lines = c.lines[:last]
}
