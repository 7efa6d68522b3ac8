package check

import (
	"berth"
	"berth/db/history"
)

// nominationsHold proves the last part of invariant 14: freed capacity is kept for the job
// that the victim gave way to. It follows the devices of a machine in the order of the
// ledger: a job that takes a part of a device must leave the part that is nominated for
// other jobs.
func nominationsHold(c *machineCase) {
	holders := map[int]map[berth.AllocationID]history.Allocation{}
	for _, m := range c.moves() {
		for _, g := range m.a.GPUs {
			if holders[g.Index] == nil {
				holders[g.Index] = map[berth.AllocationID]history.Allocation{}
			}
			if !m.taken {
				delete(holders[g.Index], m.a.ID)
				continue
			}
			holders[g.Index][m.a.ID] = m.a
			kept, proof := c.keptAt(m.seq, g.Index, m.a.Job)
			if sum := claimed(holders[g.Index], g.Index); kept > 0 && sum+kept > 1000 {
				c.of(m.a, append(proof, m.a),
					"it took %d milli of GPU %d at %d of the ledger, of which %d were kept for another job", g.Milli,
					g.Index, m.seq, kept)
			}
		}
	}
}

// keptAt returns the part of a device that was kept from a job at a number of the ledger,
// by valid nominations with a victim that had freed its part. A nomination whose victim
// still holds the part is skipped: that part is counted with the holders already.
func (c *machineCase) keptAt(seq int64, gpu int, from berth.JobID) (milli int64, proof []any) {
	for _, e := range c.m.Nominations {
		stood := e.FromSeq < seq && (e.UntilSeq == 0 || seq < e.UntilSeq)
		if !stood || e.Index != gpu || e.Beneficiary == from || c.heldAt(seq, e.Victim, e.VictimAttempt) {
			continue
		}
		milli += e.Milli
		proof = append(proof, e)
	}
	return milli, proof
}

// heldAt reports whether an attempt held capacity of the machine at that number. An
// attempt that the history leaves out had freed its capacity long before.
func (c *machineCase) heldAt(seq int64, job berth.JobID, attempt int) bool {
	for _, a := range c.m.Allocations {
		if a.Job == job && a.Attempt == attempt && a.TakenSeq < seq && (a.FreedSeq == 0 || a.FreedSeq > seq) {
			return true
		}
	}
	return false
}
