package convert

import (
	"slices"

	"berth"
	"berth/db"
	"berth/placement"
)

// Missing returns the classes of waiting jobs that the snapshot does not define yet. The caller
// reads their requests and defines them before Apply.
func Missing(s *placement.Snapshot, jobs []db.QueueJob) []string {
	var missing []string
	for _, row := range jobs {
		if !Waits(row) {
			continue
		}
		for _, class := range append([]string{row.Class}, row.Alternatives...) {
			if !s.HasClass(class) && !slices.Contains(missing, class) {
				missing = append(missing, class)
			}
		}
	}
	return missing
}

// Apply applies changed rows to a snapshot that defines their classes. A job without a defined
// class is left out. blocked is as for Machine; starting reports whether a job's start is decided
// but may be missing from its row.
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
			j := Job(row)
			if slices.ContainsFunc(row.Alternatives, func(class string) bool { return !s.HasClass(class) }) {
				j.Alternatives = nil // the one in force remains
			}
			s.UpsertJob(j)
		} else {
			s.RemoveJob(row.ID)
		}
		// Both lists are updated for each row: a job moves between them, and a row may arrive
		// after several moves.
		switch {
		case row.State.HoldsCapacity():
			s.UpsertRunning(Running(row, held[row.ID]))
		// A job whose start is under way has no row that holds capacity yet, and must stay in the
		// list.
		case !starting(row.ID):
			s.RemoveRunning(row.ID)
		}
	}
	marks := make([]placement.Nomination, len(c.Nominations))
	for i, e := range c.Nominations {
		marks[i] = Nomination(e)
	}
	s.SetNominations(marks)
}

// Tenants replaces the snapshot's tenants by the list, adds the running jobs' use to their
// budgets, and returns the list by id. before is the previous result, by which vanished tenants
// are found.
func Tenants(s *placement.Snapshot, list []db.TenantRow,
	before map[berth.TenantID]db.TenantRow) map[berth.TenantID]db.TenantRow {
	known := make(map[berth.TenantID]db.TenantRow, len(list))
	now := make(map[berth.TenantID]placement.Tenant, len(list))
	budgets := false
	for _, row := range list {
		known[row.ID], now[row.ID] = row, Tenant(row)
		budgets = budgets || row.Quota.Budget != nil
	}
	// Stored usage contains only ended work. Budgets also count running work, up to now.
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

// Windows replaces the maintenance windows in the snapshot, and returns them.
func Windows(s *placement.Snapshot, windows []db.Window) []placement.Window {
	list := make([]placement.Window, len(windows))
	for i, w := range windows {
		list[i] = placement.Window{ID: w.ID, Machine: w.Machine, Closes: w.ClosesAt, Lead: w.LeadAt}
		if w.EndsAt != nil {
			list[i].Ends = *w.EndsAt
		}
	}
	placement.SetWindows(s, list)
	return list
}

// Pools replaces the rules of pools in the snapshot, and returns them. Call it after Tenants: the rules name
// subtrees of tenants.
func Pools(s *placement.Snapshot, rules []db.PoolRule) []placement.Pool {
	list := make([]placement.Pool, len(rules))
	for i, r := range rules {
		list[i] = placement.Pool{Name: r.Pool, Tenants: r.Tenants, Open: r.Tenants == nil, OneTenant: r.OneTenant,
			Taints: r.Taints}
	}
	placement.SetPools(s, list)
	return list
}
