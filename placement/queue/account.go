package queue

import (
	"maps"
	"slices"
	"time"

	"berth"
	"berth/placement/cluster"
)

// Account is what a tenant holds and what of its work waits.
type Account struct {
	Tenant
	Index  int  // among all: the shared one is 0
	Known  bool // it has a row; the shared account of all others has none
	parent *Account
	kids   []*Account // by id

	lines []lineOf // with jobs that may start, by Class.Number
	order []stand  // those, by the first job of each

	held Holding // by its own jobs and by those of the accounts below
	own  Holding
}

// Holding is what running jobs hold of a cluster.
type Holding struct {
	berth.Capacity
	firm berth.Capacity // by jobs that cannot be preempted
	Jobs int
}

// Tally is the work of one tenant, with or without a row.
type Tally struct {
	account *Account      // the account charged for it, once the queue is sorted
	Owner   cluster.Owner // the same account, as occupants of machines know it
	running Holding
	waiting int
}

// charged makes an account the one that pays for the tally.
func (t *Tally) charged(a *Account) { t.account, t.Owner.Account = a, a.Index }

// Tally returns the tally of a tenant.
func (q *Queue) Tally(id berth.TenantID) *Tally {
	t := q.tallies[id]
	if t == nil {
		t = &Tally{}
		if !q.unsorted {
			t.charged(q.Account(id))
		}
		q.tallies[id] = t
	}
	return t
}

// Hold adds a running job to a tally and to its parent's running elements, or
// with times -1 removes it.
func (q *Queue) Hold(t *Tally, parent berth.JobID, c berth.Capacity, preemptible bool, times int) {
	q.countElement(parent, times)
	if times < 0 {
		c = berth.Capacity{}.Sub(c)
	}
	t.running.add(c, preemptible, times)
	if !q.unsorted {
		var x Holding
		x.add(c, preemptible, times)
		t.account.hold(x)
	}
}

// UpsertTenant adds a tenant or replaces its row.
func (q *Queue) UpsertTenant(t Tenant) {
	old, had := q.Tenants[t.ID]
	q.Tenants[t.ID] = t
	switch {
	case !had || old.Parent != t.Parent:
		q.unsorted = true
	case !q.unsorted:
		q.accounts[t.ID].Tenant = t
	}
}

// RemoveTenant removes a tenant. An unknown one is no error.
func (q *Queue) RemoveTenant(id berth.TenantID) {
	if _, had := q.Tenants[id]; had {
		delete(q.Tenants, id)
		q.unsorted = true
	}
}

func newAccount(t Tenant) *Account { return &Account{Tenant: t} }

// ShareWeight returns the weight of the account among its siblings, 1 by default.
func (a *Account) ShareWeight() float64 {
	if a.Weight <= 0 {
		return 1
	}
	return a.Weight
}

// stalledFor is how long the account has stood at its limits by now.
func (a *Account) stalledFor(now time.Time) time.Duration {
	if a.StalledSince.IsZero() || now.Before(a.StalledSince) {
		return a.Stalled
	}
	return a.Stalled + now.Sub(a.StalledSince)
}

// hold charges running jobs to the account and those above it.
func (a *Account) hold(x Holding) {
	a.own = a.own.plus(x)
	for ; a != nil; a = a.parent {
		a.held = a.held.plus(x)
	}
}

func (h *Holding) add(c berth.Capacity, preemptible bool, jobs int) {
	h.Capacity = h.Capacity.Add(c)
	if !preemptible {
		h.firm = h.firm.Add(c)
	}
	h.Jobs += jobs
}

func (h Holding) plus(o Holding) Holding {
	return Holding{Capacity: h.Capacity.Add(o.Capacity), firm: h.firm.Add(o.firm), Jobs: h.Jobs + o.Jobs}
}

// Sort rebuilds accounts and lines if the tenants or the order have changed, and
// moves the jobs that have become overdue.
func (q *Queue) Sort(p Policy, view RankView, now time.Time) {
	if p.Ranker != nil {
		q.unsorted = true // ranks change with time
		p.Ranker.Begin(view, now)
	}
	if p = p.ordering(); p != q.Policy {
		q.Policy, q.unsorted = p, true
	}
	edge := p.edge(now)
	moved := !edge.Equal(q.edge)
	q.edge = edge
	if !q.unsorted {
		if moved {
			q.overtake()
		}
		return
	}
	q.Advance(now)
	q.unsorted = false
	q.Sortings++
	q.openAccounts()
	for id, t := range q.tallies {
		if t.waiting == 0 && t.running.Jobs == 0 {
			delete(q.tallies, id)
			continue
		}
		t.charged(q.Account(id))
		t.account.hold(t.running)
	}
	for _, c := range q.classes {
		c.Ready, c.Lines = 0, nil
		c.limits.empty()
	}
	q.lineUp()
}

// openAccounts builds the tree of accounts from the tenants.
func (q *Queue) openAccounts() {
	q.shared = newAccount(Tenant{})
	q.accounts = make(map[berth.TenantID]*Account, len(q.Tenants))
	for id, t := range q.Tenants {
		q.accounts[id] = newAccount(t)
		q.accounts[id].Known = true
	}
	q.top = []*Account{q.shared}
	for i, id := range slices.Sorted(maps.Keys(q.Tenants)) {
		a := q.accounts[id]
		a.Index = 1 + i
		p := q.accounts[a.Parent]
		if p == nil || p.Below(a) {
			q.top = append(q.top, a)
			continue
		}
		a.parent = p
		p.kids = append(p.kids, a)
	}
}

// overtake moves the jobs that have become overdue to their new places.
func (q *Queue) overtake() {
	edge := cluster.SinceOrigin(q.edge)
	for _, e := range q.Waiting {
		if e.Overdue == (edge-e.worn >= q.Policy.Overdue) {
			continue
		}
		ready := e.Line != nil
		if ready {
			q.pull(e)
		}
		e.rate(&q.Policy, q.edge)
		if ready {
			q.push(e)
		}
	}
}

// Below reports whether a is the account or above it.
func (a *Account) Below(other *Account) bool {
	for ; a != nil; a = a.parent {
		if a == other {
			return true
		}
	}
	return false
}

// Account returns the tenant's account, or the one that tenants without a row
// share.
func (q *Queue) Account(id berth.TenantID) *Account {
	if a := q.accounts[id]; a != nil {
		return a
	}
	return q.shared
}

// count keeps the number of eligible jobs of a class, and their limits.
func (c *ClassQueue) count(e *Entry, n int) {
	c.Ready += n
	switch {
	case n < 0:
		c.limits.clear(e)
	case e.TimeLimit > 0:
		c.limits.set(e)
	}
}

// Name of the account for people.
func (a *Account) Name() string {
	if !a.Known {
		return "the tenants without a row"
	}
	return "tenant " + string(a.ID)
}
