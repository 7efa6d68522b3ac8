package db

import (
	"slices"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/lifecycle"
)

// queueParentLocks locks the parents of jobs, before the jobs: from then on none
// of them is canceled or held until the commit.
func queueParentLocks(batch *pgx.Batch, jobs []berth.JobID) {
	batch.Queue(`
		SELECT 1
		FROM jobs
		WHERE id IN (SELECT parent FROM jobs WHERE id = ANY($1::uuid[]) AND parent IS NOT NULL)
		ORDER BY id
		FOR NO KEY UPDATE`, jobs)
}

// queueParents reads the locked parents, and how many of their elements hold
// capacity. That only grows by a commit of a leader, whose term is checked
// already: so no more of them ever hold it than may.
func (p *present) queueParents(batch *pgx.Batch, jobs []berth.JobID) {
	batch.Queue(`
		SELECT p.id, p.state, p.held, p.parent IS NOT NULL, p.parallel, CASE WHEN p.parallel > 0 THEN (
			SELECT count(*)
			FROM jobs c
			WHERE c.parent = p.id AND c.state IN ('scheduled', 'running', 'preempting', 'canceling')) ELSE 0 END
		FROM jobs p
		WHERE p.id IN (SELECT parent FROM jobs WHERE id = ANY($1::uuid[]) AND parent IS NOT NULL)`,
		jobs).Query(func(rows pgx.Rows) error {
		var id berth.JobID
		var x lifecycle.Starting
		_, err := pgx.ForEachRow(rows, []any{&id, &x.State, &x.Held, &x.Step, &x.Parallel, &x.Holding}, func() error {
			parent := x
			p.parents[id] = &parent
			return nil
		})
		return err
	})
}

// begun are the parents of which the first elements start.
func (p *present) begun() []berth.JobID {
	var list []berth.JobID
	for id, x := range p.parents {
		if x.Begins() {
			list = append(list, id)
		}
	}
	return list
}

// begunSteps lists the steps among them, whose pipelines need a hint.
func (p *present) begunSteps() []berth.JobID {
	return slices.DeleteFunc(p.begun(), func(id berth.JobID) bool { return !p.parents[id].Step })
}

func queueParentStarts(batch *pgx.Batch, begun []berth.JobID) {
	if len(begun) > 0 {
		batch.Queue(`
			UPDATE jobs
			SET state = 'running', version = version + 1, actor = 'leader'
			WHERE id = ANY($1::uuid[])`, begun)
	}
}
