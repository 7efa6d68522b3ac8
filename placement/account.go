package placement

import (
	"maps"
	"slices"
	"time"

	"berth"
)

// account is what a tenant holds and what of its work waits.
type account struct {
	Tenant
	index  int  // among all: the shared one is 0
	known  bool // it has a row; the shared account of all others has none
	parent *account
	kids   []*account // by id

	lines map[*class]*line
	ready tree[*line] // lines with jobs that may start, by their first

	held holding // by its own jobs and by those of the accounts below
	own  holding
}

// holding is what running jobs hold of a cluster.
type holding struct {
	berth.Capacity
	firm berth.Capacity // by jobs that cannot be preempted
	jobs int
}

// line is the jobs of one class of one account that may start, in order. What
// plans look at of many lines stands first, close together.
type line struct {
	class     *class
	leaf      leaf[*line]
	head      *entry // the first of jobs
	enteredAt int    // the plan whose walk it is
	at        *entry // in that plan, the next job
	over      bool   // none of it is left for that plan
	account   *account
	jobs      tree[*entry]
	walk      cursor[*entry] // of the plan, once past the first job

	number int // in class.lines
}

func newAccount(t Tenant) *account {
	return &account{
		Tenant: t,
		lines:  map[*class]*line{},
		ready:  tree[*line]{compare: func(a, b *line) int { return compareEntries(a.head, b.head) }},
	}
}

func (a *account) weight() float64 {
	if a.Weight <= 0 {
		return 1
	}
	return a.Weight
}

// push puts a job that may start into its line.
func (a *account) push(e *entry) {
	l := a.lines[e.class]
	if l == nil {
		l = a.newLine(&line{}, e.class)
		a.lines[e.class] = l
	}
	a.change(l, func() { l.jobs.insert(&e.leaf) })
	e.line = l
	e.class.count(e, 1)
}

// newLine readies an empty line, which the caller puts into a.lines.
func (a *account) newLine(l *line, c *class) *line {
	l.account, l.class, l.jobs.compare = a, c, compareEntries
	l.leaf.item, l.leaf.weight = l, weightOf(string(a.ID), "/", c.name)
	l.number = len(c.lines)
	c.lines = append(c.lines, l)
	return l
}

// pull takes a job out of its line.
func (a *account) pull(e *entry) {
	l := e.line
	a.change(l, func() { l.jobs.remove(&e.leaf) })
	e.line = nil
	e.class.count(e, -1)
	if l.jobs.len() == 0 {
		delete(a.lines, l.class)
		list := l.class.lines
		last := list[len(list)-1]
		list[l.number], last.number = last, l.number
		list[len(list)-1] = nil
		l.class.lines = list[:len(list)-1]
	}
}

func (a *account) change(l *line, f func()) {
	if l.jobs.len() > 0 {
		a.ready.remove(&l.leaf)
	}
	f()
	l.head, _ = l.jobs.first()
	if l.jobs.len() > 0 {
		a.ready.insert(&l.leaf)
	}
}

// stalledFor is how long the account has stood at its limits by now.
func (a *account) stalledFor(now time.Time) time.Duration {
	if a.StalledSince.IsZero() || now.Before(a.StalledSince) {
		return a.Stalled
	}
	return a.Stalled + now.Sub(a.StalledSince)
}

// hold charges a job to the account and those above it; times is 1, or -1 to
// take it back.
func (a *account) hold(c berth.Capacity, preemptible bool, times int) {
	if times < 0 {
		c = berth.Capacity{}.Sub(c)
	}
	a.own.add(c, preemptible, times)
	for ; a != nil; a = a.parent {
		a.held.add(c, preemptible, times)
	}
}

func (h *holding) add(c berth.Capacity, preemptible bool, jobs int) {
	h.Capacity = h.Capacity.Add(c)
	if !preemptible {
		h.firm = h.firm.Add(c)
	}
	h.jobs += jobs
}

func (h holding) plus(o holding) holding {
	return holding{Capacity: h.Capacity.Add(o.Capacity), firm: h.firm.Add(o.firm), jobs: h.jobs + o.jobs}
}

// sort builds accounts and lines anew if who there is or the order has changed.
func (s *Snapshot) sort(p Policy, now time.Time) {
	if p.Ranker != nil {
		s.unsorted = true // ranks change with time
		p.Ranker.Begin(s, now)
	}
	if p = p.ordering(); p != s.policy {
		s.policy, s.unsorted = p, true
	}
	edge := p.edge(now)
	moved := !edge.Equal(s.edge)
	s.edge = edge
	if !s.unsorted {
		if moved {
			s.overtake()
		}
		return
	}
	s.advance(now)
	s.unsorted = false
	s.shared = newAccount(Tenant{})
	s.accounts = make(map[berth.TenantID]*account, len(s.tenants))
	for id, t := range s.tenants {
		s.accounts[id] = newAccount(t)
		s.accounts[id].known = true
	}
	s.top = []*account{s.shared}
	s.sortings++
	for i, id := range slices.Sorted(maps.Keys(s.tenants)) {
		a := s.accounts[id]
		a.index = 1 + i
		p := s.accounts[a.Parent]
		if p == nil || p.below(a) {
			s.top = append(s.top, a)
			continue
		}
		a.parent = p
		p.kids = append(p.kids, a)
	}
	for _, r := range s.running {
		r.account = s.account(r.Tenant)
		r.account.hold(r.capacity, r.Preemptible, 1)
	}
	for _, c := range s.classes {
		c.ready, c.lines = 0, nil
		c.limits.empty()
	}
	s.line()
}

// overtake puts those that have become overdue where they belong.
func (s *Snapshot) overtake() {
	for _, e := range s.jobs {
		if e.overdue == !e.overdueAt(&s.policy).After(s.edge) {
			continue
		}
		ready := e.line != nil
		if ready {
			e.line.account.pull(e)
		}
		e.rate(&s.policy, s.edge)
		if ready {
			s.account(e.Tenant).push(e)
		}
	}
}

// below reports whether a is the account or above it.
func (a *account) below(other *account) bool {
	for ; a != nil; a = a.parent {
		if a == other {
			return true
		}
	}
	return false
}

// account returns the tenant's account, or the one that tenants without a row
// share.
func (s *Snapshot) account(id berth.TenantID) *account {
	if a := s.accounts[id]; a != nil {
		return a
	}
	return s.shared
}

// count keeps what the class knows of its jobs that may start.
func (c *class) count(e *entry, n int) {
	c.ready += n
	switch {
	case n < 0:
		c.limits.clear(e)
	case e.TimeLimit > 0:
		c.limits.set(e)
	}
}
