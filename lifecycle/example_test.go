package lifecycle_test

import (
	"fmt"
	"time"

	"berth"
	"berth/failure"
	"berth/lifecycle"
	"berth/spec"
	"berth/wire"
)

// An attempt can be settled once all its members have ended and their data is stored.
func ExampleBegin() {
	job := lifecycle.Job{State: berth.Running, Attempt: 1, Members: []lifecycle.Member{
		{State: berth.AllocExited, Sealed: true, Exit: &failure.Exit{Cause: failure.CauseExited}},
		{State: berth.AllocActive, Claimed: true},
	}}
	fmt.Println(lifecycle.Begin(job, 1))
	job.Members[1] = lifecycle.Member{State: berth.AllocOrphaned, Orphaned: true}
	fmt.Println(lifecycle.Begin(job, 1))
	// Output:
	// wait
	// settle
}

// The loss of a machine costs the user nothing. The capacity of the healthy member is kept,
// because the next attempt starts at once.
func ExampleSettle() {
	job := lifecycle.Job{State: berth.Running, Attempt: 1, Members: []lifecycle.Member{
		{Rank: 0, Machine: "m1", State: berth.AllocExited, Claimed: true, Sealed: true, Exit: &failure.Exit{
			Cause: failure.CauseOrdered, Code: 143, StartedAt: time.Unix(1, 0), FinishedAt: time.Unix(2, 0)}},
		{Rank: 1, Machine: "m2", State: berth.AllocOrphaned, Claimed: true, Orphaned: true},
	}}
	s := lifecycle.Settle(job, lifecycle.History{})
	fmt.Println(s.Verdict.Next, s.Reason.Code)
	fmt.Println("failures", s.Failures, "losses", s.Losses)
	fmt.Println("avoids", s.Avoid, "room", s.Room)
	// Output:
	// retrying machine_lost
	// failures 0 losses 1
	// avoids [m2] room kept
}

// With overlap buffer a fire waits for the job of the fire before it.
func ExampleFire() {
	at := time.Date(2026, 1, 1, 2, 0, 0, 0, time.UTC)
	facts := lifecycle.FireFacts{At: at, Now: at.Add(time.Second), Source: wire.FireByClock, Status: wire.FireDue,
		Overlap: spec.OverlapBuffer, Live: []berth.JobID{"j1"}}
	d := lifecycle.Fire(spec.Schedule{Name: "nightly"}, facts)
	fmt.Println(d.Status, "-", d.Reason.Message)
	facts.Status, facts.Live = d.Status, nil
	fmt.Println(lifecycle.Fire(spec.Schedule{Name: "nightly"}, facts).Status)
	// Output:
	// buffered - job j1 has not ended
	// submitted
}

// One failure more than allowed: the array becomes canceling and stops its live elements in
// the same pass. It creates no further elements.
func ExampleReconcile() {
	most := 1
	p := lifecycle.Parent{ID: "j-1", Kind: berth.KindArray, State: berth.Running, MaxFailures: &most, Expanded: 4,
		Tally: wire.Tally{Total: 6, Unmade: 2, ByStatus: map[berth.State]int{berth.Failed: 2, berth.Running: 2}}}
	pass := lifecycle.Reconcile(p)
	fmt.Println(pass.Fail.Message)
	fmt.Println(pass.Last(false))
	// Output:
	// 2 of 6 elements failed, more than max_failures (1) allows
	// stop
}
