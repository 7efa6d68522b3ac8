package fit

import (
	"berth/placement/cluster"
)

// Weights in a score, relative to CPU and memory left over.
const (
	strandWeight = 4 // of GPUs that are left without CPU and memory
	deviceWeight = 2 // of GPU share left over
)

// score returns the best-fit cost of one member on a machine, in thousandths of a machine;
// less is better. Packing prefers the smallest leftover, spreading the largest. Both add a
// penalty for stranded GPUs: GPUs without the CPU and memory that jobs on them would need.
func score(c *cluster.Class, n *cluster.Node, devices []int) int64 {
	left := n.Free.Sub(c.Capacity)
	leftover := share(left.CPUMilli, n.Total.CPUMilli) + share(left.MemoryMiB, n.Total.MemoryMiB)
	if c.Request.DiskMiB > 0 {
		leftover += share(left.DiskMiB, n.Total.DiskMiB)
	}
	gpus := share(left.GPUMilli, n.Total.GPUMilli)
	// For a share, the rest of its device counts instead of the rest of the machine's GPUs.
	if len(devices) == 1 && c.Request.GPUMilli < 1000 {
		gpus = n.FreeMilli[devices[0]] - c.Request.GPUMilli
	}
	leftover += deviceWeight * gpus
	if spreads(c) {
		leftover = -leftover
	}
	return leftover + strandWeight*stranded(n, left.CPUMilli, left.MemoryMiB, left.GPUMilli)
}

// stranded returns the part of the machine's GPUs, in thousandths, that would be left
// without their proportional part of CPU and memory.
func stranded(n *cluster.Node, cpu, mem, gpu int64) int64 {
	if n.Total.GPUMilli == 0 {
		return 0
	}
	served := min(share(cpu, n.Total.CPUMilli), share(mem, n.Total.MemoryMiB))
	return max(0, share(gpu, n.Total.GPUMilli)-served)
}

// share returns part as thousandths of whole; 0 if whole is 0.
func share(part, whole int64) int64 {
	if whole == 0 {
		return 0
	}
	return part * 1000 / whole
}
