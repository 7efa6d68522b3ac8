package queue

import (
	"fmt"
	"math"
	"time"

	"berth"
	"berth/spec"
)

// resources of quotas, in the order in which they are told.
var resources = []struct {
	name string
	unit string
	of   func(berth.Capacity) int64
	text func(int64) string
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

// Guarantees reports whether an account that holds held may add c within its guarantee.
// Only resources with a guarantee count; c must request at least one of them.
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

// Borrows reports whether an account holds more than its guarantee of anything.
func (a *Account) Borrows(held berth.Capacity) bool {
	for _, r := range resources {
		if g := r.of(a.Guarantee); g > 0 && r.of(held) > g {
			return true
		}
	}
	return false
}

// limited reports whether the account is bound by any limit.
func (a *Account) limited() bool {
	return a.Limit != berth.Capacity{} || a.MaxRunning > 0 || a.Borrow != BorrowAny || a.Budget.GPUHours > 0
}

// Bar is a limit of an account that one more job would break.
type Bar struct {
	account  *Account
	Code     string // limit, max_running, borrowing or budget
	resource int    // of a limit
	held     Holding
	request  berth.Capacity
	spent    float64 // of a budget
}

// Barred reports the first limit that one more job of the contender would break.
func (r *Shares) Barred(x *Contender, e *Entry) (found Bar, ok bool) {
	r.Bars(x, e, func(b Bar) bool {
		found, ok = b, true
		return false
	})
	return found, ok
}

// Bars calls yield with the limits that one more job of the contender would break,
// from its own account up, until yield returns false.
func (r *Shares) Bars(x *Contender, e *Entry, yield func(Bar) bool) {
	for ; x != &r.Root; x = x.Parent {
		if x.Account.Known && !x.own &&
			!x.Account.bars(x.Held.plus(x.going), e.Class.All, e.Preemptible, r.Now, yield) {
			return
		}
	}
}

func (a *Account) bars(held Holding, c berth.Capacity, preemptible bool, now time.Time, yield func(Bar) bool) bool {
	b := Bar{account: a, held: held, request: c}
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
		if b.spent = a.Budget.SpentAt(now, held.GPUMilli); b.spent >= a.Budget.GPUHours {
			b.Code = "budget"
			return yield(b)
		}
	}
	return true
}

// String describes the limit and the account's use of it.
func (b Bar) String() string {
	who := "tenant " + string(b.account.ID)
	switch b.Code {
	case "limit":
		x := resources[b.resource]
		return fmt.Sprintf("%s holds %s of %s%s of its limit; the job asks for %s", who,
			x.text(x.of(b.held.Capacity)), x.text(max(0, x.of(b.account.Limit))), x.unit, x.text(x.of(b.request)))
	case "max_running":
		return fmt.Sprintf("%s runs %d of the %d jobs of its max_running", who, b.held.Jobs, b.account.MaxRunning)
	case "borrowing":
		return who + " would hold more than its guarantee, which this job may not"
	case "budget":
		return fmt.Sprintf("%s has spent %.1f of %g GPU-hours of its budget", who, b.spent, b.account.Budget.GPUHours)
	}
	panic("placement: no such limit: " + b.Code)
}

// Change describes the event that would lift the limit.
func (b Bar) Change() string {
	switch b.Code {
	case "limit", "max_running":
		return "it starts when jobs of the tenant end, or when the limit is raised"
	case "borrowing":
		return "it starts when jobs of the tenant end, when the guarantee is raised, or, " +
			"if only preemptible jobs may borrow, as one"
	case "budget":
		return "it starts in the next period of the budget, or when the budget is raised"
	}
	panic("placement: no such limit: " + b.Code)
}

// OverBorrows reports whether one more job would borrow more than the account may.
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

// SpentAt returns the GPU hours spent by now, if the held GPUs were held since At.
func (b Budget) SpentAt(now time.Time, gpuMilli int64) float64 {
	spent := b.Spent
	if !b.At.IsZero() && now.After(b.At) {
		spent += float64(gpuMilli) / 1000 * now.Sub(b.At).Hours()
	}
	return spent
}

// guaranteed reports whether anything is guaranteed to the account.
func (a *Account) guaranteed() bool {
	for _, x := range resources {
		if x.of(a.Guarantee) > 0 {
			return true
		}
	}
	return false
}

// Bounds returns the most that the account may hold; bound is false if no limit
// applies.
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
