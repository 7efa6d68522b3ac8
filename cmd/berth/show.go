package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth"
	"berth/spec"
	"berth/wire"
)

func newShow(a *app) *cobra.Command {
	return &cobra.Command{
		Use:               "show JOB",
		Short:             "Show a job, its attempts and its checkpoints",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeJobs(anyJob),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			job, err := a.job(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			return a.show(view{body: job, names: []string{string(job.ID)}, table: func(wide bool) error {
				return describeJob(a, job, wide)
			}})
		},
	}
}

// sheet is a list of names and values, one a line.
type sheet struct {
	screen screen
	rows   [][2]string
}

// add notes a value; an empty one is left out.
func (s *sheet) add(name, value string) {
	if value != "" {
		s.rows = append(s.rows, [2]string{name, value})
	}
}

func (s *sheet) write(w io.Writer) error {
	width := 0
	for _, r := range s.rows {
		width = max(width, len(r[0]))
	}
	var b strings.Builder
	for _, r := range s.rows {
		fmt.Fprintf(&b, "%s  %s\n", s.screen.paint(faint, fmt.Sprintf("%-*s", width, r[0])), r[1])
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func describeJob(a *app, j wire.Job, wide bool) error {
	now := a.now()
	status := statusCell(j)
	s := sheet{screen: a.outTerm}
	s.add("id", string(j.ID))
	s.add("name", oneLine(nameText(j)))
	s.add("tenant", string(j.Tenant))
	s.add("status", a.outTerm.paint(status.tone, status.text))
	if j.Reason != nil {
		s.add("reason", oneLine(reasonText(j.Reason)))
		s.add("hint", oneLine(j.Reason.Hint))
	}
	if j.CachedFrom != nil {
		s.add("not run", whyText(nil, j.CachedFrom))
	}
	if j.ExitCode != nil {
		s.add("exit code", fmt.Sprint(*j.ExitCode))
	}
	s.add("progress", progressText(j.Progress, now))
	if isPipeline(j) {
		s.add("steps", tallyText(j.Tally))
	} else {
		s.add("elements", tallyText(j.Tally))
	}
	s.add("indexes", j.Indexes)
	s.add("priority", j.Priority.String())
	s.add("labels", oneLine(pairs(j.Labels)))
	if j.Spec != nil {
		s.add("image", oneLine(j.Spec.Image))
		s.add("command", oneLine(shellLine(slices.Concat(j.Spec.Entrypoint, j.Spec.Command))))
		s.add("workdir", j.Spec.Workdir)
		s.add("resources", resourcesText(j.Spec.WithDefaults().Resources))
		if n := j.Spec.Members; n > 1 {
			s.add("members", fmt.Sprintf("%d, each with these", n))
		}
	}
	if wide {
		s.add("image digest", j.ImageDigest)
	}
	s.add("submitted", stamp(&j.SubmittedAt, now))
	s.add("started", stamp(j.StartedAt, now))
	s.add("finished", stamp(j.FinishedAt, now))
	s.add("next attempt", stamp(j.EligibleAt, now))
	if j.StartedAt != nil {
		s.add("ran", between(j.StartedAt, j.FinishedAt, now))
	}
	s.add("spent", spentText(j))
	s.add("lost work", lostText(j.Attempts))
	s.add("retry of", idText(j.RetryOf))
	s.add("retried by", idText(j.RetriedBy))
	s.add("part of", idText(j.Parent))
	if err := s.write(a.out); err != nil {
		return err
	}
	if len(j.Steps) > 0 {
		fmt.Fprintln(a.out)
		return stepTable(a, j.Steps).write(a.out)
	}
	if len(j.Attempts) > 0 {
		fmt.Fprintln(a.out)
		if err := attemptTable(a, j.Attempts, wide).write(a.out); err != nil {
			return err
		}
	}
	if t := measuredTable(a, j.Attempts); len(t.rows) > 0 {
		fmt.Fprintln(a.out)
		if err := t.write(a.out); err != nil {
			return err
		}
	}
	if len(j.Checkpoints) > 0 {
		fmt.Fprintln(a.out)
		return checkpointTable(a, j.Checkpoints, wide).write(a.out)
	}
	return nil
}

func attemptTable(a *app, attempts []berth.Attempt, wide bool) *table {
	t := &table{screen: a.outTerm, head: []string{"ATTEMPT", "MACHINES", "GPUS", "PLACED", "RAN", "FROM STEP",
		"EXIT", "OUTCOME"}}
	for _, at := range attempts {
		machines := make([]string, len(at.Machines))
		for i, m := range at.Machines {
			machines[i] = string(m)
		}
		gpus := "-"
		if len(at.GPUs) > 0 {
			gpus = fmt.Sprint(len(at.GPUs))
		}
		if wide && len(at.GPUs) > 0 {
			gpus = strings.Join(at.GPUs, ",")
		}
		t.add(fmt.Sprint(at.Number), orDash(strings.Join(machines, ",")), gpus, since(&at.PlacedAt, a.now()),
			between(at.StartedAt, at.EndedAt, a.now()), number(at.ResumeFrom), number(at.ExitCode), outcomeText(at))
	}
	return t
}

func outcomeText(at berth.Attempt) string {
	switch {
	case at.Outcome != nil:
		return reasonText(at.Outcome)
	case at.Next != "":
		return string(at.Next)
	case at.EndedAt == nil:
		return "under way"
	default:
		return "-"
	}
}

func number[N int | int64](n *N) string {
	if n == nil {
		return "-"
	}
	return fmt.Sprint(*n)
}

// stamp is a time, and how long ago that was.
func stamp(t *time.Time, now time.Time) string {
	if t == nil || t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05Z") + " (" + ago(*t, now) + ")"
}

func idText(id *berth.JobID) string {
	if id == nil {
		return ""
	}
	return string(*id)
}

// spentText describes how much of the job's budgets is spent.
func spentText(j wire.Job) string {
	var parts []string
	for _, p := range []struct {
		n         int
		one, many string
	}{
		{j.Failures, "failure of its own", "failures of its own"},
		{j.Losses, "lost attempt", "lost attempts"},
		{j.Preemptions, "preemption", "preemptions"},
	} {
		if p.n > 0 {
			parts = append(parts, plural(p.n, p.one, p.many))
		}
	}
	return strings.Join(parts, ", ")
}

// lostText describes the lost work of all attempts together.
func lostText(attempts []berth.Attempt) string {
	var steps int64
	var seconds float64
	n := 0
	for _, at := range attempts {
		if at.LostSteps == nil && at.LostGPUSeconds == nil {
			continue
		}
		n++
		if at.LostSteps != nil {
			steps += *at.LostSteps
		}
		if at.LostGPUSeconds != nil {
			seconds += *at.LostGPUSeconds
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%s and %.1f GPU-seconds, in %s", plural(int(steps), "step", "steps"), seconds,
		plural(n, "attempt", "attempts"))
}

func resourcesText(r spec.Resources) string {
	cpus := r.CPUs.String() + " cpus"
	if *r.CPUs == 1000 {
		cpus = "1 cpu"
	}
	parts := []string{cpus, r.Memory.String() + " memory"}
	if r.Disk > 0 {
		parts = append(parts, r.Disk.String()+" disk")
	}
	if r.GPUs > 0 {
		text := r.GPUs.String() + " gpu"
		if r.GPUs > 1000 {
			text += "s"
		}
		if len(r.GPUType) > 0 {
			text += " (" + strings.Join(r.GPUType, " or ") + ")"
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}

func progressText(p *berth.Progress, now time.Time) string {
	if p == nil {
		return ""
	}
	text := fmt.Sprint("step ", p.Step)
	if p.Total > 0 {
		text += fmt.Sprintf(" of %d (%d%%)", p.Total, percent(p))
	}
	if p.Message != "" {
		text += ", " + oneLine(p.Message)
	}
	if !p.At.IsZero() {
		text += ", told " + ago(p.At, now)
	}
	return text
}

func percent(p *berth.Progress) int64 {
	if p.Total <= 0 {
		return 0
	}
	return int64(100 * min(1, max(0, float64(p.Step)/float64(p.Total))))
}
