package queue

import (
	"math"
	"time"

	"berth"
)

// None forbids the resource, as an amount of a limit.
const None = -1

// Tenant is an account that work is charged to, in the tree of accounts that share the
// cluster. The capacity that a tenant holds counts for every tenant above as well, and
// their limits bind it.
type Tenant struct {
	ID     berth.TenantID
	Parent berth.TenantID // "": none above it
	Weight float64        // of its share among its siblings; 0: 1

	Guarantee  berth.Capacity // it can have this much back from those who borrow it; 0: none of the resource
	Limit      berth.Capacity // it never holds more; 0: no limit, None: nothing
	MaxRunning int            // jobs that hold room at once; 0: no limit
	Borrow     Borrow

	Usage  Usage
	Budget Budget

	// Stalled is how long work of the tenant has waited for its limits alone, in
	// all, up to StalledSince if that is set and up to now if it is not. Jobs do
	// not age in that time. See Plan.Stalled.
	Stalled      time.Duration
	StalledSince time.Time // zero: it does not, at present
}

// Borrow limits the use of a tenant beyond its guarantee, while other tenants leave
// capacity unused.
type Borrow int

const (
	// BorrowAny lets every job run beyond the guarantee.
	BorrowAny Borrow = iota
	// BorrowPreemptible lets only preemptible jobs run beyond the guarantee, so
	// that it can always be given back.
	BorrowPreemptible
	// BorrowNothing makes the guarantee a limit.
	BorrowNothing
)

// Usage is the past use of a tenant up to a time, in amounts times seconds. Older use
// counts less: half of it after each half-life. Running jobs are not in it.
type Usage struct {
	At        time.Time
	CPU       float64 // core seconds
	MemoryMiB float64 // MiB seconds
	GPU       float64 // GPU seconds
}

// Budget bounds the GPU time of a tenant, by what has been spent up to a time.
type Budget struct {
	GPUHours float64 // 0: none
	Spent    float64 // GPU hours up to At, those of work that still ran included
	At       time.Time
}

// Decayed returns the usage as it counts at now. Without a half-life it is zero.
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
// before u.At counts as if it came at u.At.
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

// Charge adds an entry penalty: c for as long as d, at once.
func (u Usage) Charge(c berth.Capacity, d time.Duration) Usage { return u.plus(c, d.Seconds()) }

func (u Usage) plus(c berth.Capacity, seconds float64) Usage {
	u.CPU += float64(c.CPUMilli) / 1000 * seconds
	u.MemoryMiB += float64(c.MemoryMiB) * seconds
	u.GPU += float64(c.GPUMilli) / 1000 * seconds
	return u
}
