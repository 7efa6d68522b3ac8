package chaos_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"go.temporal.io/api/enums/v1"

	"berth"
)

// autopsy describes the state at a failure: the live jobs and the last ended ones, with their
// rows and workflows, and the errors in the control plane's logs.
func (s *stack) autopsy() string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var b strings.Builder
	rows, err := s.database.Query(ctx, `
		SELECT j.id::text, format('%s %s in attempt %s, %s, %s; cancel %s', j.name, j.state, j.attempt, j.state_at::time(3), j.reason, j.cancel_requested_at::time(3))
		FROM jobs j
		ORDER BY j.finished_at DESC NULLS FIRST, j.id
		LIMIT 6`)
	if err != nil {
		return fmt.Sprintf("no autopsy: %v", err)
	}
	jobs, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct{ ID, Says string }])
	if err != nil {
		return fmt.Sprintf("no autopsy: %v", err)
	}
	fmt.Fprintf(&b, "at %s\n", time.Now().Format(time.TimeOnly+".000"))
	for _, j := range jobs {
		fmt.Fprintf(&b, "job %s %s\n", j.ID, j.Says)
		for _, list := range []string{
			`SELECT format('%s %s -> %s by %s: %s %s', at::time(3), kind, to_state, actor, reason, detail)
			FROM (
				SELECT *, row_number() OVER (PARTITION BY attempt, kind ORDER BY seq) AS nth,
					row_number() OVER (PARTITION BY attempt, kind ORDER BY seq DESC) AS from_last
				FROM job_events
				WHERE job = @job
			) e
			WHERE kind <> 'checkpoint' OR nth <= 2 OR from_last <= 2
			ORDER BY seq
			LIMIT 40`,
			`SELECT format('checkpoints of attempt %s: %s %s, steps %s to %s', attempt, count(*), state, min(step), max(step))
			FROM checkpoints
			WHERE job = @job
			GROUP BY attempt, state
			ORDER BY attempt, state`,
			`SELECT format('allocation of attempt %s on %s: %s, forgotten %s', attempt, machine_id, state, forgotten_at::time(3))
			FROM allocations
			WHERE job = @job
			ORDER BY attempt, rank`,
		} {
			rows, err := s.database.Query(ctx, list, pgx.NamedArgs{"job": j.ID})
			if err != nil {
				fmt.Fprintf(&b, "  %v\n", err)
				continue
			}
			lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				lines = append(lines, err.Error())
			}
			for _, l := range lines {
				fmt.Fprintf(&b, "  %s\n", head(l))
			}
		}
		fmt.Fprintf(&b, "  %s\n", s.workflow(ctx, berth.JobID(j.ID)))
	}
	plane := append(byName(s.plane), s.temporal)
	for _, p := range plane {
		for _, l := range complaints(p.log()) {
			fmt.Fprintf(&b, "%s: %s\n", p.name, head(l))
		}
	}
	return b.String()
}

// workflow describes the state of a job's workflow.
func (s *stack) workflow(ctx context.Context, id berth.JobID) string {
	x, err := s.workflows.DescribeWorkflowExecution(ctx, berth.JobWorkflowID(id), "")
	if err != nil {
		return fmt.Sprintf("workflow: %v", err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "workflow %s", x.GetWorkflowExecutionInfo().GetStatus())
	if t := x.GetPendingWorkflowTask(); t != nil {
		fmt.Fprintf(&b, ", task %s, try %d, scheduled %s, started %s", t.GetState(), t.GetAttempt(), clock(t.GetScheduledTime().AsTime()), clock(t.GetStartedTime().AsTime()))
	}
	for _, a := range x.GetPendingActivities() {
		fmt.Fprintf(&b, ", %s %s, try %d, scheduled %s, started %s: %s", a.GetActivityType().GetName(), a.GetState(), a.GetAttempt(),
			clock(a.GetScheduledTime().AsTime()), clock(a.GetLastStartedTime().AsTime()), a.GetLastFailure().GetMessage())
	}
	var last []string
	for it := s.workflows.GetWorkflowHistory(ctx, berth.JobWorkflowID(id), "", false, enums.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT); it.HasNext(); {
		e, err := it.Next()
		if err != nil {
			last = append(last, err.Error())
			break
		}
		last = append(last, clock(e.GetEventTime().AsTime())+" "+e.GetEventType().String())
	}
	return b.String() + "\n  ..." + strings.Join(last[max(0, len(last)-12):], ", ")
}

func clock(t time.Time) string { return t.Format(time.TimeOnly + ".000") }

// complaints are the last warnings and errors of a log.
func complaints(path string) []string {
	b, err := os.ReadFile(path)
	if err != nil {
		return []string{err.Error()}
	}
	lines := strings.Split(string(b), "\n")
	lines = slices.DeleteFunc(lines, func(l string) bool {
		return !strings.Contains(l, "level=WARN") && !strings.Contains(l, "level=ERROR") && !strings.Contains(l, "panic")
	})
	return lines[max(0, len(lines)-4):]
}

// head is the beginning of a line, for messages.
func head(l string) string { return l[:min(len(l), 400)] }
