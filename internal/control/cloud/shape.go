package cloud

import (
	"fmt"
	"slices"
	"strings"
)

// Shape is the capacity that the offer of a launch named. A zero value is unknown, and no machine has less.
type Shape struct {
	CPUs      int    `json:"cpus,omitempty"`
	MemoryMiB int64  `json:"memory_mib,omitempty"`
	GPUs      int    `json:"gpus,omitempty"`
	GPUType   string `json:"gpu_type,omitempty"` // as in Offer
}

// leastMemory is the share of an offer's memory that its machines have at least. Firmware, kernel and the reserve of
// the agent take a part; another machine type usually has half.
const leastMemory = 0.75

// Lacks returns a machine's deficit, as the end of a sentence that begins with the machine, or "". The arguments are
// the memory and the models of the healthy GPUs that the machine has reported. Slices of a GPU, such as A100-1g.5gb,
// count as GPUs of the type. The number of CPUs is not compared: an image may turn off hardware threads.
func (s Shape) Lacks(memoryMiB int64, models []string) string {
	fits := 0
	for _, m := range models {
		if isModel(m, s.GPUType) {
			fits++
		}
	}
	switch {
	case fits < s.GPUs && fits < len(models):
		list := slices.Clone(models)
		slices.Sort(list)
		return fmt.Sprintf("has %d of the %d %s GPUs of its offer; its healthy GPUs are %s", fits, s.GPUs, s.GPUType,
			strings.Join(slices.Compact(list), ", "))
	case fits < s.GPUs:
		return strings.Join(strings.Fields(fmt.Sprintf("has %d of the %d healthy %s GPUs of its offer", fits, s.GPUs,
			s.GPUType)), " ")
	case float64(memoryMiB) < leastMemory*float64(s.MemoryMiB):
		return fmt.Sprintf("has %d MiB of memory, and its offer has %d MiB", memoryMiB, s.MemoryMiB)
	}
	return ""
}

// isModel reports whether a device is of a type, or is a slice of one. "" is any type.
func isModel(model, kind string) bool {
	if len(model) > len(kind) && model[len(kind)] == '-' {
		model = model[:len(kind)]
	}
	return kind == "" || strings.EqualFold(model, kind)
}
