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
	moved   time.Time // when the tree of tenants last changed
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
		l.moved = c.At
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
// tenant, and of each tenant above, with their limits. A placement may rest on limits
// from up to quotaNotice before, so the greatest limit of that time decides. After a
// change of the tree of tenants, which may bring an account more than its limit, it
// judges no allocation for quotaNotice. Only a limit on a resource that the allocation
// asks for can be broken by it.
func withinQuotas(c *holdingCase) {
	from, to := c.h.At.Add(-quotaNotice), c.h.At.Add(c.v.o.Skew)
	if !c.accounts.moved.Before(from) {
		return
	}
	id := c.h.Tenant
	for a := c.accounts.account(id); a != nil; id, a = a.parent, c.accounts.above(a) {
		for _, q := range quotas {
			limit, ok := a.greatest(q.limit, from, to)
			if held := q.held(a.held); ok && q.asked(c.h) && held > limit {
				b := c.breach(rows(c.h, a.limits[len(a.limits)-1]),
					"tenant %s holds %d %s with allocation %d, and at most %d were allowed", id, held, q.name,
					c.h.Alloc, limit)
				b.Attempt = c.h.Attempt
			}
		}
	}
}
