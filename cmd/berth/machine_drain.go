package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth"
	"berth/api/client"
	"berth/wire"
)

// draining holds the flags of "berth machine drain".
type draining struct {
	reason   string
	deadline time.Duration // 0: running jobs may run to their end
	pool     string
	labels   map[string]string
	wait     bool
	timeout  time.Duration // of the wait; 0: none
}

// newMachineDrain builds "berth machine drain" over POST /v1/machines/{id}/drain. A repeat
// changes reason and deadline and has no further effect.
func newMachineDrain(a *app) *cobra.Command {
	var d draining
	cmd := &cobra.Command{
		Use:   "drain [MACHINE...]",
		Short: "Drain machines: place no new work on them",
		Long: "Drain places no new work on machines: the named ones, or all machines of a pool or with labels.\n" +
			"Running jobs are notified at once and continue to their end; with --deadline, jobs that still\n" +
			"run then are asked to checkpoint and stop, and resume on other machines. A machine is drained\n" +
			"once it holds no work, and may be switched off.",
		Example: "  berth machine drain m-1 --reason 'new disk' --deadline 2h --wait\n" +
			"  berth machine drain --pool spot --label rack=r7 --reason 'power work'",
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: a.completeMachines,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := refuseEmpty(cmd, "pool"); err != nil {
				return err
			}
			return d.run(cmd.Context(), a, args)
		},
	}
	f := cmd.Flags()
	f.StringVar(&d.reason, "reason", "", "reason, shown with the machine and to its jobs")
	f.DurationVar(&d.deadline, "deadline", 0, "move running jobs away after this (default: never)")
	f.StringVar(&d.pool, "pool", "", "drain the machines of this pool")
	filterVar(f, &d.labels, "label", "l", "drain the machines with these labels: KEY=VALUE")
	f.BoolVar(&d.wait, "wait", false, "wait until the machines are drained")
	f.DurationVar(&d.timeout, "timeout", 0, "with --wait: stop waiting after this, such as 2h; the drain continues")
	return cmd
}

// run drains the machines and waits for them if asked. A machine that cannot be drained ends
// the command; machines before it stay drained, and a repeat has no further effect on them.
func (d draining) run(ctx context.Context, a *app, args []string) error {
	if err := d.check(args); err != nil {
		return err
	}
	c, err := a.client()
	if err != nil {
		return err
	}
	ids, err := d.machines(ctx, c, args)
	if err != nil {
		return a.failed(ctx, err)
	}
	order := wire.DrainRequest{Reason: d.reason}
	if d.deadline > 0 {
		// The API takes a point in time, by this machine's clock, so a repeated call
		// does not extend the deadline.
		at := a.now().Add(d.deadline).UTC()
		order.Deadline = &at
	}
	drained := make([]wire.Machine, len(ids))
	for i, id := range ids {
		if drained[i], err = c.Drain(ctx, id, order); err != nil {
			return a.failed(ctx, err)
		}
		// The end of the wait shows the machines that are drained already.
		if d.wait && drained[i].State == berth.MachineDraining {
			a.say("%s", drainText(drained[i], a.now()))
		}
	}
	if d.wait {
		if err := d.await(ctx, a, c, drained); err != nil {
			return err
		}
	}
	return showDrained(a, drained, len(args) == 1)
}

// check reports contradictions of flags and arguments.
func (d draining) check(args []string) error {
	switch selects := d.pool != "" || len(d.labels) > 0; {
	case d.deadline < 0:
		return usagef("--deadline %s is negative", d.deadline)
	case d.timeout < 0:
		return usagef("--timeout %s is negative", d.timeout)
	case d.timeout > 0 && !d.wait:
		return usagef("--timeout needs --wait")
	case len(args) == 0 && !selects:
		return usagef("berth machine drain needs a MACHINE, --pool or --label")
	case len(args) > 0 && selects:
		return usagef("machine names and --pool or --label exclude each other")
	}
	for _, name := range args {
		if _, err := berth.ParseMachineID(name); err != nil {
			return usagef("%v", err)
		}
	}
	return nil
}

// machines returns the machines to drain: the named ones, or the ones with pool and labels. Lost
// machines run nothing and cannot be drained, so a selection leaves them out.
func (d draining) machines(ctx context.Context, c *client.Client, args []string) ([]berth.MachineID, error) {
	var ids []berth.MachineID
	for _, name := range args {
		ids = append(ids, berth.MachineID(name))
	}
	if len(args) > 0 {
		return ids, nil
	}
	q := client.MachineQuery{Pool: d.pool}
	for key, value := range d.labels {
		q.Labels = append(q.Labels, key+"="+value)
	}
	list, err := c.FindMachines(ctx, q)
	if err != nil {
		return nil, err
	}
	for _, m := range list.Items {
		if m.State != berth.MachineLost {
			ids = append(ids, m.ID)
		}
	}
	if len(ids) == 0 {
		return nil, berth.Errorf(berth.CodeNotFound, "no machine matches pool %q and labels %q", d.pool,
			pairs(d.labels))
	}
	return ids, nil
}

// await polls the machines until all are drained, and reports each change. list is updated to
// the machines as last seen. A machine that leaves the drain, because somebody undrained it or
// it was lost, ends the wait with a conflict.
func (d draining) await(ctx context.Context, a *app, c *client.Client, list []wire.Machine) error {
	waiting := ctx
	if d.timeout > 0 {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeout(ctx, d.timeout)
		defer cancel()
	}
	for pause := pollFirst; ; pause = min(pause*5/4, pollLast) {
		var left []string
		for _, m := range list {
			if m.State != wire.MachineDrained {
				left = append(left, drainText(m, a.now()))
			}
		}
		if len(left) == 0 {
			return nil
		}
		select {
		case <-waiting.Done():
			return d.interrupted(ctx, a, left)
		case <-time.After(pause):
		}
		for i, before := range list {
			if before.State == wire.MachineDrained {
				continue
			}
			m, err := c.Machine(waiting, before.ID)
			switch {
			case errors.Is(err, context.DeadlineExceeded) && waiting.Err() != nil, ctx.Err() != nil:
				return d.interrupted(ctx, a, left)
			case err != nil:
				return a.failed(ctx, err)
			case m.State != berth.MachineDraining && m.State != wire.MachineDrained:
				return berth.Errorf(berth.CodeConflict, "machine %s is %s and no longer drains", m.ID, m.State)
			}
			list[i] = m
			if m.State == wire.MachineDrained || len(m.Jobs) != len(before.Jobs) {
				a.say("%s", drainText(m, a.now()))
			}
		}
	}
}

// interrupted returns the error of a wait that ended before the machines were drained.
func (d draining) interrupted(ctx context.Context, a *app, left []string) error {
	if ctx.Err() != nil {
		a.say("the drain continues: %s", strings.Join(left, "; "))
		return ctx.Err()
	}
	return &timeoutError{
		message: fmt.Sprintf("timed out after %s; %s", d.timeout, strings.Join(left, "; ")),
		hint:    "repeat the command to wait again, or undrain: berth machine undrain MACHINE",
	}
}

// drainText reports how far the drain of a machine is.
func drainText(m wire.Machine, now time.Time) string {
	if m.State != berth.MachineDraining {
		return fmt.Sprintf("%s is %s", m.ID, m.State)
	}
	text := fmt.Sprintf("%s is draining: %s", m.ID, workLeft(m))
	if m.Deadline != nil && len(m.Jobs) > 0 {
		text += ", deadline " + ago(*m.Deadline, now)
	}
	return text
}

// workLeft names the work for which a draining machine is not drained yet. Members of one gang
// are one job. Callers other than admins see their own jobs only, but the capacity in use of all.
func workLeft(m wire.Machine) string {
	jobs := map[berth.JobID]bool{}
	for _, j := range m.Jobs {
		jobs[j.Job] = true
	}
	switch {
	case len(jobs) > 0:
		return plural(len(jobs), "job", "jobs") + " left"
	case m.Free.CPUMilli < m.Capacity.CPUMilli:
		return "jobs of other tenants left"
	}
	return "waiting for logs, outputs or the removal of containers"
}

// showDrained prints the machines after a drain. A single named machine is printed by programs
// as itself, a selection as a list.
func showDrained(a *app, list []wire.Machine, single bool) error {
	names := make([]string, len(list))
	for i, m := range list {
		names[i] = string(m.ID)
	}
	v := view{body: wire.Page[wire.Machine]{Items: list}, names: names, table: func(bool) error {
		for _, m := range list {
			fmt.Fprintln(a.out, drainText(m, a.now()))
		}
		return nil
	}}
	if single {
		v.body = list[0]
	}
	return a.show(v)
}
