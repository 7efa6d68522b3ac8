package queue

import (
	"maps"
	"slices"
	"time"

	"berth"
	"berth/placement/cluster"
)

// Account is a tenant in the tree of accounts, with the capacity that its running jobs hold
// and the lines of its waiting jobs.
type Account struct {
	Tenant
	Index  int  // position among all accounts; the shared account has 0
	Known  bool // a tenant row exists; false for the shared account of tenants without a row
	parent *Account
	kids   []*Account // direct children, by id

	lines []lineOf // lines with eligible jobs, by Class.Number
	order []stand  // the same lines, by the queue order of their first jobs

	held Holding // by the account's own jobs and its descendants' jobs
	own  Holding // by the account's own jobs
}

// Holding is the capacity and the number of running jobs of an account.
type Holding struct {
	berth.Capacity
	firm berth.Capacity // held by jobs that are not preemptible; always part of Capacity
	Jobs int
}

// Tally counts the work of one tenant, with or without a row. Tallies change with every
// delta; accounts are rebuilt from them when the tree of tenants changes.
type Tally struct {
	account *Account      // the account charged for the work, once the queue is sorted
	Owner   cluster.Owner // the same account, as occupants of machines refer to it
	running Holding
	waiting int // jobs in the queue, held ones included
}

// charged assigns the account that pays for the tally.
func (t *Tally) charged(a *Account) { t.account, t.Owner.Account = a, a.Index }

// Tally returns the tally of a tenant, and creates an empty one for a new tenant.
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

// Hold adds a running job to a tally and to the running elements of its parent. With times
// -1, Hold removes the job.
//
// An unsorted queue charges no account: the next Sort rebuilds all accounts from the
// tallies.
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

// UpsertTenant adds a tenant or replaces its row. A new tenant or another parent changes
// the tree, which the next Sort rebuilds; other changes, such as a weight or a limit, apply
// at once.
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

// newAccount returns an account that has no parent yet and holds no capacity.
func newAccount(t Tenant) *Account { return &Account{Tenant: t} }

// ShareWeight returns the weight of the account among its siblings; 1 if the row has none.
func (a *Account) ShareWeight() float64 {
	if a.Weight <= 0 {
		return 1
	}
	return a.Weight
}

// stalledFor returns the total time for which the account has been at its limits up to now.
func (a *Account) stalledFor(now time.Time) time.Duration {
	if a.StalledSince.IsZero() || now.Before(a.StalledSince) {
		return a.Stalled
	}
	return a.Stalled + now.Sub(a.StalledSince)
}

// hold charges running jobs to the account and to all its ancestors.
func (a *Account) hold(x Holding) {
	a.own = a.own.plus(x)
	for ; a != nil; a = a.parent {
		a.held = a.held.plus(x)
	}
}

// add adds the capacity of jobs to the holding; c and jobs are negative to remove a job.
func (h *Holding) add(c berth.Capacity, preemptible bool, jobs int) {
	h.Capacity = h.Capacity.Add(c)
	if !preemptible {
		h.firm = h.firm.Add(c)
	}
	h.Jobs += jobs
}

// plus returns the sum of two holdings.
func (h Holding) plus(o Holding) Holding {
	return Holding{Capacity: h.Capacity.Add(o.Capacity), firm: h.firm.Add(o.firm), Jobs: h.Jobs + o.Jobs}
}

// less returns the holding without a part of it.
func (h Holding) less(o Holding) Holding {
	return Holding{Capacity: h.Capacity.Sub(o.Capacity), firm: h.firm.Sub(o.firm), Jobs: h.Jobs - o.Jobs}
}

// Sort prepares the queue for a plan. It rebuilds accounts and lines if the tree of tenants
// or the order has changed; otherwise it only moves the jobs that have become overdue since
// the last step of Policy.edge. A rebuild takes O(n log n) for n waiting jobs, so that only
// rare changes cause one.
func (q *Queue) Sort(p Policy, view RankView, now time.Time) {
	if p.Ranker != nil {
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
		if p.Ranker == nil || q.rerank() {
			return
		}
	}
	q.unsorted = true
	q.Advance(now)
	q.unsorted = false
	q.Sortings++
	q.openAccounts()
	for id, t := range q.tallies {
		// A tally without work is forgotten; Tally creates it again for the tenant's next
		// job.
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

// rerank moves the jobs whose rank the Ranker has changed to their new places. It returns
// false and moves nothing if there are so many that sorting all jobs costs less.
func (q *Queue) rerank() bool {
	var moved []*Entry
	for _, e := range q.Waiting {
		if e.Line == nil {
			continue // push rates the job when it becomes eligible
		}
		if rank := q.Policy.rankOf(e); rank != e.Rank {
			if moved = append(moved, e); len(moved) > 16+len(q.Waiting)/8 {
				return false
			}
		}
	}
	for _, e := range moved {
		q.pull(e)
		e.rate(&q.Policy, q.edge)
		q.push(e)
	}
	return true
}

// openAccounts builds the tree of accounts from the tenant rows. An account whose parent
// has no row, or whose parent link would close a cycle, has no parent: it competes at the
// top.
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

// overtake moves the jobs that have become overdue, or are not overdue under a new edge, to
// their new places. It reads every waiting job, which is why the edge advances in steps.
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

// Below reports whether the account is other or one of its descendants.
func (a *Account) Below(other *Account) bool {
	for ; a != nil; a = a.parent {
		if a == other {
			return true
		}
	}
	return false
}

// Account returns the tenant's account, or the shared account for a tenant without a row.
func (q *Queue) Account(id berth.TenantID) *Account {
	if a := q.accounts[id]; a != nil {
		return a
	}
	return q.shared
}

// count adds n (1 or -1) to the number of eligible jobs of the class, and keeps the heap of
// time limits.
func (c *ClassQueue) count(e *Entry, n int) {
	c.Ready += n
	switch {
	case n < 0:
		c.limits.clear(e)
	case e.TimeLimit > 0:
		c.limits.set(e)
	}
}

// Name returns the account's name for texts that people read.
func (a *Account) Name() string {
	if !a.Known {
		return "all tenants without a quota"
	}
	return "tenant " + string(a.ID)
}
