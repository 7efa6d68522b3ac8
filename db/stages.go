package db

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/wire"
)

// Stages of members are for display alone. They lie in a table of their own, next to the rows
// that decide:
//
//	report                                       effect
//	-------------------------------------------  -----------------------------------------------
//	of a session that is over                    refused as stale, as every call of that session
//	of another machine's allocation              none
//	of an allocation past its preparation,       none: the report was overtaken by the report of
//	  or of an earlier epoch of the machine        the phase, which is authoritative
//	older than the stored one of this process    none
//	the same stage again                         the row is written; since stays
//	another stage, input or problem              the row is written, and an event, once per text
//	                                               and at most maxStageEvents in an attempt
//
// A report that arrives while the same allocation moves on may leave its row behind. Readers
// therefore show a stage only for a member whose phase is still before prepared.

// maxStages is the largest number of members in one report, and maxProblem the longest stored
// problem in bytes.
const (
	maxStages  = 1024
	maxProblem = 300
)

// maxStageEvents bounds the events about stages in the history of one attempt, so that neither
// a gang nor a fault that keeps changing its text grows the history without bound.
const maxStageEvents = 20

// preparing is true for an allocation a that a machine may still report stages of.
const preparing = `a.state = 'active' AND a.phase IN ('', 'claimed', 'pulling', 'restoring')`

// stagedRow is a member with a reported stage.
type stagedRow struct {
	alloc   berth.AllocationID
	job     berth.JobID
	attempt int
	rank    int
	was     *wire.Stage // nil: none is stored
	stage   wire.Stage
}

// ReportStages stores the stages of members that a machine prepares.
func (d *Agents) ReportStages(ctx context.Context, machine berth.MachineID, req wire.StageReport) error {
	stages, err := checkStages(req)
	if err != nil {
		return err
	}
	var changed []berth.JobID
	err = d.tx(ctx, func(tx pgx.Tx) error {
		changed = nil
		var s session
		err := tx.QueryRow(ctx, `
			SELECT state, epoch, agent_boot
			FROM machines
			WHERE id = @machine`, namedArgs{"machine": machine}).Scan(&s.state, &s.epoch, &s.agentBoot)
		if isNoRows(err) {
			return berth.Errorf(berth.CodeNotFound, "no such machine %s", machine)
		}
		if err != nil {
			return err
		}
		if err := s.check(machine, req.AgentBoot, req.Epoch); err != nil {
			return err
		}
		rows, err := stagedRows(ctx, tx, machine, req, stages)
		if err != nil {
			return err
		}
		// Events first: they lock jobs, and the stages then lock allocations.
		for _, r := range rows {
			if r.was != nil && r.was.Alike(r.stage) {
				continue
			}
			added, err := addStageEvent(ctx, tx, machine, r)
			if err != nil {
				return err
			}
			if added {
				changed = append(changed, r.job)
			}
		}
		return storeStages(ctx, tx, req, rows)
	})
	if err != nil {
		return mapError(err, "stages of machine "+string(machine))
	}
	for _, job := range changed {
		d.hub.Publish(TopicJob, string(job))
	}
	return nil
}

// Prepares returns an error unless a machine prepares the member that it asks a question about.
func (d *Agents) Prepares(ctx context.Context, machine berth.MachineID, q wire.HostQuestion) error {
	var found bool
	err := d.pool.QueryRow(ctx, `
		SELECT EXISTS (
			SELECT 1
			FROM allocations a
			JOIN machines m ON m.id = a.machine_id AND m.epoch = a.machine_epoch
			WHERE a.id = @alloc AND a.machine_id = @machine AND m.epoch = @epoch AND m.agent_boot = @boot
			  AND `+preparing+`)`,
		namedArgs{"alloc": q.Alloc, "machine": machine, "epoch": q.Epoch, "boot": q.AgentBoot}).Scan(&found)
	if err == nil && !found {
		err = berth.Errorf(berth.CodeConflict, "machine %s does not prepare allocation %d", machine, q.Alloc)
	}
	return mapError(err, fmt.Sprintf("allocation %d", q.Alloc))
}

// checkStages returns the reported stages by allocation, with texts that the database takes.
func checkStages(req wire.StageReport) (map[berth.AllocationID]wire.Stage, error) {
	if len(req.Stages) > maxStages {
		return nil, berth.Errorf(berth.CodeInvalid, "stages: %d members; allowed: at most %d", len(req.Stages),
			maxStages)
	}
	stages := map[berth.AllocationID]wire.Stage{}
	for _, m := range req.Stages {
		s := m.Stage
		if !s.Name.Reported() {
			return nil, berth.Errorf(berth.CodeInvalid, "allocation %d: machines do not report stage %q", m.Alloc,
				s.Name)
		}
		if s.Percent != nil && (*s.Percent < 0 || *s.Percent > 100) {
			return nil, berth.Errorf(berth.CodeInvalid, "allocation %d: percent is %d; allowed: 0 to 100", m.Alloc,
				*s.Percent)
		}
		s.Problem = plainText(s.Problem)
		if len(s.Problem) > maxProblem {
			s.Problem = strings.ToValidUTF8(s.Problem[:maxProblem], "") + "..."
		}
		stages[m.Alloc] = s
	}
	return stages, nil
}

// stagedRows returns the reported members whose stage may be stored, ordered by job.
func stagedRows(ctx context.Context, tx pgx.Tx, machine berth.MachineID, req wire.StageReport,
	stages map[berth.AllocationID]wire.Stage) (list []stagedRow, err error) {
	allocs := make([]int64, 0, len(stages))
	for id := range stages {
		allocs = append(allocs, int64(id))
	}
	rows, err := tx.Query(ctx, `
		SELECT a.id, a.job::text, a.attempt, a.rank, s.stage
		FROM allocations a
		LEFT JOIN member_stages s ON s.alloc_id = a.id
		WHERE a.id = ANY(@allocs) AND a.machine_id = @machine AND a.machine_epoch = @epoch AND `+preparing+`
		  AND (s.alloc_id IS NULL OR s.boot <> @boot OR s.seq < @seq)
		ORDER BY a.job, a.id`,
		namedArgs{
			"allocs": allocs, "machine": machine, "epoch": req.Epoch, "boot": req.AgentBoot, "seq": req.Seq,
		})
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (r stagedRow, err error) {
		err = row.Scan(&r.alloc, &r.job, &r.attempt, &r.rank, &r.was)
		r.stage = stages[r.alloc]
		return r, err
	})
}

// storeStages writes the rows. A concurrent report of the same agent with a higher number wins.
func storeStages(ctx context.Context, tx pgx.Tx, req wire.StageReport, rows []stagedRow) error {
	if len(rows) == 0 {
		return nil
	}
	slices.SortFunc(rows, func(a, b stagedRow) int { return int(a.alloc - b.alloc) })
	var id []int64
	var stage []string
	for _, r := range rows {
		b, err := json.Marshal(r.stage)
		if err != nil {
			return fmt.Errorf("stage of allocation %d: %w", r.alloc, err)
		}
		id, stage = append(id, int64(r.alloc)), append(stage, string(b))
	}
	_, err := tx.Exec(ctx, `
		INSERT INTO member_stages (alloc_id, boot, seq, stage)
		SELECT x.id, @boot, @seq, x.stage::jsonb
		FROM unnest(@ids::bigint[], @stages::text[]) AS x (id, stage)
		JOIN allocations a ON a.id = x.id AND `+preparing+`
		ON CONFLICT (alloc_id) DO UPDATE
		SET boot = excluded.boot, seq = excluded.seq, stage = excluded.stage,
		    since = CASE WHEN (member_stages.stage -> 'name', member_stages.stage -> 'input')
		        IS DISTINCT FROM (excluded.stage -> 'name', excluded.stage -> 'input')
		      THEN excluded.since ELSE member_stages.since END
		WHERE member_stages.boot <> excluded.boot OR member_stages.seq < excluded.seq`,
		namedArgs{"ids": id, "stages": stage, "boot": req.AgentBoot, "seq": req.Seq})
	if err != nil {
		return fmt.Errorf("store stages: %w", err)
	}
	return nil
}

// addStageEvent adds an event about a new stage, once per text and up to maxStageEvents in an
// attempt. The percentage and the number of tries are left out, since they change all the time.
func addStageEvent(ctx context.Context, tx pgx.Tx, machine berth.MachineID, r stagedRow) (added bool, err error) {
	about := r.stage
	about.Percent, about.Try = nil, 0
	detail := fmt.Sprintf("member %d on %s: %s", r.rank, machine, wire.Stage{Name: about.Name, Input: about.Input})
	if about.Problem != "" {
		detail += " (" + about.Problem + ")"
	}
	args := namedArgs{"job": r.job, "attempt": r.attempt, "detail": detail}
	// A job that has moved on meanwhile gets no event: the first lock decides.
	locked, err := tx.Exec(ctx, `
		SELECT 1
		FROM jobs
		WHERE id = @job AND attempt = @attempt AND state = 'scheduled'
		FOR NO KEY UPDATE`, args)
	if err != nil || locked.RowsAffected() == 0 {
		return false, err
	}
	var same, before int
	err = tx.QueryRow(ctx, `
		SELECT count(*) FILTER (WHERE detail = @detail), count(*)
		FROM job_events
		WHERE job = @job AND kind = 'stage' AND attempt = @attempt`, args).Scan(&same, &before)
	if err != nil || same > 0 || before >= maxStageEvents {
		return false, err
	}
	return true, addEvent(ctx, tx, r.job, wire.Event{
		Kind: wire.EventStage, Attempt: r.attempt, Actor: AgentActor(machine), Detail: detail,
		Facts: &wire.EventFacts{Rank: &r.rank, Machine: machine, Stage: &about},
	})
}

// stageDocument is a wire.JobStage as JSON of a row j of jobs, null unless the job is scheduled.
// Members are ordered by their progress; ended ones are left out. A member without a reported
// stage is described by its phase, so that agents of earlier versions have stages, too.
const stageDocument = `CASE WHEN j.state = 'scheduled' THEN (
				SELECT CASE WHEN x.step = 1 AND s.alloc_id IS NOT NULL
						THEN s.stage || jsonb_build_object('since', s.since)
					ELSE jsonb_build_object('name', CASE x.step WHEN 0 THEN 'claiming' WHEN 2 THEN 'starting'
						ELSE CASE WHEN x.phase IN ('pulling', 'restoring') THEN x.phase ELSE 'preparing' END END) END
					|| jsonb_build_object('member', x.rank, 'machine', x.machine_id, 'members', x.members,
						'ready', x.ready)
				FROM (
					SELECT y.*, count(*) OVER () AS members,
						count(*) FILTER (WHERE y.step = 2) OVER () AS ready
					FROM (
						SELECT a.id, a.rank, a.machine_id, a.phase, CASE WHEN a.state = 'reserved' THEN 0
							WHEN a.phase IN ('', 'claimed', 'pulling', 'restoring') THEN 1 ELSE 2 END AS step
						FROM allocations a
						WHERE a.job = j.id AND a.attempt = j.attempt AND a.state IN ('reserved', 'active')) y) x
				LEFT JOIN member_stages s ON s.alloc_id = x.id
				ORDER BY x.step, x.rank
				LIMIT 1) END`
