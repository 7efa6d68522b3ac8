package db

import (
	"slices"

	"github.com/jackc/pgx/v5"

	"berth"
)

// queueFormer queues a query for the machines of gangs' members in the previous attempt.
func (p *present) queueFormer(batch *pgx.Batch, starts []berth.Start) {
	var jobs []berth.JobID
	var attempts []int
	for _, s := range starts {
		if len(s.Ranks) > 1 && s.Attempt > 1 {
			jobs, attempts = append(jobs, s.Job), append(attempts, s.Attempt-1)
		}
	}
	if len(jobs) == 0 {
		return
	}
	batch.Queue(`
		SELECT a.job::text, a.rank, a.machine_id
		FROM unnest($1::uuid[], $2::int[]) AS s(job, attempt)
		JOIN allocations a ON a.job = s.job AND a.attempt = s.attempt
		ORDER BY a.job, a.rank`, jobs, attempts).Query(func(rows pgx.Rows) error {
		var id berth.JobID
		var rank int
		var machine berth.MachineID
		_, err := pgx.ForEachRow(rows, []any{&id, &rank, &machine}, func() error {
			p.former[id] = append(p.former[id], machine)
			return nil
		})
		return err
	})
}

// stay assigns the places of a gang to its members: each member gets a place on its
// previous machine if the gang has one there, and the other members get the rest. All
// places of a gang are alike, so the exchange changes no capacity.
func (p *present) stay(s berth.Start) berth.Start {
	former := p.former[s.Job]
	// A gang with another number of members, or without a previous attempt, stays as
	// planned.
	if len(former) != len(s.Ranks) {
		return s
	}
	left := slices.Clone(s.Ranks)
	ranks := make([]berth.Grant, len(s.Ranks))
	placed := make([]bool, len(s.Ranks))
	// First pass: members whose previous machine is still among the places.
	for i, m := range former {
		k := slices.IndexFunc(left, func(g berth.Grant) bool { return g.Machine == m })
		if k >= 0 {
			ranks[i], placed[i] = left[k], true
			left = slices.Delete(left, k, k+1)
		}
	}
	for i := range ranks {
		if !placed[i] {
			ranks[i], left = left[0], left[1:]
		}
	}
	s.Ranks = ranks
	return s
}
