package check

import (
	"cmp"
	"slices"
	"time"

	"berth"
	"berth/db/history"
)

// quotaNotice is the time after a change of tenants in which a job may still be placed by
// the limits before: the leader reads tenants and plans in rounds, and a round takes
// seconds on a busy cluster.
const quotaNotice = 30 * time.Second

// accounts replay the holdings of tenants along the numbers of the ledger. An account
// contains the holdings of its own jobs and of the accounts below.
type accounts struct {
	changes []history.TenantChange // not applied yet, by number of the ledger
	at      map[berth.TenantID]*account
	jobs    map[berth.JobID]*holder
	moves   []time.Time // when the tree of tenants changed, in the order of the ledger
}

// account is one tenant's. limits are its changes so far, the latest last.
type account struct {
	parent berth.TenantID
	limits []history.TenantChange
	held   holdings
}

// holder is a job that holds capacity.
type holder struct {
	tenant berth.TenantID
	allocs int
	held   holdings
}

// holdings are amounts of capacity and a number of jobs.
type holdings struct{ cpuMilli, memoryMiB, gpuMilli, jobs int64 }

func (a *holdings) add(b holdings, sign int64) {
	a.cpuMilli += sign * b.cpuMilli
	a.memoryMiB += sign * b.memoryMiB
	a.gpuMilli += sign * b.gpuMilli
	a.jobs += sign * b.jobs
}

func newAccounts(changes []history.TenantChange) *accounts {
	changes = slices.Clone(changes)
	slices.SortFunc(changes, func(a, b history.TenantChange) int { return cmp.Compare(a.Seq, b.Seq) })
	return &accounts{changes: changes, at: map[berth.TenantID]*account{}, jobs: map[berth.JobID]*holder{}}
}

// apply moves the accounts to the number of the ledger of this holding. Changes of
// tenants with a lower number come first.
func (l *accounts) apply(x history.Holding) {
	for len(l.changes) > 0 && l.changes[0].Seq < x.Seq {
		l.change(l.changes[0])
		l.changes = l.changes[1:]
	}
	j := l.jobs[x.Job]
	if j == nil {
		if !x.Begins { // its begin was not read
			return
		}
		j = &holder{tenant: x.Tenant}
		l.jobs[x.Job] = j
	}
	by, sign := holdings{cpuMilli: x.CPUMilli, memoryMiB: x.MemoryMiB, gpuMilli: x.GPUMilli}, int64(1)
	if x.Begins {
		if j.allocs++; j.allocs == 1 {
			by.jobs = 1
		}
	} else {
		sign = -1
		if j.allocs--; j.allocs == 0 {
			by.jobs = 1
			delete(l.jobs, x.Job)
		}
	}
	j.held.add(by, sign)
	l.hold(x.Tenant, by, sign)
}

// hold adds to an account and to all accounts above.
func (l *accounts) hold(tenant berth.TenantID, by holdings, sign int64) {
	for a := l.account(tenant); a != nil; a = l.above(a) {
		a.held.add(by, sign)
	}
}

// account returns a tenant's account, and creates an empty one at the first use.
func (l *accounts) account(tenant berth.TenantID) *account {
	a := l.at[tenant]
	if a == nil {
		a = &account{}
		l.at[tenant] = a
	}
	return a
}

// above is the account above this one, nil for one at the top.
func (l *accounts) above(a *account) *account {
	if a.parent == "" {
		return nil
	}
	return l.account(a.parent)
}

// change applies a change of a tenant. A tenant that moves takes its holdings along, so
// all accounts are summed up again from the jobs.
func (l *accounts) change(c history.TenantChange) {
	a := l.account(c.Tenant)
	if len(a.limits) == 0 || a.parent != c.Parent || c.Deleted {
		l.moves = append(l.moves, c.At)
	}
	if c.Deleted {
		c.Parent = ""
	}
	moved := a.parent != c.Parent
	a.parent, a.limits = c.Parent, append(a.limits, c)
	if !moved {
		return
	}
	for _, a := range l.at {
		a.held = holdings{}
	}
	for _, j := range l.jobs {
		l.hold(j.tenant, j.held, 1)
	}
}

// trees returns the times whose trees of tenants were in force between two times: the first
// time, and each move after it.
func (l *accounts) trees(from, to time.Time) []time.Time {
	list := []time.Time{from}
	for i := len(l.moves) - 1; i >= 0 && l.moves[i].After(from); i-- {
		if !l.moves[i].After(to) {
			list = append(list, l.moves[i])
		}
	}
	return list
}

// line returns the tenant and the tenants above it in the tree of a time.
func (l *accounts) line(tenant berth.TenantID, at time.Time) (line []berth.TenantID) {
	for id := tenant; id != "" && !slices.Contains(line, id); {
		line = append(line, id)
		var c history.TenantChange
		if a := l.at[id]; a != nil {
			c = a.in(at)
		}
		id = c.Parent
		if c.Deleted {
			id = ""
		}
	}
	return line
}

// in returns the change that was in force at a time, the zero value before the first one.
func (a *account) in(at time.Time) (c history.TenantChange) {
	for _, next := range a.limits {
		if next.At.After(at) {
			break
		}
		c = next
	}
	return c
}

// heldIn returns the present holdings of each account in the tree of a time.
func (l *accounts) heldIn(at time.Time) map[berth.TenantID]holdings {
	held := map[berth.TenantID]holdings{}
	lines := map[berth.TenantID][]berth.TenantID{}
	for _, j := range l.jobs {
		line, ok := lines[j.tenant]
		if !ok {
			line = l.line(j.tenant, at)
			lines[j.tenant] = line
		}
		for _, id := range line {
			sum := held[id]
			sum.add(j.held, 1)
			held[id] = sum
		}
	}
	return held
}

// greatest returns the greatest limit of one kind in force between two times. ok is false
// if for some of that time no limit was in force, or if the log does not go back so far:
// then no placement can be a breach.
func (a *account) greatest(of func(history.TenantChange) *int64, from, to time.Time) (most int64, ok bool) {
	if len(a.limits) == 0 || a.limits[0].At.After(from) {
		return 0, false
	}
	for i, c := range a.limits {
		until := to
		if i+1 < len(a.limits) {
			until = a.limits[i+1].At
		}
		if c.At.After(to) || until.Before(from) {
			continue
		}
		limit := of(c)
		if limit == nil || c.Deleted {
			return 0, false
		}
		most = max(most, *limit)
	}
	return most, true
}

// quotas are the limits by which allocations are judged.
var quotas = []struct {
	name  string
	limit func(history.TenantChange) *int64
	held  func(holdings) int64
	asked func(history.Holding) bool // whether the limit concerns the allocation
}{
	{"thousandths of a CPU", func(c history.TenantChange) *int64 { return c.CPUMilli },
		func(a holdings) int64 { return a.cpuMilli }, func(x history.Holding) bool { return x.CPUMilli > 0 }},
	{"MiB of memory", func(c history.TenantChange) *int64 { return c.MemoryMiB },
		func(a holdings) int64 { return a.memoryMiB }, func(x history.Holding) bool { return x.MemoryMiB > 0 }},
	{"thousandths of a GPU", func(c history.TenantChange) *int64 { return c.GPUMilli },
		func(a holdings) int64 { return a.gpuMilli }, func(x history.Holding) bool { return x.GPUMilli > 0 }},
	{"jobs", func(c history.TenantChange) *int64 { return c.MaxRunning },
		func(a holdings) int64 { return a.jobs }, func(history.Holding) bool { return true }},
}

// withinQuotas proves invariant 11. It compares the holdings of a new allocation's
// tenant, and of each tenant above, with their limits. A placement may rest on the tenants
// as they stood up to quotaNotice before, so it is a breach only if it exceeds a limit in
// every tree of tenants of that time, and the greatest limit of that time decides. Only a
// limit on a resource that the allocation asks for can be broken by it.
func withinQuotas(c *holdingCase) {
	from, to := c.h.At.Add(-quotaNotice), c.h.At.Add(c.v.o.Skew)
	var found *excess
	for _, at := range c.accounts.trees(from, to) {
		if found = c.accounts.exceeded(c.h, at, from, to); found == nil {
			return
		}
	}
	limits := c.accounts.at[found.tenant].limits
	b := c.breach(rows(c.h, limits[len(limits)-1]),
		"tenant %s holds %d %s with allocation %d, and at most %d were allowed", found.tenant, found.held, found.quota,
		c.h.Alloc, found.limit)
	b.Attempt = c.h.Attempt
}

// excess is a limit that a tenant's holdings exceed.
type excess struct {
	tenant      berth.TenantID
	quota       string
	held, limit int64
}

// exceeded returns the first limit that the holdings exceed with a new allocation, on the
// way up the tree of a time; nil: none.
func (l *accounts) exceeded(h history.Holding, tree, from, to time.Time) *excess {
	var held map[berth.TenantID]holdings // nil: the present sums
	if len(l.moves) > 0 && l.moves[len(l.moves)-1].After(tree) {
		held = l.heldIn(tree)
	}
	for _, id := range l.line(h.Tenant, tree) {
		a := l.account(id)
		sum := a.held
		if held != nil {
			sum = held[id]
		}
		for _, q := range quotas {
			limit, ok := a.greatest(q.limit, from, to)
			if n := q.held(sum); ok && q.asked(h) && n > limit {
				return &excess{id, q.name, n, limit}
			}
		}
	}
	return nil
}
