package convert

import (
	"slices"

	"berth"
	"berth/db"
	"berth/placement"
)

// Missing are the classes of waiting jobs that the snapshot does not have yet.
func Missing(s *placement.Snapshot, jobs []db.QueueJob) []string {
	var missing []string
	for _, row := range jobs {
		if Waits(row) && !s.HasClass(row.Class) && !slices.Contains(missing, row.Class) {
			missing = append(missing, row.Class)
		}
	}
	return missing
}

// Apply brings changes into a snapshot that has their classes; a job whose class
// has no request is left out. blocked is as for Machine; starting reports
// whether a job's start was decided and its row may not say so yet.
func Apply(s *placement.Snapshot, c db.Changes, blocked func(berth.MachineID) string, starting func(berth.JobID) bool) {
	for _, row := range c.Machines {
		if row.State == berth.MachineRetired {
			s.RemoveMachine(row.ID)
		} else {
			s.UpsertMachine(Machine(row, blocked(row.ID)))
		}
	}
	for _, row := range c.Caches {
		s.SetCache(row.Machine, row.Holds)
	}
	held := map[berth.JobID][]db.Holder{}
	for _, h := range c.Holders {
		held[h.Job] = append(held[h.Job], h)
	}
	for _, row := range c.Jobs {
		if Waits(row) && s.HasClass(row.Class) {
			s.UpsertJob(Job(row))
		} else {
			s.RemoveJob(row.ID)
		}
		switch {
		case row.State.HoldsCapacity():
			s.UpsertRunning(Running(row, held[row.ID]))
		case !starting(row.ID):
			s.RemoveRunning(row.ID)
		}
	}
	marks := make([]placement.Nomination, len(c.Earmarks))
	for i, e := range c.Earmarks {
		marks[i] = Nomination(e)
	}
	s.SetNominations(marks)
}

// Tenants replaces the snapshot's tenants by the list, adds the running jobs' use
// to their budgets, and returns the list by id. before is the previous result.
func Tenants(s *placement.Snapshot, list []db.TenantRow,
	before map[berth.TenantID]db.TenantRow) map[berth.TenantID]db.TenantRow {
	known := make(map[berth.TenantID]db.TenantRow, len(list))
	now := make(map[berth.TenantID]placement.Tenant, len(list))
	budgets := false
	for _, row := range list {
		known[row.ID], now[row.ID] = row, Tenant(row)
		budgets = budgets || row.Quota.Budget != nil
	}
	if budgets {
		s.EachRunning(func(r placement.Running) {
			if row := known[r.Tenant]; row.Quota.Budget != nil && row.Quota.Budget.Since != nil {
				now[r.Tenant] = Spend(now[r.Tenant], r, *row.Quota.Budget.Since)
			}
		})
	}
	for id := range before {
		if _, ok := known[id]; !ok {
			s.RemoveTenant(id)
		}
	}
	for _, t := range now {
		s.UpsertTenant(t)
	}
	return known
}
