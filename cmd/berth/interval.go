package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"berth"
	"berth/api/client"
	"berth/wire"
)

// adviseInterval prints advice on the interval between checkpoints, for a job that saves checkpoints. It prints nothing
// if the server has no advice or is of an earlier version: the job itself is shown already.
func adviseInterval(ctx context.Context, a *app, c *client.Client, j wire.Job) error {
	// The advice rests on the time that a checkpoint takes to write, so jobs without such a time get none.
	timed := slices.ContainsFunc(j.Checkpoints, func(p berth.Checkpoint) bool { return p.Write != nil })
	if !timed {
		return nil
	}
	interval, err := c.CheckpointInterval(ctx, j.ID)
	// The advice is an addition to the job's page: its failure must not fail the command.
	if err != nil || interval.AdvisedSeconds == 0 {
		return nil
	}
	_, err = fmt.Fprintf(a.out, "\n%s\n", intervalText(interval))
	return err
}

// intervalText formats the advice and its reasons, in two lines.
func intervalText(i wire.CheckpointInterval) string {
	length := func(seconds float64) string {
		text := span(time.Duration(seconds * float64(time.Second)))
		if whole, ok := strings.CutSuffix(text, "m0s"); ok {
			return whole + "m"
		}
		return text
	}
	loss := fmt.Sprintf("its machines are lost every %s", length(i.LossSeconds))
	if i.Machines == 1 {
		loss = fmt.Sprintf("machines like its own are lost every %s", length(i.LossSeconds))
	}
	// Without a loss there is no rate. The days of service show how much the advice rests on.
	if i.LostMachines == 0 {
		loss = fmt.Sprintf("no machine like its own was lost in %.0f days of service", i.MachineDays)
	}
	reasons := []string{"saving takes " + tookText(&i.SaveSeconds), loss}
	if i.PresentSeconds > 0 {
		reasons = append(reasons, "now every "+length(i.PresentSeconds))
	}
	return fmt.Sprintf("checkpoint interval: about every %s would lose least work\n(%s)", length(i.AdvisedSeconds),
		strings.Join(reasons, "; "))
}
