package scaler

import (
	"slices"

	"berth"
)

// NoteCode names the reason why a job gets no machine, or why it needs none.
type NoteCode string

// The reasons for notes.
const (
	NoteCovered  NoteCode = "covered"   // a machine that boots has room for it
	NoteLaunched NoteCode = "launched"  // machines are launched for it
	NoteForbid   NoteCode = "forbidden" // no offer is allowed by the pool's policy
	NoteSite     NoteCode = "site"      // the job may run on premises alone
	NoteResident NoteCode = "residency" // no allowed offer is in a region in which the job's inputs may be read
	NoteSpot     NoteCode = "spot"      // all other offers are of a market that is not open to the job
	NoteFits     NoteCode = "no_fit"    // no allowed offer has machines on which it fits
	NotePrice    NoteCode = "price"     // all allowed offers that fit cost more than the highest price
	NoteJobPrice NoteCode = "job_price" // all others cost more than the job's own highest price
	NoteClosed   NoteCode = "closed"    // the offers have failed and are not yet tried again
	NoteMax      NoteCode = "max"       // the pool would have more machines than allowed
	NoteGrowth   NoteCode = "growth"    // too many machines were launched lately
	NoteBudget   NoteCode = "budget"    // the money of the period is used or reserved
)

// Refusing are the reasons for which no offer may run a job, by how close each comes to a launch.
var Refusing = []NoteCode{NoteForbid, NoteSite, NoteResident, NoteSpot, NoteFits, NotePrice, NoteJobPrice, NoteClosed}

// Later returns the reason that came closest to a launch.
func Later(a, b NoteCode) NoteCode {
	if slices.Index(Refusing, b) > slices.Index(Refusing, a) {
		return b
	}
	return a
}

// Note explains the decision on one job.
type Note struct {
	Job      berth.JobID
	Code     NoteCode
	Machines []berth.MachineID // existing machines that have room for it; only with NoteCovered
}
