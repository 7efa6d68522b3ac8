package autoscale

import (
	"cmp"
	"context"
	"slices"
	"time"

	"berth"
	"berth/db"
	"berth/internal/control/cloud"
	"berth/placement"
	"berth/spec"
)

// MaxWaiting is the number of waiting jobs that a pass reads.
const MaxWaiting = 2000

// CopyMirror returns a copy of the leader's mirror, for a pass in which these tenants have a burst policy.
type CopyMirror func(ctx context.Context, bursts map[berth.TenantID]bool) (Mirror, error)

// Mirror is a copy of the leader's mirror of the rows. Its owner does not change it.
type Mirror struct {
	At       time.Time // of the database
	Machines []placement.Machine
	Running  []placement.Running // with the starts whose commit is under way
	Waiting  []placement.Job     // that may start, at most MaxWaiting
	Classes  map[string]spec.Request
	Tenants  []placement.Tenant
	Pools    []placement.Pool
	Windows  []placement.Window
}

// Urgent returns at most MaxWaiting jobs by priority and submission, in this order. Half of the number is shared
// equally by the tenants that have a burst policy, so that more urgent jobs of other tenants do not hide theirs.
// It changes the list.
func Urgent(list []placement.Job, bursts map[berth.TenantID]bool) []placement.Job {
	slices.SortFunc(list, func(a, b placement.Job) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), a.SubmittedAt.Compare(b.SubmittedAt),
			cmp.Compare(a.ID, b.ID))
	})
	if len(list) <= MaxWaiting {
		return list
	}
	of := map[berth.TenantID]int{} // jobs, then the jobs that are kept
	for _, j := range list {
		if bursts[j.Tenant] {
			of[j.Tenant] = 0
		}
	}
	share := MaxWaiting / 2 / max(1, len(of))
	kept := make([]bool, len(list))
	n := 0
	for i, j := range list {
		if bursts[j.Tenant] && of[j.Tenant] < share {
			of[j.Tenant]++
			n++
			kept[i] = true
		}
	}
	for i := range list {
		if n < MaxWaiting && !kept[i] {
			n++
			kept[i] = true
		}
	}
	first := list[:0]
	for i, j := range list {
		if kept[i] {
			first = append(first, j)
		}
	}
	return first
}

// Facts are all facts that a decision depends on.
type Facts struct {
	Mirror
	Now      time.Time // of the database, when Fleet was read
	Turn     int       // number of the pass; each pass weighs the jobs of another tenant first
	Paused   bool      // admission is paused: nothing is launched
	Policies map[berth.TenantID]spec.Burst
	Spent    map[berth.TenantID]db.Spent
	Offers   []db.OfferRow
	Breakers []db.ProbedBreaker
	Won      map[string]time.Time // when each offering last gave an instance, by provider and offering
	Fleet    []db.FleetMachine
	Adopted  []db.Adopted
	Growth   []db.Grown
	Notes    map[berth.JobID]db.BurstNote  // of the last pass
	Saves    map[berth.JobID]bool          // jobs that write checkpoints
	Leaving  map[berth.MachineID]time.Time // deadlines of machines that drain until one within MoveAhead
	Joined   map[string]Joined             // the last machine of each type that has joined, see TypeOf
	Accounts cloud.Accounts

	Planner  placement.Planner
	RunTimes *placement.RunTimes
}

// Joined is the row of a machine of a cloud after its join. Its capacity is smaller than the offer's.
type Joined struct {
	Row placement.Machine
	At  time.Time // when the row was last seen
}

// joinedFor is the time for which the row of a machine that is gone stands for new machines of its type.
const joinedFor = 24 * time.Hour

// unjudgedFor is the same time for a machine that has got no verdict about the security floors: its agent or the leader
// may have failed, which says little about the next machine.
const unjudgedFor = time.Hour

// TypeOf returns the key of a provider's machine type in Facts.Joined.
func TypeOf(provider string, o cloud.Offering) string {
	return provider + "/" + o.Region + "/" + o.Type
}

// Learn returns the rows by which new machines are planned: the rows of the machines of the fleet that exist, and
// earlier rows that were last seen within a day. A machine with less than its offer, also by a device that has failed,
// says nothing about the next one of its type. A new machine is expected to meet the security floors as the last one of
// its type did, so that no machines are launched for jobs of untrusted tenants that would not meet them.
func Learn(f Facts) map[string]Joined {
	known := map[string]Joined{}
	for key, j := range f.Joined {
		if f.Now.Sub(j.At) < joinedFor && (!j.Row.Unjudged || f.Now.Sub(j.At) < unjudgedFor) {
			known[key] = j
		}
	}
	rows := make(map[berth.MachineID]placement.Machine, len(f.Machines))
	for _, m := range f.Machines {
		rows[m.ID] = m
	}
	byJoin := func(a, b db.FleetMachine) int { return a.JoinedAt.Compare(b.JoinedAt) }
	for _, l := range slices.SortedStableFunc(slices.Values(f.Fleet), byJoin) {
		row, ok := rows[l.Machine]
		if ok && !l.JoinedAt.IsZero() && row.State != berth.MachineJoining && !short(l.Shape, row) {
			key := TypeOf(l.Provider, l.Offering)
			if row.Unjudged && f.Now.Sub(l.JoinedAt) < judgedWithin {
				// Until its own verdict; at first none.
				row.Unmet, row.Unjudged = known[key].Row.Unmet, known[key].Row.Unjudged
			}
			known[key] = Joined{row, f.Now}
		}
	}
	return known
}

// short reports whether a machine has less than its offer.
func short(s cloud.Shape, row placement.Machine) bool {
	var models []string
	for _, d := range row.GPUs {
		if d.Healthy {
			models = append(models, d.Model)
		}
	}
	return s.Lacks(row.Total.MemoryMiB, models) != ""
}

// Request is a number of equal launches that are requested together.
type Request struct {
	cloud.Request
	Machines int
	Jobs     []berth.JobID // for which the machines are launched
}

// Outcome is the decision of a pass.
type Outcome struct {
	Requests []Request
	Drain    []berth.MachineID // empty machines
	Undrain  []berth.MachineID // drained for idleness, and needed again
	Stop     []berth.MachineID // drained for idleness long enough
	Notes    []db.BurstNote    // of the jobs that were examined
	Missing  []Missing         // machines below the least numbers of policies that are not launched now
	// OutOfService is the number of machines that the policies keep and that are not in service. It includes Missing,
	// machines that boot, and machines that the pass launches.
	OutOfService int
	// Due is the earliest time after Facts.Now at which an empty machine is due for a drain or its end; zero: none is.
	Due time.Time
}

// machines copies the machines of the mirror, since a plan may change a row's devices.
func (m *Mirror) machines() []placement.Machine {
	list := slices.Clone(m.Machines)
	for i := range list {
		list[i].GPUs = slices.Clone(list[i].GPUs)
	}
	return list
}

// snapshot returns the mirror as a snapshot for plans by a policy.
func (m *Mirror) snapshot(p placement.Policy) *placement.Snapshot {
	s := placement.SnapshotFor(p)
	for name, r := range m.Classes {
		s.DefineClass(name, r)
	}
	for _, t := range m.Tenants {
		s.UpsertTenant(t)
	}
	for _, x := range m.machines() {
		s.UpsertMachine(x)
	}
	for _, r := range m.Running {
		s.UpsertRunning(r)
	}
	for _, j := range m.Waiting {
		s.UpsertJob(j)
	}
	placement.SetPools(s, m.Pools)
	placement.SetWindows(s, m.Windows)
	return s
}
