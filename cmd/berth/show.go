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

// newShow builds "berth show" over GET /v1/jobs/{id}, for jobs, arrays and pipelines.
func newShow(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "show JOB",
		Short: "Show a job, an array, a pipeline or a schedule",
		Long: "Show prints a job with its attempts and checkpoints, a pipeline with its steps, and a schedule, if no " +
			"job\nhas its name, with its last fires.",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeWorks(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			job, err := jobOnly(cmd.Context(), a, c, args[0])
			if berth.CodeOf(err) == berth.CodeNotFound {
				// Jobs take precedence, since a schedule has the name of its jobs by default.
				if s, none := c.Schedule(cmd.Context(), args[0], shownFires); none == nil {
					return showSchedule(a, s)
				}
			}
			if err != nil {
				return err
			}
			return a.show(view{body: job, names: []string{string(job.ID)}, table: func(wide bool) error {
				if err := describeJob(a, job, wide); err != nil {
					return err
				}
				return adviseInterval(cmd.Context(), a, c, job)
			}})
		},
	}
}

// sheet is a list of names and values for one object, one pair on each line, the values
// aligned.
type sheet struct {
	screen screen
	rows   [][2]string
	wraps  bool // on a terminal, long values continue below their beginning; a value that users copy must not
}

// add appends a pair. A pair with an empty value is left out, so that callers can add every
// field without a check.
func (s *sheet) add(name, value string) {
	if value != "" {
		s.rows = append(s.rows, [2]string{name, value})
	}
}

// write prints the pairs. Names are ASCII, so their length in bytes is their width.
func (s *sheet) write(w io.Writer) error {
	width := 0
	for _, r := range s.rows {
		width = max(width, len(r[0]))
	}
	var b strings.Builder
	for _, r := range s.rows {
		value := r[1]
		if room := s.screen.width - width - 2; s.wraps && s.screen.terminal && room > 0 {
			value = wrap(value, room, width+2)
		}
		fmt.Fprintf(&b, "%s  %s\n", s.screen.paint(faint, fmt.Sprintf("%-*s", width, r[0])), value)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// describeJob prints a job for people: a sheet, then the tables that the job has: steps of
// a pipeline, or attempts, hangs, usage and checkpoints. Text from jobs passes oneLine, since a
// job could otherwise write escape sequences to the terminal.
func describeJob(a *app, j wire.Job, wide bool) error {
	now := a.now()
	s := sheet{screen: a.outTerm}
	s.add("id", string(j.ID))
	s.add("handle", j.Handle)
	s.add("name", oneLine(nameText(j)))
	s.add("tenant", string(j.Tenant))
	addStatus(&s, j, now)
	addWaiting(a, &s, j)
	if j.CachedFrom != nil {
		s.add("not run", whyText(nil, j.CachedFrom))
	}
	if j.ExitCode != nil {
		s.add("exit code", fmt.Sprint(*j.ExitCode))
	}
	s.add("progress", progressText(j.Progress, now))
	addNeeds(&s, j)
	addChildren(&s, j)
	s.add("priority", j.Priority.String())
	s.add("labels", oneLine(pairs(j.Labels)))
	if j.Spec != nil {
		s.add("image", oneLine(j.Spec.Image))
		s.add("image digest", digestText(j, now))
		s.add("image tag", imageRequestText(j))
		s.add("command", oneLine(shellLine(slices.Concat(j.Spec.Entrypoint, j.Spec.Command))))
		s.add("code", j.Spec.Workdir)
		s.add("reaches", reachText(*j.Spec))
		addUser(&s, *j.Spec, j.RunsAs, j.Status)
		addData(&s, *j.Spec)
		addMembers(&s, j)
	}
	if j.Pipeline != nil {
		addStepOutputs(&s, *j.Pipeline)
	}
	s.add("submitted", submittedText(j, now))
	s.add("started", stamp(j.StartedAt, now))
	s.add("finished", stamp(j.FinishedAt, now))
	s.add("next attempt", stamp(j.EligibleAt, now))
	if j.StartedAt != nil {
		s.add("ran", between(j.StartedAt, j.FinishedAt, now))
	}
	addSpent(&s, j)
	s.add("cost", costText(j.Cost))
	s.add("lost work", lostText(j.Attempts))
	s.add("retry of", idText(j.RetryOf))
	s.add("retried by", idText(j.RetriedBy))
	if from := j.StartedFrom; from != nil {
		s.add("started from", fmt.Sprintf("step %d of job %s", from.Step, from.Job)+allParts(from))
	}
	s.add("part of", idText(j.Parent))
	addHeld(&s, j, now)
	if err := s.write(a.out); err != nil {
		return err
	}
	// A pipeline has no attempts of its own; its steps have.
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
	if err := showHangs(a, j.Hangs, wide); err != nil {
		return err
	}
	// Only members that ran long enough to be sampled, and have ended, are in this table.
	if t := measuredTable(a, j.Attempts); len(t.rows) > 0 {
		fmt.Fprintln(a.out)
		if err := t.write(a.out); err != nil {
			return err
		}
	}
	return showKept(a, j.Checkpoints, wide)
}

// addData adds the inputs and outputs of a job, as its file names them.
func addData(s *sheet, j spec.Job) {
	label := "inputs"
	for _, in := range j.Inputs {
		s.rows = append(s.rows, [2]string{label, oneLine(in.From + " -> " + in.To + inputMode(in))})
		label = ""
	}
	label = "outputs"
	for _, out := range j.Outputs {
		s.rows = append(s.rows, [2]string{label, oneLine(out.Name + ": " + out.Path)})
		label = ""
	}
}

// inputMode is the remark about a mounted folder, of which no version is recorded.
func inputMode(in spec.Input) string {
	if !in.Mounted() {
		return ""
	}
	return " (mounted, unversioned)"
}

// addStepOutputs adds the outputs that the steps of a pipeline declare, at every level.
func addStepOutputs(s *sheet, p spec.Pipeline) {
	label := "outputs"
	for path, step := range p.All() {
		for _, out := range step.Outputs {
			s.rows = append(s.rows, [2]string{label, oneLine(path + "/" + out.Name + ": " + out.Path)})
			label = ""
		}
	}
}

// submittedText formats when a job was submitted and, if the server knows it, by whom.
func submittedText(j wire.Job, now time.Time) string {
	text := stamp(&j.SubmittedAt, now)
	if j.SubmittedBy != "" {
		text += " by " + oneLine(strings.TrimPrefix(j.SubmittedBy, "user:"))
	}
	return text
}

// showKept prints the checkpoints that a job can resume from or that are damaged. Pruned ones
// are only a record: they are counted, and wide shows them.
func showKept(a *app, all []berth.Checkpoint, wide bool) error {
	shown := all
	if !wide {
		shown = slices.DeleteFunc(slices.Clone(all), func(c berth.Checkpoint) bool {
			return c.State == berth.CheckpointPruned
		})
	}
	if len(shown) > 0 {
		fmt.Fprintln(a.out)
		if err := checkpointTable(a, shown, wide).write(a.out); err != nil {
			return err
		}
	}
	if pruned := len(all) - len(shown); pruned > 0 {
		a.say("%s pruned; list all: berth checkpoints JOB", plural(pruned, "checkpoint was", "checkpoints were"))
	}
	return nil
}

// addChildren adds the counts of a parent's children, and the position of an element in its
// array. Lines without a value are left out, as all are for any other job.
func addChildren(s *sheet, j wire.Job) {
	unit := "elements"
	if isPipeline(j) {
		unit = "steps"
	}
	s.add(unit, tallyText(j.Tally))
	s.add("indexes", j.Indexes)
	addResults(s, j.Results)
	s.add("vars", oneLine(pairs(j.Variables)))
}

// addResults adds the latest results of an array and its retries, and the run that each
// result is from.
func addResults(s *sheet, r *wire.ArrayRuns) {
	if r == nil {
		return
	}
	s.add("run", fmt.Sprintf("%d of %d", r.Run, len(r.Runs)))
	s.add("results", tallyText(&r.Tally))
	for i, run := range r.Runs {
		s.rows = append(s.rows, [2]string{"", fmt.Sprintf("%d from run %d (%s), which is %s", run.Results, i+1,
			handle(wire.Job{ID: run.Job, Handle: run.Handle}), run.Status)})
	}
}

// attemptTable returns the table of a job's attempts. FROM STEP is the checkpoint from
// which the attempt resumed. COST appears if an attempt ran on a machine of a cloud. Wide names
// the GPUs instead of counting them.
func attemptTable(a *app, attempts []berth.Attempt, wide bool) *table {
	head := []string{"ATTEMPT", "MACHINES", "GPUS", "PLACED", "RAN", "FROM STEP", "EXIT", "OUTCOME"}
	costs := slices.ContainsFunc(attempts, func(at berth.Attempt) bool { return at.Cost != nil })
	if costs {
		head = slices.Insert(head, len(head)-1, "COST")
	}
	t := &table{screen: a.outTerm, head: head}
	for _, at := range attempts {
		machines := make([]string, len(at.Machines))
		for i, m := range at.Machines {
			machines[i] = string(m)
		}
		gpus := "-"
		// The number of GPUs by default; their UUIDs are long.
		if len(at.GPUs) > 0 {
			gpus = fmt.Sprint(len(at.GPUs))
		}
		if wide && len(at.GPUs) > 0 {
			gpus = strings.Join(at.GPUs, ",")
		}
		row := []any{fmt.Sprint(at.Number), orDash(strings.Join(machines, ",")), gpus, since(&at.PlacedAt, a.now()),
			between(at.StartedAt, at.EndedAt, a.now()), number(at.ResumeFrom), number(at.ExitCode), outcomeText(at)}
		if costs {
			row = slices.Insert(row, len(row)-1, any(orDash(costText(at.Cost))))
		}
		t.add(row...)
	}
	return t
}

// costText formats a cost in US dollars; nil gives "".
func costText(cost *float64) string {
	if cost == nil {
		return ""
	}
	return fmt.Sprintf("$%.2f", *cost)
}

// outcomeText returns how an attempt ended, or without a reason the job's status after the
// attempt.
func outcomeText(at berth.Attempt) string {
	switch {
	case at.Outcome != nil:
		return reasonText(at.Outcome)
	case at.Next != "":
		return string(at.Next)
	case at.EndedAt == nil:
		return "running"
	default:
		return "-"
	}
}

// number formats an optional number, "-" for nil: a resumed step or an exit code of 0
// differs from none.
func number[N int | int64](n *N) string {
	if n == nil {
		return "-"
	}
	return fmt.Sprint(*n)
}

// stamp formats a time in UTC and its distance from now. nil and the zero time give "",
// which add leaves out.
func stamp(t *time.Time, now time.Time) string {
	if t == nil || t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05Z") + " (" + ago(*t, now) + ")"
}

// idText returns an optional id in full, for use as an argument of another command; nil
// gives "".
func idText(id *berth.JobID) string {
	if id == nil {
		return ""
	}
	return string(*id)
}

// addSpent adds how much of the job's budgets is spent: failures by the job's own fault,
// attempts lost to the infrastructure, and preemptions. Kinds that did not occur are left
// out.
func addSpent(s *sheet, j wire.Job) {
	if j.Failures > 0 {
		text := fmt.Sprint(j.Failures)
		if j.Spec != nil {
			text += fmt.Sprintf(" (of max_attempts %d)", j.Spec.WithDefaults().Retry.MaxAttempts)
		}
		s.add("failures", text)
	}
	if j.Losses > 0 {
		s.add("lost attempts", fmt.Sprint(j.Losses))
	}
	if j.Preemptions > 0 {
		s.add("preemptions", fmt.Sprint(j.Preemptions))
	}
}

// lostText formats the lost work of all attempts together, in steps and GPU-seconds: the
// work that a later attempt had to repeat after its checkpoint. It returns "" if no attempt
// reports a loss.
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

// resourcesText formats the resources of one member. r must have its defaults: CPUs and
// Memory are nil without them. CPUs and GPUs are counted in thousandths.
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

// progressText formats the progress that a job last reported, with the age of the report: a
// report that does not change may mean that the job hangs.
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
		text += ", reported " + ago(p.At, now)
	}
	return text
}

// percent returns the completed share in percent, from 0 to 100. A job may report more
// steps than its total, or a negative step.
func percent(p *berth.Progress) int64 {
	if p.Total <= 0 {
		return 0
	}
	return int64(100 * min(1, max(0, float64(p.Step)/float64(p.Total))))
}
