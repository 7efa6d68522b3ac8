package wire

import (
	"time"

	"berth"
)

// UseReport carries the measured use of a machine. It is shown to users, and nothing is decided
// by it: a lost report costs a moment of a display.
type UseReport struct {
	AgentBoot string `json:"agent_boot"`
	Epoch     int64  `json:"epoch"`
	Use       Use    `json:"use"`
}

// Use is the measured use of a machine at a moment: CPU and memory of all its jobs together, and
// its GPUs with all their users.
type Use struct {
	CPUMilli  int64    `json:"cpu_milli" doc:"thousandths of a core that jobs use, over the last seconds"`
	MemoryMiB int64    `json:"memory_mib" doc:"memory of jobs, without reclaimable cache"`
	GPUs      []GPUNow `json:"gpus,omitempty" doc:"the devices that could be measured"`

	// DiskFree is nil from agents of before this field, and where no file system could be measured.
	DiskFree *float64 `json:"disk_free,omitempty" doc:"smallest free share of the disks of jobs and images, 0 to 1"`
}

// GPUNow is the measured use of one device.
type GPUNow struct {
	UUID      string   `json:"uuid"`
	Busy      *float64 `json:"busy,omitempty" doc:"share of the time in which the device was busy, 0 to 1"`
	MemoryMiB *int64   `json:"memory_mib,omitempty" doc:"memory of the device in use"`
}

// MeasuredUse is the last measured use of a machine.
type MeasuredUse struct {
	At time.Time `json:"at"`
	Use
}

// UseAge is how long a measurement is shown. Agents repeat an unchanged one within half of this
// time, so an older one comes from an agent that does not measure now.
const UseAge = 2 * time.Minute

// Valid returns an error for a report with values that no machine has.
func (u Use) Valid() error {
	const most = 1 << 40 // beyond any machine; sums of it do not overflow
	if u.CPUMilli < 0 || u.CPUMilli > most || u.MemoryMiB < 0 || u.MemoryMiB > most || len(u.GPUs) > 1024 {
		return berth.Errorf(berth.CodeInvalid, "use: %d m of CPU, %d MiB and %d GPUs; allowed: 0 to %d, and 1024 GPUs",
			u.CPUMilli, u.MemoryMiB, len(u.GPUs), int64(most))
	}
	if u.DiskFree != nil && !(*u.DiskFree >= 0 && *u.DiskFree <= 1) {
		return berth.Errorf(berth.CodeInvalid, "use: disk_free %g is out of range; allowed: 0 to 1", *u.DiskFree)
	}
	for _, g := range u.GPUs {
		if g.Busy != nil && !(*g.Busy >= 0 && *g.Busy <= 1) ||
			g.MemoryMiB != nil && (*g.MemoryMiB < 0 || *g.MemoryMiB > most) || g.UUID == "" || len(g.UUID) > 128 {
			return berth.Errorf(berth.CodeInvalid, "use: values of GPU %.40q are out of range", g.UUID)
		}
	}
	return nil
}
