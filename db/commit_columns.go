package db

import (
	"cmp"
	"slices"

	"berth"
)

// Columns of the rows to insert, for unnest.
type (
	attemptColumns struct {
		job     []berth.JobID
		attempt []int
		resume  []*int64
		number  []int // of the alternative
	}
	// Amounts are in thousandths of a core or a device, and in MiB.
	rankColumns struct {
		job                        []berth.JobID
		attempt, rank              []int
		machine                    []berth.MachineID
		epoch, cpu, mem, disk, gpu []int64
		port                       []*int
		oneTenant, untrusted       []bool
	}
	claimColumns struct {
		job                []berth.JobID
		attempt, rank, idx []int
		milli              []int64
		tenant             []berth.TenantID // "": the claim is not limited to one tenant
	}
)

// columnsOf orders the rows by job, so that index pages are touched once. The slices of one table have
// the same length: row i is the i-th value of each. Few statements with many rows keep the commit at
// two round trips, however large the batch is.
func columnsOf(starts []berth.Start, p *present) (a attemptColumns, r rankColumns, g claimColumns) {
	starts = slices.SortedFunc(slices.Values(starts), func(x, y berth.Start) int { return cmp.Compare(x.Job, y.Job) })
	for _, s := range starts {
		a.job, a.attempt, a.number = append(a.job, s.Job), append(a.attempt, s.Attempt), append(a.number, s.Alternative)
		// nil: the attempt starts without a checkpoint.
		var from *int64
		if step, ok := p.resume[s.Job]; ok {
			from = &step
		}
		a.resume = append(a.resume, from)
		for i, rank := range s.Ranks {
			r.job, r.attempt, r.rank = append(r.job, s.Job), append(r.attempt, s.Attempt), append(r.rank, i)
			r.machine, r.epoch = append(r.machine, rank.Machine), append(r.epoch, rank.Epoch)
			c := rank.Capacity
			r.cpu, r.mem, r.disk, r.gpu = append(r.cpu, c.CPUMilli), append(r.mem, c.MemoryMiB),
				append(r.disk, c.DiskMiB), append(r.gpu, c.GPUMilli)
			r.port = append(r.port, p.port(s.Job, i))
			r.oneTenant = append(r.oneTenant, p.machines[rank.Machine].oneTenant)
			r.untrusted = append(r.untrusted, p.distrust[s.Job])
			for _, d := range rank.GPUs {
				g.job, g.attempt, g.rank = append(g.job, s.Job), append(g.attempt, s.Attempt), append(g.rank, i)
				g.idx, g.milli, g.tenant = append(g.idx, d.Index), append(g.milli, d.Milli), append(g.tenant, d.Tenant)
			}
		}
	}
	return a, r, g
}
