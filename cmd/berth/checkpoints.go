package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"berth"
	"berth/wire"
)

// newCheckpoints builds "berth checkpoints" over GET /v1/jobs/{id}/checkpoints. The job is
// resolved first, because the argument may be a name or the beginning of an id.
func newCheckpoints(a *app) *cobra.Command {
	return &cobra.Command{
		Use:               "checkpoints JOB",
		Short:             "List a job's checkpoints, newest first",
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
			// The job found above has its checkpoints too; this call returns the API's own
			// list document.
			list, err := c.Checkpoints(cmd.Context(), job.ID)
			if err != nil {
				return a.failed(cmd.Context(), err)
			}
			return showCheckpoints(a, list)
		},
	}
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
	t := &table{screen: a.outTerm, head: []string{"STEP", "ATTEMPT", "STATE", "SIZE", "AGE", "DETAIL"}}
	if wide {
		t.head = []string{"STEP", "ATTEMPT", "STATE", "SIZE", "AGE", "SHA256", "DETAIL"}
	}
	for _, c := range checkpoints {
		tones := map[berth.CheckpointState]tone{berth.CheckpointVerified: good, berth.CheckpointBad: bad,
			berth.CheckpointPruned: faint}
		cells := []any{fmt.Sprint(c.Step), fmt.Sprint(c.Attempt), cell{string(c.State), tones[c.State]},
			bytesOf(c.Bytes), since(&c.CreatedAt, a.now())}
		if wide {
			cells = append(cells, orDash(c.SHA256))
		}
		t.add(append(cells, c.Detail)...)
	}
	return t
}
