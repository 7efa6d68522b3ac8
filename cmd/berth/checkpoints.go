package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth"
	"berth/api/client"
	"berth/wire"
)

// newCheckpoints builds "berth checkpoints". With a job in place of a subcommand it lists.
func newCheckpoints(a *app) *cobra.Command {
	list := newCheckpointsList(a)
	cmd := &cobra.Command{
		Use:   "checkpoints JOB",
		Short: "List, download, pin and remove checkpoints of jobs",
		Long: "List the checkpoints of a job, newest first. The subcommands download a checkpoint, verify its\n" +
			"hashes, keep it from being pruned, and remove it.",
		Args:              list.Args,
		ValidArgsFunction: list.ValidArgsFunction,
		RunE:              list.RunE,
	}
	cmd.AddCommand(list, newCheckpointsPull(a), newCheckpointsVerify(a), newCheckpointsPin(a), newCheckpointsUnpin(a),
		newCheckpointsRemove(a))
	return cmd
}

// newCheckpointsList builds "berth checkpoints list" over GET /v1/jobs/{id}/checkpoints.
func newCheckpointsList(a *app) *cobra.Command {
	return &cobra.Command{
		Use:               "list JOB",
		Aliases:           []string{"ls"},
		Short:             "List a job's checkpoints, newest first",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeJobs(anyJob),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, _, list, err := findCheckpoints(cmd.Context(), a, args[0])
			if err != nil {
				return err
			}
			return showCheckpoints(a, list)
		},
	}
}

// findCheckpoints resolves an argument to a job and lists its checkpoints. The job is
// resolved first, because the argument may be a name or the beginning of an id.
func findCheckpoints(ctx context.Context, a *app, name string) (*client.Client, wire.Job, wire.Page[berth.Checkpoint],
	error) {
	none := wire.Page[berth.Checkpoint]{}
	c, err := a.client()
	if err != nil {
		return nil, wire.Job{}, none, err
	}
	job, err := a.job(ctx, c, name)
	if err != nil {
		return nil, job, none, err
	}
	// The job has its checkpoints too; this call returns the API's own list document.
	list, err := c.Checkpoints(ctx, job.ID)
	return c, job, list, a.failed(ctx, err)
}

// findStep returns the step that the arguments JOB [STEP] name. Without STEP it is the newest
// verified one that no restore passed over, if there is any, and "best" is the best by the metric of
// checkpoint.keep_best.
func findStep(ctx context.Context, a *app, args []string) (*client.Client, wire.Job, int64, error) {
	c, job, list, err := findCheckpoints(ctx, a, args[0])
	if err != nil {
		return nil, job, 0, err
	}
	if len(args) > 1 && args[1] == "best" {
		for _, p := range list.Items {
			if p.Best == 1 {
				return c, job, p.Step, nil
			}
		}
		return nil, job, 0, berth.Errorf(berth.CodeNotFound, "%s has no checkpoint with a value of a metric; "+
			"checkpoint.keep_best of the job file names the metric", named(job))
	}
	if len(args) > 1 {
		step, err := strconv.ParseInt(args[1], 10, 64)
		if err != nil || step < 0 {
			return nil, job, 0, usagef("%q is not a step; write the number of a step, such as 40, or best", args[1])
		}
		return c, job, step, nil
	}
	newest := -1
	for i, p := range list.Items {
		if p.State == berth.CheckpointVerified && (newest < 0 || list.Items[newest].PassedOver && !p.PassedOver) {
			newest = i
		}
	}
	if newest < 0 {
		return nil, job, 0, berth.Errorf(berth.CodeNotFound, "%s has no verified checkpoint", named(job))
	}
	return c, job, list.Items[newest].Step, nil
}

// onStep builds a subcommand that changes one checkpoint. do returns the sentence that -o
// table prints.
func onStep(a *app, cmd *cobra.Command,
	do func(context.Context, *client.Client, wire.Job, int64) (any, string, error)) *cobra.Command {
	cmd.ValidArgsFunction = inTurn(a.completeJobs(anyJob), completeSteps(a))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		c, job, step, err := findStep(ctx, a, args)
		if err != nil {
			return err
		}
		body, said, err := do(ctx, c, job, step)
		if err != nil {
			return a.failed(ctx, err)
		}
		return a.show(view{body: body, names: []string{fmt.Sprintf("step-%d", step)}, table: func(bool) error {
			_, err := fmt.Fprintln(a.out, said)
			return err
		}})
	}
	return cmd
}

// completeSteps offers the steps of the verified checkpoints of the job that the first argument names.
func completeSteps(a *app) completer {
	return completePart(a, func(ctx context.Context, c *client.Client, job wire.Job) ([]candidateName, error) {
		page, err := c.Checkpoints(ctx, job.ID)
		var list []candidateName
		for _, k := range page.Items {
			if k.State == berth.CheckpointVerified {
				list = append(list, candidateName{strconv.FormatInt(k.Step, 10), ago(k.CreatedAt, a.now())})
			}
		}
		return list, err
	})
}

// newCheckpointsPin builds "berth checkpoints pin" over POST …/checkpoints/{step}/pin.
func newCheckpointsPin(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pin JOB [STEP]",
		Short: "Keep a checkpoint from being pruned",
		Long: "Keep a verified checkpoint, by default the newest, beyond the limit of checkpoint.keep. Its job is\n" +
			"not archived until unpin. Pinned checkpoints count towards the tenant's storage.",
		Example: "  berth checkpoints pin digits 40",
		Args:    cobra.RangeArgs(1, 2),
	}
	return onStep(a, cmd, func(ctx context.Context, c *client.Client, job wire.Job, step int64) (any, string, error) {
		after, err := c.PinCheckpoint(ctx, job.ID, step)
		return after, fmt.Sprintf("step %d of %s is pinned", step, named(job)), err
	})
}

// newCheckpointsUnpin builds "berth checkpoints unpin".
func newCheckpointsUnpin(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "unpin JOB STEP", Short: "End the pin of a checkpoint", Args: cobra.ExactArgs(2)}
	return onStep(a, cmd, func(ctx context.Context, c *client.Client, job wire.Job, step int64) (any, string, error) {
		after, err := c.UnpinCheckpoint(ctx, job.ID, step)
		return after, fmt.Sprintf("step %d of %s is not pinned", step, named(job)), err
	})
}

// newCheckpointsRemove builds "berth checkpoints rm" over DELETE …/checkpoints/{step}.
func newCheckpointsRemove(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rm JOB STEP",
		Short: "Remove a checkpoint of an ended job",
		Long: "Remove a checkpoint and, within minutes, its objects. A checkpoint that is pinned, or from which a\n" +
			"live job started, is not removed.",
		Args: cobra.ExactArgs(2),
	}
	return onStep(a, cmd, func(ctx context.Context, c *client.Client, job wire.Job, step int64) (any, string, error) {
		err := c.RemoveCheckpoint(ctx, job.ID, step)
		return struct{}{}, fmt.Sprintf("step %d of %s is removed", step, named(job)), err
	})
}

// showCheckpoints prints checkpoints, newest first. -o name prints step-N, since a
// checkpoint has no id that users see.
func showCheckpoints(a *app, list wire.Page[berth.Checkpoint]) error {
	names := make([]string, len(list.Items))
	for i, c := range list.Items {
		names[i] = fmt.Sprintf("step-%d", c.Step)
	}
	return a.show(view{body: list, names: names, table: func(wide bool) error {
		if len(list.Items) == 0 {
			a.say("no checkpoints")
			return nil
		}
		return checkpointTable(a, list.Items, wide).write(a.out)
	}})
}

// checkpointTable returns the table of checkpoints, which "berth show" prints too. A job
// resumes from verified checkpoints, hence their colour; a pruned one is only a record. The
// hash is long and is left to wide.
func checkpointTable(a *app, checkpoints []berth.Checkpoint, wide bool) *table {
	t := &table{screen: a.outTerm, head: []string{"STEP", "ATTEMPT", "STATE", "SIZE", "AGE"}}
	shares := slices.ContainsFunc(checkpoints, func(c berth.Checkpoint) bool { return c.Stored != nil })
	if shares {
		t.head = slices.Insert(t.head, 4, "NEW")
	}
	measured := slices.ContainsFunc(checkpoints, func(c berth.Checkpoint) bool { return c.Metric != nil })
	timed := slices.ContainsFunc(checkpoints, func(c berth.Checkpoint) bool { return c.Write != nil || c.Store != nil })
	if timed {
		t.head = append(t.head, "SAVED IN", "STORED IN")
	}
	if measured {
		t.head = append(t.head, "METRIC")
	}
	if wide {
		t.head = append(t.head, "SHA256")
	}
	t.head = append(t.head, "DETAIL")
	for _, c := range checkpoints {
		tones := map[berth.CheckpointState]tone{berth.CheckpointVerified: good, berth.CheckpointBad: bad,
			berth.CheckpointPruned: faint}
		cells := []any{fmt.Sprint(c.Step), fmt.Sprint(c.Attempt), cell{string(c.State), tones[c.State]},
			bytesOf(c.Bytes), since(&c.CreatedAt, a.now())}
		if shares {
			stored := c.Bytes
			if c.Stored != nil {
				stored = *c.Stored
			}
			cells = slices.Insert(cells, 4, any(bytesOf(stored)))
		}
		if timed {
			cells = append(cells, tookText(c.Write), tookText(c.Store))
		}
		if measured {
			cells = append(cells, metricText(c.Metric))
		}
		if wide {
			cells = append(cells, orDash(c.SHA256))
		}
		t.add(append(cells, cmp.Or(detailText(c), keptText(c)))...)
	}
	return t
}

// detailText returns the damage of a checkpoint, or the reason why restores take it last.
func detailText(c berth.Checkpoint) string {
	if c.PassedOver {
		return strings.TrimSuffix("passed over: "+c.Detail, ": ")
	}
	return c.Detail
}

// tookText returns a measured time, with tenths of a second below 10 seconds, or a dash.
func tookText(seconds *float64) string {
	switch {
	case seconds == nil:
		return "-"
	case *seconds < 10:
		return strconv.FormatFloat(*seconds, 'f', 1, 64) + "s"
	}
	return span(time.Duration(*seconds * float64(time.Second)))
}

// metricText returns the value of a checkpoint's metric with at most six digits, or a dash.
func metricText(v *float64) string {
	if v == nil {
		return "-"
	}
	return strconv.FormatFloat(*v, 'g', 6, 64)
}

// keptText returns why a checkpoint stays that keep alone would prune.
func keptText(c berth.Checkpoint) string {
	switch {
	case c.Best > 0:
		best := "best"
		if c.Best > 1 {
			best = fmt.Sprintf("best %d", c.Best)
		}
		c.Best = 0
		return strings.TrimSuffix(best+"; "+keptText(c), "; ")
	case c.Pinned && c.Used:
		return "pinned; a live job started from it"
	case c.Pinned:
		return "pinned"
	case c.Used:
		return "a live job started from it"
	}
	return ""
}
