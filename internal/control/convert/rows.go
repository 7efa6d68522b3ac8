package convert

import (
	"fmt"
	"time"

	"berth"
	"berth/db"
	"berth/placement"
	"berth/spec"
)

// Waits reports whether placement may give the job room.
func Waits(row db.QueueJob) bool { return row.State == berth.Queued || row.State == berth.Retrying }

// Machine converts a machine's row. blocked is a reason outside of the row for which the machine
// gets no work, "" for none.
func Machine(row db.PoolMachine, blocked string) placement.Machine {
	p := placement.Machine{
		ID: row.ID, Epoch: row.Epoch, State: row.State, Blocked: blocked,
		Pool: row.Pool, Region: row.Region, Site: row.Site, Labels: row.Labels, Taints: row.Taints,
		Unmet: row.Unmet, Unjudged: row.Unjudged,
		Total: row.Total, Used: row.Used,
		Fences:  row.Fences,
		Network: row.Network, Reason: row.Reason, Market: row.Market, Price: row.Price,
	}
	if row.EngineSilentSince != nil {
		p.EngineSilentSince = *row.EngineSilentSince
	}
	for _, g := range row.GPUs {
		p.GPUs = append(p.GPUs, placement.Device{Index: g.Index, Model: g.Model, MemoryMiB: g.MemoryMiB,
			Healthy: g.Healthy, UsedMilli: g.UsedMilli})
	}
	return p
}

// Blocked returns the machines that get no work for reasons outside of their own rows, with the
// reasons.
func Blocked(disobedient []berth.MachineID, miscounts []db.Miscount) map[berth.MachineID]string {
	why := map[berth.MachineID]string{}
	for _, id := range disobedient {
		why[id] = "did not stop jobs despite kill orders"
	}
	for _, m := range miscounts {
		why[m.Machine] = "has inconsistent capacity counters: " + m.Detail
	}
	return why
}

// Job converts the row of a waiting job. Its time limit includes the grace, during which the job
// still holds its room.
func Job(row db.QueueJob) placement.Job {
	j := placement.Job{
		ID: row.ID, Tenant: row.Tenant, Class: row.Class, Version: row.Version, Attempt: row.Attempt,
		Priority: row.Priority, Preemptible: row.Preemptible, SubmittedAt: row.SubmittedAt, EligibleAt: row.EligibleAt,
		Held: row.Held, Avoid: row.Avoid, TimeLimit: longest(row.RunLimit, row.Grace), Done: row.Ran,
		PreemptedFor: row.GaveWayTo, Unaged: row.Unaged, Stalled: row.Stalled,
		Parent: row.Parent, Parallel: row.Parallel, Data: row.Data, Expected: row.Expected, ExpectedBy: row.ExpectedBy,
	}
	if row.Debug {
		j.Priority = placement.DebugPriority
	}
	for i, class := range row.Alternatives {
		j.Alternatives = append(j.Alternatives, placement.Alternative{Class: class, Opens: row.Opens[i]})
	}
	j.InForce = row.InForce
	Likeness(&j, row.Name, row.Step)
	if row.QueueDeadline != nil {
		j.QueueDeadline = *row.QueueDeadline
	}
	return j
}

// Likeness fills in the properties by which other jobs are similar to a job of that name; step is the name of its step,
// "" for none.
func Likeness(j *placement.Job, name, step string) {
	j.LikeName, j.LikeData = likeName(name, step), likeData(j.Data)
}

// likeName is the name by which jobs tend to run equally long: for a step it includes the name
// of the step.
func likeName(name, step string) string {
	if step == "" {
		return name
	}
	return name + "." + step
}

// likeData identifies the content that a job reads, its image included; "" for none.
func likeData(keys []spec.DataKey) string {
	if len(keys) == 0 {
		return ""
	}
	return fmt.Sprint(keys)
}

// RunTimes predicts run times from jobs that have ended, the oldest first.
func RunTimes(list []db.EndedJob) *placement.RunTimes {
	h := placement.NewRunTimes()
	for _, j := range list {
		h.Add(placement.Like{Tenant: j.Tenant, Name: likeName(j.Name, j.Step), Data: likeData(j.Data), Class: j.Class,
			GPUs: placement.GPUsOf(j.Request.Total()), SubmittedAt: j.SubmittedAt}, j.Ran)
	}
	return h
}

// longest returns the longest time for which a running job with a limit may hold its room, 0 for a
// job without a limit.
func longest(limit, grace time.Duration) time.Duration {
	if limit == 0 {
		return 0
	}
	return limit + grace
}

// Running converts the row of a job that holds capacity: for its present attempt,
// and for older attempts on silent machines.
func Running(row db.QueueJob, held []db.Holder) placement.Running {
	r := placement.Running{
		Job: row.ID, Parent: row.Parent, Tenant: row.Tenant, Class: row.Class, Version: row.Version,
		Attempt:  row.Attempt,
		Priority: row.Priority, Preemptible: row.Preemptible, SubmittedAt: row.SubmittedAt,
		Done: row.Ran, Unaged: row.Unaged, Expected: row.Expected, PreemptedFor: row.GaveWayTo,
		LikeName: likeName(row.Name, row.Step), LikeData: likeData(row.Data),
		TimeLimit: longest(row.RunLimit, row.Grace),
		Stopping:  row.State == berth.Preempting || row.State == berth.Canceling,
	}
	if row.Debug {
		r.Priority = placement.DebugPriority
	}
	for _, h := range held {
		// Ranks of older attempts count as well: their machines are silent, and the capacity stays
		// taken until a verdict.
		r.Ranks = append(r.Ranks, h.Ranks...)
		if h.Attempt != row.Attempt {
			r.Preemptible = false // a silent machine cannot be ordered to stop it
			continue
		}
		r.StartedAt = h.PlacedAt
		if h.StartedAt != nil && r.TimeLimit > 0 {
			r.TimeLimit += h.StartedAt.Sub(h.PlacedAt) // the limit counts from the start
		}
		if row.VerifiedAt != nil && row.VerifiedAt.After(h.PlacedAt) {
			r.Checkpoint = *row.VerifiedAt
		}
		if h.StopBy != nil {
			r.Stopping, r.StopBy = true, *h.StopBy
		}
	}
	return r
}

// Starting converts a job at the decision of its start. The result equals that of Running
// for the row after the commit.
func Starting(j placement.Job, s berth.Start, now time.Time) placement.Running {
	class := j.Class
	if len(j.Alternatives) > 0 {
		class = j.Alternatives[s.Alternative].Class
	}
	return placement.Running{
		Job: j.ID, Parent: j.Parent, Tenant: j.Tenant, Class: class, Version: s.Version + 1, Attempt: s.Attempt,
		Priority: j.Priority, SubmittedAt: j.SubmittedAt, Ranks: s.Ranks,
		LikeName: j.LikeName, LikeData: j.LikeData,
		StartedAt: now, TimeLimit: j.TimeLimit, Done: j.Done, Unaged: j.Unaged, Expected: j.Expected,
		PreemptedFor: j.PreemptedFor,
	}
}

// Nomination converts a nomination. While the victim still holds the capacity, the
// nomination names the victim; after that, the capacity is kept from all other jobs.
func Nomination(row db.Nomination) placement.Nomination {
	e := placement.Nomination{For: row.Beneficiary, Machine: row.Machine, Capacity: row.Capacity, GPUs: row.GPUs,
		ExpiresAt: row.ExpiresAt}
	e.Repair = row.Victim == row.Beneficiary
	if row.Asleep {
		e.Victim = row.Victim
	}
	return e
}

// Tenant converts a tenant's row. Its amounts contain no running work; the caller
// adds that to the budget.
func Tenant(row db.TenantRow) placement.Tenant {
	q := row.Quota
	t := placement.Tenant{
		ID: row.ID, Parent: row.Parent, Weight: row.Weight, Untrusted: row.Untrusted,
		Guarantee: capacity(q.Guarantee, 0), Limit: capacity(q.Limit, placement.None), Borrow: borrow(q.Borrow),
		Usage:   placement.Usage{At: row.Now, CPU: row.Usage.CPU, MemoryMiB: row.Usage.MemoryMiB, GPU: row.Usage.GPU},
		Stalled: row.Stalled,
	}
	if q.MaxRunning != nil {
		t.MaxRunning = *q.MaxRunning
	}
	if row.StalledSince != nil {
		t.StalledSince = *row.StalledSince
	}
	if q.Budget != nil {
		t.Budget = placement.Budget{GPUHours: q.Budget.GPUHours, Spent: row.Usage.Spent / 3600, At: row.Now}
	}
	return t
}

// Spend adds a holder's use in the present period, which began at since, to its
// tenant's budget.
func Spend(t placement.Tenant, r placement.Running, since time.Time) placement.Tenant {
	began := r.StartedAt
	if began.Before(since) {
		began = since
	}
	if used := t.Budget.At.Sub(began); t.Budget.GPUHours > 0 && used > 0 {
		for _, g := range r.Ranks {
			t.Budget.Spent += float64(g.Capacity.GPUMilli) / 1000 * used.Hours()
		}
	}
	return t
}

// capacity converts amounts for the placement engine. There 0 leaves a resource unlimited, so nothing
// replaces an amount of 0.
func capacity(a *spec.Amounts, nothing int64) berth.Capacity {
	if a == nil {
		return berth.Capacity{}
	}
	amount := func(n int64) int64 {
		if n == 0 {
			return nothing
		}
		return n
	}
	var c berth.Capacity
	if a.CPUs != nil {
		c.CPUMilli = amount(int64(*a.CPUs))
	}
	if a.Memory != nil {
		c.MemoryMiB = amount(int64(*a.Memory))
	}
	if a.GPUs != nil {
		c.GPUMilli = amount(int64(*a.GPUs))
	}
	return c
}

// borrow converts a quota's rule for capacity beyond the guarantee. An empty rule allows everything.
func borrow(b spec.Borrow) placement.Borrow {
	switch b {
	case spec.BorrowAny, "":
		return placement.BorrowAny
	case spec.BorrowPreemptible:
		return placement.BorrowPreemptible
	case spec.BorrowNone:
		return placement.BorrowNothing
	default:
		panic("unknown borrow " + string(b))
	}
}
