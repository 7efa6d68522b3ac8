package db

import (
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
)

// collectHolders appends the rows of readHolders to into. The rows must be sorted so that the rows of a
// member, and the members of an attempt, are consecutive. A member with several devices has a row for
// each. StopBy of a holder is known only if all its members have an order to stop.
func collectHolders(rows pgx.Rows, into *[]Holder) error {
	defer rows.Close()
	var alloc berth.AllocationID
	for rows.Next() {
		var h Holder
		var id berth.AllocationID
		var g berth.Grant
		var d berth.DeviceShare
		var stopBy *time.Time
		if err := rows.Scan(&h.Job, &h.Attempt, &h.PlacedAt, &h.StartedAt, &stopBy, &id, &g.Machine, &g.Epoch,
			&g.Capacity.CPUMilli, &g.Capacity.MemoryMiB, &g.Capacity.DiskMiB, &g.Capacity.GPUMilli, &d.Index,
			&d.Milli); err != nil {
			return fmt.Errorf("read allocation: %w", err)
		}
		list := *into
		if n := len(list); n == 0 || list[n-1].Job != h.Job || list[n-1].Attempt != h.Attempt {
			h.StopBy = stopBy
			list = append(list, h)
		}
		last := &list[len(list)-1]
		// The first row of a member: further rows have only further devices.
		if id != alloc {
			alloc = id
			last.Ranks = append(last.Ranks, g)
			last.StopBy = latest(last.StopBy, stopBy)
		}
		if d.Milli > 0 {
			rank := &last.Ranks[len(last.Ranks)-1]
			rank.GPUs = append(rank.GPUs, d)
		}
		*into = list
	}
	return rows.Err()
}

// latest returns the later of two stop deadlines; nil if a member has no order to stop. Without such an
// order, the end of the whole attempt is not known.
func latest(a, b *time.Time) *time.Time {
	switch {
	case a == nil || b == nil:
		return nil
	case a.After(*b):
		return a
	}
	return b
}

// collectNominations puts together consecutive rows of one beneficiary, machine, victim and attempt of the
// victim. The attempt decides whether the capacity is free. A nomination of several devices has a row for each, and its
// GPU capacity is the sum of them. A device of index -1 stands for a nomination without devices.
func collectNominations(rows pgx.Rows, into *[]Nomination) error {
	defer rows.Close()
	for rows.Next() {
		var e Nomination
		var d berth.DeviceShare
		var until *time.Time
		if err := rows.Scan(&e.Beneficiary, &e.Machine, &d.Index, &d.Milli, &e.Capacity.CPUMilli,
			&e.Capacity.MemoryMiB, &e.Capacity.DiskMiB,
			&e.Victim, &e.Attempt, &e.Asleep, &until); err != nil {
			return fmt.Errorf("read nomination: %w", err)
		}
		if until != nil {
			e.ExpiresAt = *until
		}
		list := *into
		if n := len(list); n == 0 || list[n-1].Beneficiary != e.Beneficiary || list[n-1].Machine != e.Machine ||
			list[n-1].Victim != e.Victim || list[n-1].Attempt != e.Attempt {
			list = append(list, e)
		}
		last := &list[len(list)-1]
		if d.Index >= 0 {
			last.GPUs = append(last.GPUs, d)
			last.Capacity.GPUMilli += d.Milli
		}
		*into = list
	}
	return rows.Err()
}
