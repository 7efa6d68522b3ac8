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

// tally is the work of one tenant, with or without a row.
type tally struct {
	account *account // the account charged for it, once the queue is sorted
	owner   owner    // the same account, as occupants of machines know it
	running holding
	waiting int
}

// charged makes an account the one that pays for the tally.
func (t *tally) charged(a *account) { t.account, t.owner.account = a, a.index }

// tally returns the tally of a tenant.
func (q *queue) tally(id berth.TenantID) *tally {
	t := q.tallies[id]
	if t == nil {
		t = &tally{}
		if !q.unsorted {
			t.charged(q.account(id))
		}
		q.tallies[id] = t
	}
	return t
}

// hold adds a running job to a tally and to its parent's running elements, or
// with times -1 removes it.
func (q *queue) hold(t *tally, parent berth.JobID, c berth.Capacity, preemptible bool, times int) {
	q.countElement(parent, times)
	if times < 0 {
		c = berth.Capacity{}.Sub(c)
	}
	t.running.add(c, preemptible, times)
	if !q.unsorted {
		var x holding
		x.add(c, preemptible, times)
		t.account.hold(x)
	}
}

// upsertTenant adds a tenant or replaces its row.
func (q *queue) upsertTenant(t Tenant) {
	old, had := q.tenants[t.ID]
	q.tenants[t.ID] = t
	switch {
	case !had || old.Parent != t.Parent:
		q.unsorted = true
	case !q.unsorted:
		q.accounts[t.ID].Tenant = t
	}
}

// removeTenant removes a tenant. An unknown one is no error.
func (q *queue) removeTenant(id berth.TenantID) {
	if _, had := q.tenants[id]; had {
		delete(q.tenants, id)
		q.unsorted = true
	}
}

func newAccount(t Tenant) *account { return &account{Tenant: t} }

// weight returns the weight of the account among its siblings, 1 by default.
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

// sort rebuilds accounts and lines if the tenants or the order have changed, and
// moves the jobs that have become overdue.
func (q *queue) sort(p Policy, view RankView, now time.Time) {
	if p.Ranker != nil {
		q.unsorted = true // ranks change with time
		p.Ranker.Begin(view, now)
	}
	if p = p.ordering(); p != q.policy {
		q.policy, q.unsorted = p, true
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
	q.advance(now)
	q.unsorted = false
	q.sortings++
	q.openAccounts()
	for id, t := range q.tallies {
		if t.waiting == 0 && t.running.jobs == 0 {
			delete(q.tallies, id)
			continue
		}
		t.charged(q.account(id))
		t.account.hold(t.running)
	}
	for _, c := range q.classes {
		c.ready, c.lines = 0, nil
		c.limits.empty()
	}
	q.lineUp()
}

// openAccounts builds the tree of accounts from the tenants.
func (q *queue) openAccounts() {
	q.shared = newAccount(Tenant{})
	q.accounts = make(map[berth.TenantID]*account, len(q.tenants))
	for id, t := range q.tenants {
		q.accounts[id] = newAccount(t)
		q.accounts[id].known = true
	}
	q.top = []*account{q.shared}
	for i, id := range slices.Sorted(maps.Keys(q.tenants)) {
		a := q.accounts[id]
		a.index = 1 + i
		p := q.accounts[a.Parent]
		if p == nil || p.below(a) {
			q.top = append(q.top, a)
			continue
		}
		a.parent = p
		p.kids = append(p.kids, a)
	}
}

// overtake moves the jobs that have become overdue to their new places.
func (q *queue) overtake() {
	edge := sinceOrigin(q.edge)
	for _, e := range q.waiting {
		if e.overdue == (edge-e.worn >= q.policy.Overdue) {
			continue
		}
		ready := e.line != nil
		if ready {
			q.pull(e)
		}
		e.rate(&q.policy, q.edge)
		if ready {
			q.push(e)
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
func (q *queue) account(id berth.TenantID) *account {
	if a := q.accounts[id]; a != nil {
		return a
	}
	return q.shared
}

// count keeps the number of eligible jobs of a class, and their limits.
func (c *classQueue) count(e *entry, n int) {
	c.ready += n
	switch {
	case n < 0:
		c.limits.clear(e)
	case e.TimeLimit > 0:
		c.limits.set(e)
	}
}

// name of the account for people.
func (a *account) name() string {
	if !a.known {
		return "the tenants without a row"
	}
	return "tenant " + string(a.ID)
}
