package berth_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"time"

	"berth"
)

// Amounts of memory have binary and decimal units. A fraction of a mebibyte is
// rounded up, so that a job never gets less than it asked for.
func ExampleParseMiB() {
	for _, text := range []string{"4GiB", "512MiB", "2GB", "1.5TiB"} {
		amount, err := berth.ParseMiB(text)
		fmt.Println(int64(amount), amount, err)
	}
	_, err := berth.ParseMiB("4 gigs")
	fmt.Println(err)
	// Output:
	// 4096 4GiB <nil>
	// 512 512MiB <nil>
	// 1908 1908MiB <nil>
	// 1572864 1536GiB <nil>
	// "4 gigs" is not an amount: write 4GiB, 512MiB or a number of bytes
}

// A share of a GPU is less than one device; larger requests are whole devices.
func ExampleMilliGPU() {
	var resources berth.Resources
	if err := json.Unmarshal([]byte(`{"gpus": 0.25}`), &resources); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(resources.GPUs.IsShare(), resources.GPUs.Devices(), int64(resources.GPUs))
	// Output: true 0 250
}

func ExampleParseDuration() {
	limit, err := berth.ParseDuration("1h30m")
	fmt.Println(limit, limit.Std() == 90*time.Minute, err)
	// Output: 1h30m true <nil>
}

// Validate returns every fault of a spec at once, each with the field's path.
func ExampleJobSpec_Validate() {
	spec := berth.JobSpec{Name: "Fit", Image: "python:3.12", Members: 513}
	for _, fault := range spec.WithDefaults().Validate() {
		fmt.Println(fault.Field)
	}
	// Output:
	// name
	// members
}

// A request is the part of a spec that placement reads. Jobs with equal requests
// belong to one class, which placement examines once.
func ExampleJobSpec_Request() {
	memory, cpus := berth.MiB(4096), berth.MilliCPU(2000)
	spec := berth.JobSpec{
		Name: "fit", Image: "python:3.12",
		Resources: berth.Resources{CPUs: &cpus, Memory: &memory, GPUs: 2000},
	}.WithDefaults()
	request := spec.Request()
	other := spec
	other.Name = "another-name"
	fmt.Println(request.CPUMilli, request.MemoryMiB, request.GPUs, request.GPUMilli, request.Members)
	fmt.Println(request.Class() == other.Request().Class())
	// Output:
	// 2000 4096 2 1000 1
	// true
}

func ExampleCapacity_Fits() {
	free := berth.Capacity{CPUMilli: 4000, MemoryMiB: 8192}
	used := berth.Capacity{CPUMilli: 1500, MemoryMiB: 2048}
	fmt.Println(used.Fits(free))
	fmt.Println(free.Sub(used).CPUMilli, used.Add(used).MemoryMiB)
	// Output:
	// true
	// 2500 4096
}

// The state machine of a job is a table; the database holds the same pairs.
func ExampleState_CanBecome() {
	fmt.Println(berth.Running.CanBecome(berth.Succeeded))
	fmt.Println(berth.Succeeded.CanBecome(berth.Running))
	fmt.Println(berth.Canceled.Terminal(), berth.Scheduled.HoldsCapacity())
	// Output:
	// true
	// false
	// true true
}

// A machine that fell silent costs the user nothing: the job runs again
// elsewhere, and the loss counts against the machine.
func ExampleClassify() {
	verdict := berth.Classify(berth.AttemptEvidence{
		Job: "job", State: berth.Running, Attempt: 1,
		Ranks: []berth.RankEvidence{{Machine: "m1", Claimed: true, Orphaned: true}},
	})
	fmt.Println(verdict.Next, verdict.Rule, verdict.Budget)
	// Output: retrying machine_lost infra
}

// An exit code that is listed in no rule of the job is the user's own failure.
func ExampleClassify_userFailure() {
	verdict := berth.Classify(berth.AttemptEvidence{
		Job: "job", State: berth.Running, Attempt: 1, Retry: berth.RetryPolicy{MaxAttempts: 1},
		Ranks: []berth.RankEvidence{{
			Machine: "m1", Claimed: true,
			Exit: &berth.Exit{Cause: berth.CauseExited, Code: 1, StartedAt: time.Unix(1, 0), FinishedAt: time.Unix(2, 0)},
		}},
	})
	fmt.Println(verdict.Next, verdict.Reason.Code, *verdict.ExitCode)
	// Output: failed exit_code 1
}

func ExampleExitCodes_Contains() {
	codes, err := berth.ParseExitCodes("42,100-110")
	fmt.Println(codes.Contains(42), codes.Contains(105), codes.Contains(1), err)
	// Output: true true false <nil>
}

// The last lines of a log distinguish out-of-memory errors of a GPU from other failures.
func ExampleSignOf() {
	fmt.Println(berth.SignOf([]string{
		"Traceback (most recent call last):",
		"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
	}))
	// Output: cuda_oom
}

func ExampleXidAction() {
	for _, xid := range []uint64{13, 79} {
		action := berth.XidAction(xid)
		fmt.Println(xid, action.Fatal(), action.Quarantines())
	}
	// Output:
	// 13 false false
	// 79 true true
}

func ExampleParseIndexes() {
	ranges, err := berth.ParseIndexes("3-7,9")
	fmt.Println(ranges, err, berth.FormatIndexes([]int{3, 4, 5, 6, 7, 9}))
	// Output: [{3 7} {9 9}] <nil> 3-7,9
}

// The delay grows with each failure. Its jitter depends on the job and the count
// alone, so that every process computes the same time.
func ExampleBackoff_Delay() {
	b := berth.Backoff{Initial: berth.Duration(10 * time.Second), Factor: 2, Max: berth.Duration(time.Minute)}
	first, third := b.Delay("job", 1), b.Delay("job", 3)
	fmt.Println(first >= 5*time.Second && first <= 15*time.Second, third <= time.Minute, first == b.Delay("job", 1))
	// Output: true true true
}

func ExampleAddressOf() {
	sum := sha256.Sum256([]byte("weights"))
	a := berth.AddressOf(sum[:])
	parsed, err := berth.ParseAddress(string(a))
	fmt.Println(parsed == a, len(a.Hex()), err)
	// Output: true 64 <nil>
}

// An input names an output of another job, or of a step of the same pipeline.
func ExampleParseOutputRef() {
	ref, err := berth.ParseOutputRef("job:train.fit/model")
	fmt.Printf("%q %q %v\n", ref.Step, ref.Name, err)
	// Output: "train.fit" "model" <nil>
}

func ExampleQuota_Exceeds() {
	gpus := berth.MilliGPU(4000)
	quota := berth.Quota{Tenant: "vision", Limit: &berth.Amounts{GPUs: &gpus}}
	for _, fault := range quota.Exceeds(berth.Request{GPUs: 8, GPUMilli: 1000, Members: 1}) {
		fmt.Println(fault.Field, fault.Allowed)
	}
	// Output: resources.gpus at most 4
}
