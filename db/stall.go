package db

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/failure"
	"berth/internal/lib/failpoint"
	"berth/wire"
)

// A gang with spec.stall hangs if no member shows a sign of life. Each agent reports for its own
// member whether it is quiet; only the leader sees all members, and judges:
//
//	member                                             effect on the verdict
//	-------------------------------------------------  ------------------------------------------
//	quiet for stall.after, by its agent's last report   the gang may hang
//	has shown a sign of life since, or the agent        none: the gang lives
//	  process that said so has been replaced
//	has said that it is quiet, but not again for        none: a sign of life since may have met
//	  quietExpires                                        servers that do not know the call
//	quiet for less than settleQuiet                     none yet: a report of a sign of another
//	                                                      member may be under way
//	its machine is silent, or its end is unknown        none: a sign of life cannot reach the rows
//	is ordered to stop                                  none: the attempt ends anyway
//	has ended with exit code 0                          ignored, as a member without signs
//	has ended badly                                     none: the attempt ends anyway
//	any, while or soon after no replica of the API      none: a sign of life could not reach the rows
//	  could receive calls of machines
//
// A single member is judged by its own agent, which needs no server for that.

// settleQuiet is how long all members must be quiet before the verdict. It covers the delay of a
// report from an agent.
const settleQuiet = "2 seconds"

// quietExpires is how long the word of an agent that a member is quiet counts. An agent repeats it
// every 5 s.
const quietExpires = "30 seconds"

// lively is true if a member of the job and attempt of allocation a excludes a verdict.
const lively = `
	EXISTS (
		SELECT 1
		FROM allocations o
		LEFT JOIN machines m ON m.id = o.machine_id
		WHERE o.job = a.job AND o.attempt = a.attempt AND CASE o.state
			WHEN 'active' THEN o.quiet_at IS NULL OR o.quiet_at > clock_timestamp() - interval '` + settleQuiet + `'
				OR o.quiet_said_at IS NULL OR o.quiet_said_at < clock_timestamp() - interval '` + quietExpires + `'
				OR o.quiet_boot IS DISTINCT FROM m.agent_boot OR m.state IN ('suspect', 'lost', 'retired')
				OR o.orders ?| '{stop,kill,checkpoint,stalled}'
			WHEN 'exited' THEN o.exit ->> 'cause' IS DISTINCT FROM 'exited' OR o.exit ->> 'code' IS DISTINCT FROM '0'
			ELSE true END)`

// JudgeHangs orders the members of gangs in which no member shows a sign of life to collect
// evidence and to stop, for at most limit jobs. It returns the number of jobs with a new order.
func (d *Attempts) JudgeHangs(ctx context.Context, term Term, limit int) (int, error) {
	args := Silence{}.args()
	args["limit"] = limit
	refs, err := d.list(ctx, `
		SELECT DISTINCT a.job, a.attempt
		FROM allocations a
		JOIN jobs j ON j.id = a.job AND j.attempt = a.attempt
		WHERE a.quiet_at IS NOT NULL AND a.state = 'active' AND j.state = 'running' AND NOT `+lively+`
		  AND NOT (`+unproven+`)
		ORDER BY 1
		LIMIT @limit`, args)
	if err != nil {
		return 0, mapError(err, "hung gangs")
	}
	const detail = "collect evidence and stop (no member shows a sign of life)"
	return d.leaderOrders(ctx, term, refs, detail, func(tx pgx.Tx, job lockedJob) ([]orderedRank, error) {
		if job.State != berth.Running {
			return nil, nil
		}
		ordered, err := updateRanks(ctx, tx, `
			UPDATE allocations a
			SET orders = a.orders || @orders
			WHERE a.job = @job AND a.attempt = @attempt AND a.state = 'active' AND NOT `+lively+`
			RETURNING a.rank, a.machine_id`,
			namedArgs{"job": job.ID, "attempt": job.Attempt, "orders": berth.Orders{Stalled: true}})
		if err != nil || len(ordered) == 0 {
			return nil, err
		}
		return ordered, failpoint.Hit("leader.hang.before")
	})
}

// addOddMember adds the event that names the member of a hung gang which holds up the others, or
// says that none can be named.
func addOddMember(ctx context.Context, tx pgx.Tx, job lockedJob, h *failure.Hang) error {
	if h == nil || h.Odd == nil {
		return nil
	}
	e := wire.Event{
		Kind: wire.EventOddMember, Attempt: h.Attempt, Actor: "workflow", Detail: h.Odd.Text(),
		Facts: &wire.EventFacts{Odd: h.Odd, Rank: h.Odd.Rank},
	}
	for _, m := range job.Members {
		if h.Odd.Rank != nil && m.Rank == *h.Odd.Rank {
			e.Facts.Machine = m.Machine
			e.Detail = fmt.Sprintf("on %s, %s", m.Machine, e.Detail)
		}
	}
	return addEvent(ctx, tx, job.ID, e)
}
