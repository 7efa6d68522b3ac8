package spec_test

import (
	"encoding/json"
	"fmt"
	"time"

	"berth/spec"
)

// Amounts of memory have binary and decimal units. A fraction of a mebibyte is
// rounded up, so that a job never gets less than it asked for.
func ExampleParseMiB() {
	for _, text := range []string{"4GiB", "512MiB", "2GB", "1.5TiB"} {
		amount, err := spec.ParseMiB(text)
		fmt.Println(int64(amount), amount, err)
	}
	_, err := spec.ParseMiB("4 gigs")
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
	var resources spec.Resources
	if err := json.Unmarshal([]byte(`{"gpus": 0.25}`), &resources); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(resources.GPUs.IsShare(), resources.GPUs.Devices(), int64(resources.GPUs))
	// Output: true 0 250
}

func ExampleParseDuration() {
	limit, err := spec.ParseDuration("1h30m")
	fmt.Println(limit, limit.Std() == 90*time.Minute, err)
	// Output: 1h30m true <nil>
}

// Validate returns every fault of a spec at once, each with the field's path.
func ExampleJob_Validate() {
	jobSpec := spec.Job{Name: "Fit", Image: "python:3.12", Members: 513}
	for _, fault := range jobSpec.WithDefaults().Validate() {
		fmt.Println(fault.Field)
	}
	// Output:
	// name
	// members
}

// A request is the part of a spec that placement reads. Jobs with equal requests
// belong to one class, which placement examines once.
func ExampleJob_Request() {
	memory, cpus := spec.MiB(4096), spec.MilliCPU(2000)
	jobSpec := spec.Job{
		Name: "fit", Image: "python:3.12",
		Resources: spec.Resources{CPUs: &cpus, Memory: &memory, GPUs: 2000},
	}.WithDefaults()
	request := jobSpec.Request()
	other := jobSpec
	other.Name = "another-name"
	fmt.Println(request.CPUMilli, request.MemoryMiB, request.GPUs, request.GPUMilli, request.Members)
	fmt.Println(request.Class() == other.Request().Class())
	// Output:
	// 2000 4096 2 1000 1
	// true
}

func ExampleExitCodes_Contains() {
	codes, err := spec.ParseExitCodes("42,100-110")
	fmt.Println(codes.Contains(42), codes.Contains(105), codes.Contains(1), err)
	// Output: true true false <nil>
}

func ExampleParseIndexes() {
	ranges, err := spec.ParseIndexes("3-7,9")
	fmt.Println(ranges, err, spec.FormatIndexes([]int{3, 4, 5, 6, 7, 9}))
	// Output: [{3 7} {9 9}] <nil> 3-7,9
}

// The delay grows with each failure. Its jitter depends on the job and the count
// alone, so that every process computes the same time.
func ExampleBackoff_Delay() {
	b := spec.Backoff{Initial: spec.Duration(10 * time.Second), Factor: 2, Max: spec.Duration(time.Minute)}
	first, third := b.Delay("job", 1), b.Delay("job", 3)
	fmt.Println(first >= 5*time.Second && first <= 15*time.Second, third <= time.Minute, first == b.Delay("job", 1))
	// Output: true true true
}

// An input names an output of another job, or of a step of the same pipeline.
func ExampleParseOutputRef() {
	ref, err := spec.ParseOutputRef("job:train.fit/model")
	fmt.Printf("%q %q %v\n", ref.Step, ref.Name, err)
	// Output: "train.fit" "model" <nil>
}

func ExampleQuota_Exceeds() {
	gpus := spec.MilliGPU(4000)
	quota := spec.Quota{Tenant: "vision", Limit: &spec.Amounts{GPUs: &gpus}}
	for _, fault := range quota.Exceeds(spec.Request{GPUs: 8, GPUMilli: 1000, Members: 1}) {
		fmt.Printf("%s: %s\n", fault.Field, fault.Detail)
	}
	// Output: resources.gpus: asks for 8 GPUs; the quota of tenant vision is 4
}
