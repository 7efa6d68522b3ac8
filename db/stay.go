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
// previous machine if the gang has one there, and the other members get the rest. The
// places of equal members are alike, so an exchange among them changes no capacity; members of different
// groups exchange none.
func (p *present) stay(s berth.Start) berth.Start {
	former := p.former[s.Job]
	// A gang with another number of members, or without a previous attempt, stays as
	// planned.
	if len(former) != len(s.Ranks) {
		return s
	}
	groups := s.Groups
	if groups == nil {
		groups = []int{len(s.Ranks)}
	}
	ranks := make([]berth.Grant, 0, len(s.Ranks))
	for _, n := range groups {
		first := len(ranks)
		ranks = append(ranks, exchanged(s.Ranks[first:first+n], former[first:first+n])...)
	}
	s.Ranks = ranks
	return s
}

// exchanged returns the places of equal members in an order in which as many members as possible are on
// their former machines.
func exchanged(places []berth.Grant, former []berth.MachineID) []berth.Grant {
	left := slices.Clone(places)
	ranks := make([]berth.Grant, len(places))
	placed := make([]bool, len(places))
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
	return ranks
}
