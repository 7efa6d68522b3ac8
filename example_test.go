package berth_test

import (
	"crypto/sha256"
	"fmt"

	"berth"
)

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

func ExampleAddressOf() {
	sum := sha256.Sum256([]byte("weights"))
	a := berth.AddressOf(sum[:])
	parsed, err := berth.ParseAddress(string(a))
	fmt.Println(parsed == a, len(a.Hex()), err)
	// Output: true 64 <nil>
}
