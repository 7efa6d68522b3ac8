package placement

import (
	"berth"
	"berth/placement/cluster"
	"berth/placement/explain"
	"berth/placement/fit"
	"berth/placement/preempt"
	"berth/placement/queue"
)

// The types below are rows of a snapshot and parts of a plan. Each belongs to the
// part of the engine that reads it; callers need this package alone.

// Rows of machines and of running jobs.
type (
	// Machine is the row of a machine.
	Machine = cluster.Machine
	// Device is one GPU of a machine, or one MIG slice.
	Device = cluster.Device
	// Running is a job that occupies machines.
	Running = cluster.Running
	// Pool is the rule of a pool that accepts the jobs of some tenants only.
	Pool = cluster.Pool
	// Window is the next maintenance window of a machine.
	Window = cluster.Window
)

// DebugPriority is the priority of debug jobs, which give way to every other job.
const DebugPriority = cluster.DebugPriority

// CompileConstraint checks the syntax and the types of a placement constraint. The error names
// the column and the mistake, for the author of the constraint.
func CompileConstraint(expr string) error { return cluster.CompileConstraint(expr) }

// CheckConstraint is CompileConstraint for a new constraint, and refuses one that may take too long.
func CheckConstraint(expr string) error { return cluster.CheckConstraint(expr) }

// Rows of waiting jobs and of tenants.
type (
	// Job is a waiting job.
	Job = queue.Job
	// Alternative is hardware that a waiting job may take.
	Alternative = queue.Alternative
	// Tenant is an account that work is charged to.
	Tenant = queue.Tenant
	// Usage is the decayed past use of a tenant.
	Usage = queue.Usage
	// Budget bounds the GPU time of a tenant.
	Budget = queue.Budget
	// Borrow limits the use of a tenant beyond its guarantee.
	Borrow = queue.Borrow
)

// None forbids the resource, as an amount of a limit.
const None = queue.None

// The ways to borrow.
const (
	BorrowAny         = queue.BorrowAny
	BorrowPreemptible = queue.BorrowPreemptible
	BorrowNothing     = queue.BorrowNothing
)

// The policy of a queue.
type (
	// Policy holds the order of jobs, quotas, reserved starts and preemption.
	Policy = queue.Policy
	// Order is the rule by which one waiting job follows another.
	Order = queue.Order
	// Durations is the knowledge of run times that the order srsf uses.
	Durations = queue.Durations
	// Ranker ranks the jobs of the order srsf.
	Ranker = queue.Ranker
	// RankView is the part of a snapshot that a Ranker reads.
	RankView = queue.RankView
	// Learned is a Ranker for jobs of unknown run time.
	Learned = queue.Learned
	// Ended is a job that ran to its end, for Learned.
	Ended = queue.Ended
	// RunTimes predicts run times from jobs that have ended, for estimates.
	RunTimes = queue.RunTimes
	// Prediction is the distribution of a job's run time, from RunTimes.
	Prediction = queue.Prediction
	// Like has the properties by which jobs are similar, for RunTimes.
	Like = queue.Like
	// Patient is a Ranker for jobs of known run time.
	Patient = queue.Patient
	// Adaptive is a Ranker for jobs of known run time, whose exponent follows the queue.
	Adaptive = queue.Adaptive
)

// The orders of a queue.
const (
	Fair     = queue.Fair
	Priority = queue.Priority
	FIFO     = queue.FIFO
	SRSF     = queue.SRSF
)

// The sources of run times.
const (
	Estimated = queue.Estimated
	Known     = queue.Known
	Unknown   = queue.Unknown
)

// Defaults of the rankers.
const (
	LearnedExponent    = queue.LearnedExponent
	LearnedPreemptions = queue.LearnedPreemptions
	UsualPatience      = queue.UsualPatience
	UsualExponent      = queue.UsualExponent
)

// ParseOrder reads the name of an order; ok is false for any other text.
func ParseOrder(s string) (o Order, ok bool) { return queue.ParseOrder(s) }

// GPUsOf converts a capacity to a number of GPUs. Work without GPUs counts by its cores.
func GPUsOf(c berth.Capacity) float64 { return cluster.GPUsOf(c) }

// NewRunTimes returns a RunTimes without jobs.
func NewRunTimes() *RunTimes { return queue.NewRunTimes() }

// NewLearned returns a Learned that has seen no job yet.
func NewLearned() *Learned { return queue.NewLearned() }

// The choice among machines that fit.
type (
	// Pack is the rule of packing.
	Pack = fit.Pack
	// Mix is the distribution of requests that the rule LeastFragmentation weighs by.
	Mix = fit.Mix
	// Asked is the frequency of one request in a Mix.
	Asked = fit.Asked
	// Near is a member that a plan moves to another machine, because that machine holds data of
	// the job.
	Near = fit.Near
	// MachineData is the amount of a job's data on one machine.
	MachineData = fit.MachineData
)

// The rules of packing.
const (
	BestFit            = fit.BestFit
	LeastFragmentation = fit.LeastFragmentation
)

// NewMix returns a Mix that learns from the jobs of a snapshot.
func NewMix() *Mix { return fit.NewMix() }

// GivenMix returns a Mix of known frequencies, which does not learn. Counts must be
// positive.
func GivenMix(list []Asked) (*Mix, error) { return fit.GivenMix(list) }

// Preemption.
type (
	// Preempt orders a running job to stop for another one.
	Preempt = preempt.Order
	// PreemptReason is the rule that allows a preemption.
	PreemptReason = preempt.Reason
	// Nomination keeps capacity of one machine for one waiting job.
	Nomination = preempt.Nomination
	// Withdrawal is a decision to delete nominations that a reserved start replaces.
	Withdrawal = preempt.Withdrawal
)

// The reasons for a preemption.
const (
	PreemptBand  = preempt.Band
	PreemptShare = preempt.Share
	PreemptQuota = preempt.Quota
	PreemptRank  = preempt.Rank
)

// Explanations.
type (
	// Explanation compares a request with the machines, clause by clause.
	Explanation = explain.Explanation
	// Members is the number of members of a gang that have room at once.
	Members = explain.Members
	// Clause is one condition of a request.
	Clause = explain.Clause
	// Shortfall is a resource that no machine has enough of.
	Shortfall = explain.Shortfall
	// JobExplanation lists the reasons why a job waits.
	JobExplanation = explain.JobExplanation
	// Blocker is one reason why a job does not start.
	Blocker = explain.Blocker
	// Waiting is a waiting job in an overview of the queue.
	Waiting = explain.Waiting
	// Holder is a running job that holds capacity that a waiting job could use.
	Holder = explain.Holder
	// Term is one value that the position of a job in the queue depends on.
	Term = explain.Term
)
