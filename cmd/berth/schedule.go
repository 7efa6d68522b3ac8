package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth/api/client"
	"berth/spec"
	"berth/wire"
)

// newSchedule builds "berth schedule". A schedule belongs to the caller's tenant and has a
// unique name there, so the commands take names, not ids.
func newSchedule(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "schedule",
		Short: "Manage schedules, which submit jobs and pipelines at set times",
		Long: "A schedule submits the job or the pipeline of a file at the times of a cron line, at an interval, " +
			"or once.\n" +
			"The submitted jobs are ordinary jobs. docs/guide/schedules.md describes overlapping and missed times.",
	}
	cmd.AddCommand(newScheduleCreate(a), newScheduleApply(a), newScheduleList(a), newScheduleShow(a),
		newScheduleDelete(a), newSchedulePause(a), newScheduleResume(a), newScheduleRun(a), newScheduleBackfill(a))
	return cmd
}

// newScheduleList builds "berth schedule list" over GET /v1/schedules, which returns the
// last fire of each schedule.
func newScheduleList(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List your tenant's schedules",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			list, err := c.Schedules(cmd.Context())
			if err != nil {
				return a.failed(cmd.Context(), err)
			}
			return showSchedules(a, list)
		},
	}
}

// showSchedules prints schedules with their next time and their last fire. A fire is one
// time of a schedule; it may have submitted a job or not.
func showSchedules(a *app, list wire.Page[wire.Schedule]) error {
	names := make([]string, len(list.Items))
	t := &table{screen: a.outTerm, head: []string{"NAME", "WHEN", "NEXT", "LAST", "FIRE", "JOB"}}
	for i, s := range list.Items {
		names[i] = s.Name
		last, fire, job := "-", cell{text: "-"}, cell{text: "-"}
		if len(s.Fires) > 0 {
			f := s.Fires[0]
			last, fire = ago(f.At, a.now()), fireCell(f)
			// A fire without a job was not submitted yet, or will not be.
			if f.Job != nil {
				job = cell{fireHandle(f) + " " + string(f.JobStatus), toneOfState(f.JobStatus)}
			}
		}
		t.add(s.Name, whenText(s.Schedule), nextText(a, s), last, fire, job)
	}
	return a.show(view{body: list, names: names, table: func(bool) error {
		if len(names) == 0 {
			a.say("no schedules")
			return nil
		}
		return t.write(a.out)
	}})
}

// whenText formats the times of a schedule on one line. A time zone is named only if it is
// not UTC.
func whenText(s spec.Schedule) string {
	switch {
	case s.Cron != "" && s.TimeZone != "UTC":
		return s.Cron + " " + s.TimeZone
	case s.Cron != "":
		return s.Cron
	case s.At != nil:
		return "once at " + s.At.UTC().Format(time.RFC3339)
	default:
		return "every " + s.Every.String()
	}
}

// nextText formats the next time of a schedule. Without a next time the schedule has ended,
// as after its single time.
func nextText(a *app, s wire.Schedule) string {
	switch {
	case s.Paused:
		return "paused"
	case len(s.Next) == 0:
		return "done"
	default:
		return ago(s.Next[0], a.now())
	}
}

// fireCell returns the status of a fire: red if no job was submitted that should have been,
// yellow for a fire that waits or was skipped by the overlap policy.
func fireCell(f wire.Fire) cell {
	switch f.Status {
	case wire.FireSubmitted:
		return cell{string(f.Status), good}
	case wire.FireRefused, wire.FireMissed:
		// Refused by the submit, or too late after an outage: the work did not happen.
		return cell{string(f.Status), bad}
	case wire.FireSkipped, wire.FireBuffered, wire.FireDue:
		return cell{string(f.Status), warn}
	default:
		return cell{text: string(f.Status)} // a status of a newer server
	}
}

// shownFires is the number of last fires that a schedule is shown with.
const shownFires = 20

// fireHandle returns the handle of a fire's job; the fire must have one.
func fireHandle(f wire.Fire) string { return handle(wire.Job{ID: *f.Job, Handle: f.JobHandle}) }

// newScheduleShow builds "berth schedule show" over GET /v1/schedules/{name}.
func newScheduleShow(a *app) *cobra.Command {
	var fires int
	cmd := &cobra.Command{
		Use:               "show NAME",
		Short:             "Show a schedule, its next times and its last fires",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeSchedules,
		RunE: func(cmd *cobra.Command, args []string) error {
			if fires < 0 || fires > 1000 {
				return usagef("--fires %d is out of range; allowed: 0 to 1000", fires)
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			s, err := c.Schedule(cmd.Context(), args[0], fires)
			if err != nil {
				return a.failed(cmd.Context(), err)
			}
			return showSchedule(a, s)
		},
	}
	cmd.Flags().IntVar(&fires, "fires", shownFires, "number of last fires to show")
	return cmd
}

// showSchedule prints a schedule and, after its first fire, a table of the last fires,
// newest first.
func showSchedule(a *app, s wire.Schedule) error {
	return a.show(view{body: s, names: []string{s.Name}, table: func(bool) error {
		if err := describeSchedule(a, s).write(a.out); err != nil || len(s.Fires) == 0 {
			return err
		}
		fmt.Fprintln(a.out)
		t := &table{screen: a.outTerm, head: []string{"TIME", "BY", "FIRE", "JOB", "STATUS", "REASON"}}
		for _, f := range s.Fires {
			job, status := "-", cell{text: "-"}
			if f.Job != nil {
				job, status = fireHandle(f), cell{string(f.JobStatus), toneOfState(f.JobStatus)}
			}
			t.add(f.At.UTC().Format(time.RFC3339), string(f.Source), fireCell(f), job, status,
				orDash(reasonText(f.Reason)))
		}
		return t.write(a.out)
	}})
}

// describeSchedule returns the sheet of a schedule.
func describeSchedule(a *app, s wire.Schedule) *sheet {
	now := a.now()
	x := &sheet{screen: a.outTerm}
	x.add("name", s.Name)
	x.add("tenant", string(s.Tenant))
	x.add("when", whenText(s.Schedule))
	if s.Jitter > 0 {
		x.add("jitter", "up to "+s.Jitter.String())
	}
	if s.Paused {
		x.add("paused", "yes")
	}
	x.add("note", oneLine(s.Note))
	for i, at := range s.Next {
		name := ""
		if i == 0 {
			name = "next"
		}
		x.rows = append(x.rows, [2]string{name, stamp(&at, now)})
	}
	if len(s.Next) == 0 && !s.Paused {
		x.add("next", "done")
	}
	x.add("overlap", string(s.Overlap))
	// The greatest lateness of a fire: after a longer outage a missed time is not
	// submitted.
	x.add("catch up", s.CatchUp.String())
	switch {
	case s.Job != nil:
		x.add("submits", "job "+oneLine(s.Job.Name)+", image "+oneLine(s.Job.Image))
	case s.Pipeline != nil:
		x.add("submits", "pipeline "+oneLine(s.Pipeline.Name)+", "+plural(len(s.Pipeline.Jobs), "step", "steps"))
	}
	x.add("created", stamp(&s.CreatedAt, now)+" by "+strings.TrimPrefix(s.CreatedBy, "user:"))
	x.add("changed", stamp(s.ChangedAt, now))
	// The database has the change, and the clock that fires the schedule does not yet.
	if s.Pending {
		x.add("status", "being registered; takes a second")
	}
	return x
}

// newScheduleDelete builds "berth schedule delete" over DELETE /v1/schedules/{name}.
// Submitted jobs stay.
func newScheduleDelete(a *app) *cobra.Command {
	return &cobra.Command{
		Use:               "delete NAME",
		Short:             "Delete a schedule; its jobs stay",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeSchedules,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			if err := c.DeleteSchedule(cmd.Context(), args[0]); err != nil {
				return a.failed(cmd.Context(), err)
			}
			_, err = fmt.Fprintf(a.out, "deleted schedule %s\n", args[0])
			return err
		},
	}
}

// newSchedulePause builds "berth schedule pause" over POST /v1/schedules/{name}/pause,
// which is idempotent.
func newSchedulePause(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "pause NAME", Short: "Pause a schedule"}
	return noteSchedule(a, cmd, "is paused", (*client.Client).PauseSchedule)
}

// newScheduleResume builds "berth schedule resume" over POST /v1/schedules/{name}/resume,
// which is idempotent. Times that passed during the pause are submitted only by a backfill.
func newScheduleResume(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "resume NAME", Short: "Resume a paused schedule; missed times are not submitted"}
	return noteSchedule(a, cmd, "is resumed", (*client.Client).ResumeSchedule)
}

// noteSchedule completes a command that changes a schedule and stores a reason. change is a
// method of the client; words follow the schedule's name in the printed sentence.
func noteSchedule(a *app, cmd *cobra.Command, words string,
	change func(c *client.Client, ctx context.Context, name, note string) (wire.Schedule, error)) *cobra.Command {
	var note string
	cmd.Args, cmd.ValidArgsFunction = cobra.ExactArgs(1), a.completeSchedules
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client()
		if err != nil {
			return err
		}
		s, err := change(c, cmd.Context(), args[0], note)
		if err != nil {
			return a.failed(cmd.Context(), err)
		}
		return a.show(view{body: s, names: []string{s.Name}, table: func(bool) error {
			text := "schedule " + s.Name + " " + words
			if len(s.Next) > 0 {
				text += ", next " + stamp(&s.Next[0], a.now())
			}
			_, err := fmt.Fprintln(a.out, text)
			return err
		}})
	}
	cmd.Flags().StringVar(&note, "note", "", "reason, shown with the schedule")
	return cmd
}
