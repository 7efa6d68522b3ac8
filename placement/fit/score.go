package fit

import (
	"berth/placement/cluster"
)

// Weights of a score, in parts of a thousand of what is left over.
const (
	strandWeight = 4
	deviceWeight = 2
)

// score is how badly a machine suits one member; less is better. Packing looks
// for the smallest leftover, spreading for the largest. Both count GPUs left
// without the CPU and memory to serve them: those are stranded.
func score(c *cluster.Class, n *cluster.Node, devices []int) int64 {
	left := n.Free.Sub(c.Capacity)
	leftover := share(left.CPUMilli, n.Total.CPUMilli) + share(left.MemoryMiB, n.Total.MemoryMiB)
	if c.Request.DiskMiB > 0 {
		leftover += share(left.DiskMiB, n.Total.DiskMiB)
	}
	gpus := share(left.GPUMilli, n.Total.GPUMilli)
	if len(devices) == 1 && c.Request.GPUMilli < 1000 {
		gpus = n.FreeMilli[devices[0]] - c.Request.GPUMilli
	}
	leftover += deviceWeight * gpus
	if spreads(c) {
		leftover = -leftover
	}
	return leftover + strandWeight*stranded(n, left.CPUMilli, left.MemoryMiB, left.GPUMilli)
}

// stranded is how much of the machine's devices would be left without their
// part of its CPU and memory.
func stranded(n *cluster.Node, cpu, mem, gpu int64) int64 {
	if n.Total.GPUMilli == 0 {
		return 0
	}
	served := min(share(cpu, n.Total.CPUMilli), share(mem, n.Total.MemoryMiB))
	return max(0, share(gpu, n.Total.GPUMilli)-served)
}

// share is part of whole in thousandths.
func share(part, whole int64) int64 {
	if whole == 0 {
		return 0
	}
	return part * 1000 / whole
}
