package queue

import (
	"fmt"
	"math"
	"time"

	"berth"
	"berth/spec"
)

// resources lists the resources of quotas, in the order of texts. Amounts are in
// thousandths of a GPU, thousandths of a core, and MiB.
var resources = []struct {
	name string
	unit string                     // of the quota in texts, after the amount
	of   func(berth.Capacity) int64 // amount in a capacity
	text func(int64) string         // amount for people
}{
	{"gpus", " GPUs", func(c berth.Capacity) int64 { return c.GPUMilli },
		func(n int64) string { return spec.MilliGPU(n).String() }},
	{"cpus", " CPUs", func(c berth.Capacity) int64 { return c.CPUMilli },
		func(n int64) string { return spec.MilliCPU(n).String() }},
	{"memory", " of memory", func(c berth.Capacity) int64 { return c.MemoryMiB },
		func(n int64) string { return spec.MiB(n).String() }},
	{"disk", " of disk", func(c berth.Capacity) int64 { return c.DiskMiB },
		func(n int64) string { return spec.MiB(n).String() }},
}

// Guarantees reports whether an account with the given held capacity may add c within its
// guarantee. Only resources with a guarantee count; c must request at least one of these.
func (a *Account) Guarantees(held, c berth.Capacity) bool {
	some := false
	for _, r := range resources {
		g := r.of(a.Guarantee)
		if g <= 0 {
			continue
		}
		if r.of(held)+r.of(c) > g {
			return false
		}
		some = some || r.of(c) > 0
	}
	return some
}

// Borrows reports whether held exceeds the account's guarantee in any resource.
func (a *Account) Borrows(held berth.Capacity) bool {
	for _, r := range resources {
		if g := r.of(a.Guarantee); g > 0 && r.of(held) > g {
			return true
		}
	}
	return false
}

// limited reports whether any quota bounds the account.
func (a *Account) limited() bool {
	return a.Limit != berth.Capacity{} || a.MaxRunning > 0 || a.Borrow != BorrowAny || a.Budget.GPUHours > 0
}

// Bar is a quota of an account that one more job would exceed.
type Bar struct {
	account  *Account
	Code     string         // limit, max_running, borrowing or budget
	resource int            // index in resources; for a limit only
	held     Holding        // held by the account, without the job
	request  berth.Capacity // of the job, all members
	spent    float64        // GPU hours; for a budget only
}

// Barred returns the first quota that one more job of the contender would exceed; ok is
// false if no quota bars the job.
func (r *Shares) Barred(x *Contender, e *Entry) (found Bar, ok bool) {
	r.Bars(x, e, func(b Bar) bool {
		found, ok = b, true
		return false
	})
	return found, ok
}

// Bars calls yield with each quota that one more job of the contender would exceed, from
// its own account upward, until yield returns false. Quotas count stopping jobs until they
// have ended.
func (r *Shares) Bars(x *Contender, e *Entry, yield func(Bar) bool) {
	for ; x != &r.Root; x = x.Parent {
		// A contender for an account's own jobs has no quota itself: its parent is the
		// contender of the whole account.
		held := x.Held.plus(x.going)
		if x.Account.Known && !x.own && !x.Account.bars(held, e.Class.All, e.Preemptible,
			x.Account.Budget.SpentAt(r.Now, held.GPUMilli), yield) {
			return
		}
	}
}

// bars calls yield with each of the account's own quotas that a job with capacity c would
// exceed, and returns false as soon as yield does. spent is the GPU hours of the budget that are spent.
func (a *Account) bars(held Holding, c berth.Capacity, preemptible bool, spent float64, yield func(Bar) bool) bool {
	b := Bar{account: a, held: held, request: c, spent: spent}
	// A resource that the job does not request never bars it. A negative limit (None)
	// counts as 0.
	for i, x := range resources {
		if limit, want := x.of(a.Limit), x.of(c); limit != 0 && want > 0 && x.of(held.Capacity)+want > max(0, limit) {
			if b.Code, b.resource = "limit", i; !yield(b) {
				return false
			}
		}
	}
	if a.MaxRunning > 0 && held.Jobs >= a.MaxRunning {
		if b.Code = "max_running"; !yield(b) {
			return false
		}
	}
	if a.OverBorrows(held, c, preemptible) {
		if b.Code = "borrowing"; !yield(b) {
			return false
		}
	}
	if a.Budget.GPUHours > 0 && c.GPUMilli > 0 {
		// The start is barred only once the budget is spent: a job that overspends it may
		// start.
		if spent >= a.Budget.GPUHours {
			b.Code = "budget"
			return yield(b)
		}
	}
	return true
}

// String returns a description of the quota and the account's use, for people.
func (b Bar) String() string {
	who := "tenant " + string(b.account.ID)
	switch b.Code {
	case "limit":
		x := resources[b.resource]
		return fmt.Sprintf("%s uses %s of %s%s of its quota; the job needs %s", who,
			x.text(x.of(b.held.Capacity)), x.text(max(0, x.of(b.account.Limit))), x.unit, x.text(x.of(b.request)))
	case "max_running":
		jobs := "running jobs"
		if b.account.MaxRunning == 1 {
			jobs = "running job"
		}
		return fmt.Sprintf("%s is at its limit of %d %s (max_running)", who, b.account.MaxRunning, jobs)
	case "borrowing":
		return who + " would exceed its guarantee, and this job may not borrow"
	case "budget":
		return fmt.Sprintf("%s has spent %.1f of the %g GPU-hours of its budget", who, b.spent,
			b.account.Budget.GPUHours)
	}
	panic("placement: no such limit: " + b.Code)
}

// Short returns the description of String in a few words, for tables.
func (b Bar) Short() string {
	of := " of " + string(b.account.ID) + ": "
	switch b.Code {
	case "limit":
		x := resources[b.resource]
		return fmt.Sprintf("quota%s%s of %s%s used, needs %s", of, x.text(x.of(b.held.Capacity)),
			x.text(max(0, x.of(b.account.Limit))), x.unit, x.text(x.of(b.request)))
	case "max_running":
		return fmt.Sprintf("quota%s%d of %d running", of, b.held.Jobs, b.account.MaxRunning)
	case "borrowing":
		return "quota" + of + "guarantee used, may not borrow"
	case "budget":
		return fmt.Sprintf("budget%s%.1f of %g GPU-hours spent", of, b.spent, b.account.Budget.GPUHours)
	}
	panic("placement: no such limit: " + b.Code)
}

// Later returns the description of a quota that will bar a job once all known ends of jobs have passed, for people.
// Jobs without a known end then hold the capacity of the account.
func (b Bar) Later() string {
	who := "jobs of tenant " + string(b.account.ID) + " without a known end"
	switch b.Code {
	case "limit":
		x := resources[b.resource]
		return fmt.Sprintf("%s will use %s of %s%s of its quota; the job needs %s", who,
			x.text(x.of(b.held.Capacity)), x.text(max(0, x.of(b.account.Limit))), x.unit, x.text(x.of(b.request)))
	case "max_running":
		return fmt.Sprintf("%s will fill its limit of running jobs: %d (max_running)", who, b.account.MaxRunning)
	case "borrowing":
		return who + " will use its guarantee, and this job may not borrow"
	case "budget":
		return fmt.Sprintf("tenant %s will have spent the %g GPU-hours of its budget before the job has room",
			b.account.ID, b.account.Budget.GPUHours)
	}
	panic("placement: no such limit: " + b.Code)
}

// LaterShort returns the description of Later in a few words, for tables.
func (b Bar) LaterShort() string {
	of := " of " + string(b.account.ID) + ": "
	switch b.Code {
	case "limit", "max_running":
		return "quota" + of + "used by jobs without a known end"
	case "borrowing":
		return "quota" + of + "guarantee used by jobs without a known end"
	case "budget":
		return fmt.Sprintf("budget%sall %g GPU-hours will be spent", of, b.account.Budget.GPUHours)
	}
	panic("placement: no such limit: " + b.Code)
}

// Change returns a description of the event that would lift the quota, for people.
func (b Bar) Change() string {
	switch b.Code {
	case "limit", "max_running":
		return "wait until jobs of the tenant end, or ask an operator for a larger quota"
	case "borrowing":
		return "wait until jobs of the tenant end, ask an operator for a larger guarantee, or make the job " +
			"preemptible if such jobs may borrow"
	case "budget":
		return "wait for the next period of the budget, or ask an operator for a larger one"
	}
	panic("placement: no such limit: " + b.Code)
}

// OverBorrows reports whether one more job with capacity c would borrow more than the
// account may. If only preemptible jobs may borrow, the other jobs together must fit into
// the guarantee, so that it can always be given back.
func (a *Account) OverBorrows(held Holding, c berth.Capacity, preemptible bool) bool {
	beyond := func(held berth.Capacity) bool {
		for _, x := range resources {
			if g, want := x.of(a.Guarantee), x.of(c); g > 0 && want > 0 && x.of(held)+want > g {
				return true
			}
		}
		return false
	}
	switch a.Borrow {
	case BorrowAny:
		return false
	case BorrowPreemptible:
		return !preemptible && beyond(held.firm)
	case BorrowNothing:
		return beyond(held.Capacity)
	}
	panic("placement: no such way to borrow")
}

// SpentAt returns the GPU hours spent by now, assuming that the held GPUs (in thousandths)
// were held since At.
func (b Budget) SpentAt(now time.Time, gpuMilli int64) float64 {
	spent := b.Spent
	if !b.At.IsZero() && now.After(b.At) {
		spent += float64(gpuMilli) / 1000 * now.Sub(b.At).Hours()
	}
	return spent
}

// guaranteed reports whether the account has a guarantee of any resource.
func (a *Account) guaranteed() bool {
	for _, x := range resources {
		if x.of(a.Guarantee) > 0 {
			return true
		}
	}
	return false
}

// Bounds returns the upper bounds of the account's holding, per resource that counts in
// shares, and +Inf for a resource without one. bound is false if no quota applies.
// MaxRunning sets bound, but no amount.
func (a *Account) Bounds() (room Amounts, bound bool) {
	limit, guarantee := AmountsOf(a.Limit), AmountsOf(a.Guarantee)
	for i := range room {
		room[i] = math.Inf(1)
		if limit[i] != 0 {
			room[i] = max(0, limit[i])
		}
		if a.Borrow == BorrowNothing && guarantee[i] > 0 {
			room[i] = min(room[i], guarantee[i])
		}
		bound = bound || !math.IsInf(room[i], 1)
	}
	return room, bound || a.MaxRunning > 0
}
