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

	lines []lineOf // with jobs that may start, by class.number
	order []stand  // those, by the first job of each

	held holding // by its own jobs and by those of the accounts below
	own  holding
}

// holding is what running jobs hold of a cluster.
type holding struct {
	berth.Capacity
	firm berth.Capacity // by jobs that cannot be preempted
	jobs int
}

// tally is the work there is of a tenant, whether it has a row or not.
type tally struct {
	account *account // that it counts for, once the snapshot is sorted
	running holding
	waiting int
}

// tally of a tenant.
func (s *Snapshot) tally(id berth.TenantID) *tally {
	t := s.tallies[id]
	if t == nil {
		t = &tally{}
		if !s.unsorted {
			t.account = s.account(id)
		}
		s.tallies[id] = t
	}
	return t
}

// hold counts a running job, or with times -1 does so no more.
func (s *Snapshot) hold(t *tally, c berth.Capacity, preemptible bool, times int) {
	if times < 0 {
		c = berth.Capacity{}.Sub(c)
	}
	t.running.add(c, preemptible, times)
	if !s.unsorted {
		var x holding
		x.add(c, preemptible, times)
		t.account.hold(x)
	}
}

func newAccount(t Tenant) *account { return &account{Tenant: t} }

func (a *account) weight() float64 {
	if a.Weight <= 0 {
		return 1
	}
	return a.Weight
}

// stalledFor is how long the account has stood at its limits by now.
func (a *account) stalledFor(now time.Time) time.Duration {
	if a.StalledSince.IsZero() || now.Before(a.StalledSince) {
		return a.Stalled
	}
	return a.Stalled + now.Sub(a.StalledSince)
}

// hold charges running jobs to the account and those above it.
func (a *account) hold(x holding) {
	a.own = a.own.plus(x)
	for ; a != nil; a = a.parent {
		a.held = a.held.plus(x)
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
	for id, t := range s.tallies {
		if t.waiting == 0 && t.running.jobs == 0 {
			delete(s.tallies, id)
			continue
		}
		t.account = s.account(id)
		t.account.hold(t.running)
	}
	for _, c := range s.numbered {
		c.ready, c.lines = 0, nil
		c.limits.empty()
	}
	s.line()
}

// overtake puts those that have become overdue where they belong.
func (s *Snapshot) overtake() {
	edge := sinceOrigin(s.edge)
	for _, e := range s.waiting {
		if e.overdue == (edge-e.worn >= s.policy.Overdue) {
			continue
		}
		ready := e.line != nil
		if ready {
			e.line.account.pull(e)
		}
		e.rate(&s.policy, s.edge)
		if ready {
			e.tally.account.push(e)
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
