package failure_test

import (
	"fmt"
	"time"

	"berth"
	"berth/failure"
	"berth/spec"
)

// A machine that fell silent costs the user nothing: the job runs again
// elsewhere, and the loss counts against the machine.
func ExampleClassify() {
	verdict := failure.Classify(failure.AttemptEvidence{
		Job: "job", State: berth.Running, Attempt: 1,
		Ranks: []failure.RankEvidence{{Machine: "m1", Claimed: true, Orphaned: true}},
	})
	fmt.Println(verdict.Next, verdict.Rule, verdict.Budget)
	// Output: retrying machine_lost infra
}

// An exit code that is listed in no rule of the job is the user's own failure.
func ExampleClassify_userFailure() {
	verdict := failure.Classify(failure.AttemptEvidence{
		Job: "job", State: berth.Running, Attempt: 1, Retry: spec.RetryPolicy{MaxAttempts: 1},
		Ranks: []failure.RankEvidence{{
			Machine: "m1", Claimed: true,
			Exit: &failure.Exit{Cause: failure.CauseExited, Code: 1, StartedAt: time.Unix(1, 0), FinishedAt: time.Unix(2, 0)},
		}},
	})
	fmt.Println(verdict.Next, verdict.Reason.Code, *verdict.ExitCode)
	// Output: failed exit_code 1
}

// The last lines of a log distinguish out-of-memory errors of a GPU from other failures.
func ExampleSignOf() {
	fmt.Println(failure.SignOf([]string{
		"Traceback (most recent call last):",
		"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
	}))
	// Output: cuda_oom
}

func ExampleXidAction() {
	for _, xid := range []uint64{13, 79} {
		action := failure.XidAction(xid)
		fmt.Println(xid, action.Fatal(), action.Quarantines())
	}
	// Output:
	// 13 false false
	// 79 true true
}
