package queue

import (
	"math"
	"time"

	"berth"
)

// None as an amount of a limit forbids the resource.
const None = -1

// Tenant is an account that work is charged to, in the tree of accounts that share the
// cluster. The capacity that a tenant holds also counts for every ancestor, and their
// limits bind it.
type Tenant struct {
	ID     berth.TenantID
	Parent berth.TenantID // "": no parent
	Weight float64        // of its share among its siblings; 0: 1

	Untrusted bool // its jobs, and jobs of all tenants below, start only on machines that meet the security floors

	Guarantee  berth.Capacity // the tenant can take this much back from borrowers; 0: no guarantee
	Limit      berth.Capacity // most that the tenant holds; 0: no limit, None: nothing
	MaxRunning int            // jobs that hold capacity at once; 0: no limit
	Borrow     Borrow

	Usage  Usage
	Budget Budget

	// Stalled is the total time for which work of the tenant has waited for its quotas
	// alone: up to StalledSince if that is set, up to now otherwise. Jobs do not age during
	// that time. See Plan.Stalled.
	Stalled      time.Duration
	StalledSince time.Time // start of the present wait for quotas; zero: none
}

// Borrow limits the use of capacity beyond a tenant's guarantee that other tenants leave
// idle.
type Borrow int

const (
	// BorrowAny lets every job run beyond the guarantee.
	BorrowAny Borrow = iota
	// BorrowPreemptible lets only preemptible jobs run beyond the guarantee, so that
	// borrowed capacity can always be returned.
	BorrowPreemptible
	// BorrowNothing makes the guarantee a limit.
	BorrowNothing
)

// Usage is the past use of a tenant up to a time, in amounts times seconds. Use expires
// exponentially: half of it after each half-life. It does not include running jobs.
type Usage struct {
	At        time.Time
	CPU       float64 // core seconds
	MemoryMiB float64 // MiB seconds
	GPU       float64 // GPU seconds
}

// Budget bounds the GPU time of a tenant in the present period.
type Budget struct {
	GPUHours float64 // allowed; 0: no budget
	Spent    float64 // GPU hours up to At, including jobs that still ran then
	At       time.Time
}

// Decayed returns the usage decayed from At to now; zero without a half-life.
func (u Usage) Decayed(now time.Time, halfLife time.Duration) Usage {
	if halfLife <= 0 {
		return Usage{At: now}
	}
	f := 1.0
	if age := now.Sub(u.At); age > 0 {
		f = math.Exp2(-age.Seconds() / halfLife.Seconds())
	}
	return Usage{now, u.CPU * f, u.MemoryMiB * f, u.GPU * f}
}

// Ran adds the use of capacity c from start to end, and returns the usage at end. Time
// before u.At counts as if it were at u.At.
func (u Usage) Ran(c berth.Capacity, start, end time.Time, halfLife time.Duration) Usage {
	if end.Before(u.At) {
		end = u.At
	}
	u = u.Decayed(end, halfLife)
	if halfLife <= 0 || !end.After(start) {
		return u
	}
	// The integral of 2^-(t/halfLife) over the run.
	tau := halfLife.Seconds() / math.Ln2
	return u.plus(c, tau*(1-math.Exp(-end.Sub(start).Seconds()/tau)))
}

// Charge adds an entry penalty: the use of c for the duration d, at once.
func (u Usage) Charge(c berth.Capacity, d time.Duration) Usage { return u.plus(c, d.Seconds()) }

// plus adds the use of c for a time in seconds, without decay.
func (u Usage) plus(c berth.Capacity, seconds float64) Usage {
	u.CPU += float64(c.CPUMilli) / 1000 * seconds
	u.MemoryMiB += float64(c.MemoryMiB) * seconds
	u.GPU += float64(c.GPUMilli) / 1000 * seconds
	return u
}
