package main

import (
	"context"

	"github.com/spf13/cobra"

	"berth"
	"berth/api/client"
	"berth/wire"
)

// newSuspend builds "berth suspend" over POST /v1/jobs/{id}/suspend. The call returns at once;
// the containers of a running job save and stop later.
func newSuspend(a *app) *cobra.Command {
	loseWork := false
	cmd := &cobra.Command{
		Use:   "suspend [JOB...]",
		Short: "Stop jobs after a checkpoint and hold them",
		Long: "Suspend asks running jobs to save a checkpoint, stops them and holds them: their capacity is free for " +
			"other jobs.\nberth release continues them from the newest checkpoint. A suspension costs no retry. " +
			"Waiting jobs are only held.",
		Example: "  berth suspend digits\n  berth release digits",
	}
	cmd.Flags().BoolVar(&loseWork, "lose-work", false,
		"suspend also a job without a checkpoint, which then starts from the beginning")
	do := func(ctx context.Context, c *client.Client, job wire.Job) (wire.Job, string, error) {
		after, err := c.Suspend(ctx, job.ID, loseWork)
		// The status after the call decides the message: a waiting job is held at once, a running one first saves.
		said := named(job) + " is suspended"
		if after.Status == berth.Preempting {
			said = named(job) + " saves a checkpoint and stops; berth release continues it"
		}
		return after, said, err
	}
	return filtered(a, act(a, cmd, liveJob, do), liveJob, do)
}

// newCheckpoint builds "berth checkpoint" over POST /v1/jobs/{id}/save.
func newCheckpoint(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "checkpoint JOB...",
		Short: "Ask running jobs to write a checkpoint now",
		Long: "Checkpoint sends the checkpoint.signal of running jobs, which continue. berth checkpoints lists the " +
			"stored checkpoints.",
	}
	// Only a running member has a process that can receive the signal.
	running := func(j wire.Job) bool { return j.Status == berth.Running }
	return act(a, cmd, running, func(ctx context.Context, c *client.Client, job wire.Job) (wire.Job, string, error) {
		after, err := c.Save(ctx, job.ID)
		return after, named(job) + " was asked to write a checkpoint", err
	})
}
