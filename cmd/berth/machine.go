package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth"
	"berth/api/client"
	"berth/spec"
	"berth/wire"
)

// newMachineList builds the command that lists machines, over GET /v1/machines. The command
// exists twice, as "berth machines" and as "berth machine list", because users try both.
func newMachineList(a *app, use string) *cobra.Command {
	return &cobra.Command{
		Use:   use,
		Short: "List machines with their free capacity",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			list, err := c.Machines(cmd.Context())
			if err != nil {
				return a.failed(cmd.Context(), err)
			}
			return showMachines(a, list)
		},
	}
}

// showMachines prints the machines that are not retired, with free and total amounts. Wide
// adds the columns that matter when a machine itself is examined.
func showMachines(a *app, list wire.Page[wire.Machine]) error {
	names := make([]string, len(list.Items))
	for i, m := range list.Items {
		names[i] = string(m.ID)
	}
	return a.show(view{body: list, names: names, table: func(wide bool) error {
		if len(list.Items) == 0 {
			a.say("no machines; create a join token for one: berth join-token create")
			return nil
		}
		// Without GPUs their columns would push the reasons over the edge of a terminal.
		gpus := wide || slices.ContainsFunc(list.Items, hasGPUs)
		t := table{screen: a.outTerm, head: []string{"MACHINE", "STATE", "CPUS FREE", "MEMORY FREE", "GPUS FREE",
			"MODEL", "SEEN", "REASON"}}
		if !gpus {
			t.head = slices.Delete(t.head, 4, 6)
		}
		if wide {
			t.head = []string{"MACHINE", "STATE", "CPUS FREE", "MEMORY FREE", "DISK FREE", "GPUS FREE", "MODEL",
				"SEEN", "POOL", "REGION", "SITE", "LABELS", "ENGINE", "VERSION", "FLOORS", "REASON"}
		}
		for _, m := range list.Items {
			cells := []any{string(m.ID), cell{string(m.State), toneOfMachine(m)}, ofCPUs(m),
				ofMemory(m.Free.MemoryMiB, m.Capacity.MemoryMiB)}
			if wide {
				cells = append(cells, ofMemory(m.Free.DiskMiB, m.Capacity.DiskMiB))
			}
			if gpus {
				cells = append(cells, ofGPUs(m), modelsText(m))
			}
			cells = append(cells, since(m.SeenAt, a.now()))
			if wide {
				cells = append(cells, orDash(m.Pool), orDash(m.Region), orDash(m.Site), orDash(pairs(m.Labels)),
					orDash(m.Engine), orDash(m.Version), floorsText(m))
			}
			// The column is cut at the edge of a terminal, so the deadline follows the
			// reason.
			t.add(append(cells, stateReason(m, a.now()))...)
		}
		return t.write(a.out)
	}})
}

// stateReason formats the reason of a machine's state for a list: a draining machine with the
// work left and the deadline.
func stateReason(m wire.Machine, now time.Time) string {
	reason := oneLine(m.Reason)
	if m.State == berth.MachineDraining {
		reason += "; " + workLeft(m)
	}
	if m.State == berth.MachineDraining && m.Deadline != nil {
		reason += " (deadline " + ago(*m.Deadline, now) + ")"
	}
	return reason
}

// ofCPUs formats free and total cores. The API counts thousandths of a core.
func ofCPUs(m wire.Machine) string {
	return fmt.Sprintf("%s of %s", spec.MilliCPU(m.Free.CPUMilli), spec.MilliCPU(m.Capacity.CPUMilli))
}

// ofMemory formats a free and a total amount of memory or disk, both in MiB.
func ofMemory(free, all int64) string {
	return fmt.Sprintf("%s of %s", bytesOf(free<<20), bytesOf(all<<20))
}

// ofGPUs formats free and total GPUs, which the API counts in thousandths, since jobs may
// share a GPU; "-" for a machine without GPUs.
func hasGPUs(m wire.Machine) bool { return m.Capacity.GPUMilli > 0 || len(m.GPUs) > 0 }

func ofGPUs(m wire.Machine) string {
	if m.Capacity.GPUMilli == 0 {
		return "-"
	}
	return fmt.Sprintf("%s of %s", spec.MilliGPU(m.Free.GPUMilli), spec.MilliGPU(m.Capacity.GPUMilli))
}

// modelsText counts a machine's GPUs by model, in the order of devices. GPUs that a file
// declares are marked: no hardware was read.
func modelsText(m wire.Machine) string {
	var models []string
	count := map[string]int{}
	for _, g := range m.GPUs {
		if count[g.Model]++; count[g.Model] == 1 {
			models = append(models, g.Model)
		}
	}
	for i, model := range models {
		models[i] = fmt.Sprintf("%d x %s", count[model], model)
	}
	text := orDash(strings.Join(models, ", "))
	if m.Declared {
		text += " (declared)"
	}
	return text
}

// newMachine builds "berth machine", the commands for operators about one machine.
func newMachine(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "machine", Short: "Show, approve, drain and remove machines"}
	cmd.AddCommand(newMachineList(a, "list"), newMachineShow(a), newMachineEvents(a),
		newMachineDrain(a), newMachineUndrain(a), newMachineTaint(a), newMachineWaive(a), newMachineUnwaive(a),
		newMachineApprove(a),
		newMachineConfirmDead(a), newMachineRemove(a), newMachineLaunch(a), newMachineLaunches(a),
		newMachineTerminate(a))
	return cmd
}

// onMachine completes a command about one machine: the argument is the machine's name, and
// do makes the call. A machine has one exact name, so there is no search as for jobs.
func onMachine(a *app, cmd *cobra.Command,
	do func(ctx context.Context, c *client.Client, id berth.MachineID) error) *cobra.Command {
	cmd.Args = cobra.ExactArgs(1)
	cmd.ValidArgsFunction = a.completeMachines
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		id, err := berth.ParseMachineID(args[0])
		if err != nil {
			return usagef("%v", err)
		}
		c, err := a.client()
		if err != nil {
			return err
		}
		return a.failed(cmd.Context(), do(cmd.Context(), c, id))
	}
	return cmd
}

// newMachineShow builds "berth machine show" over GET /v1/machines/{id}.
func newMachineShow(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "show MACHINE", Short: "Show a machine, its GPUs and its jobs"}
	return onMachine(a, cmd, func(ctx context.Context, c *client.Client, id berth.MachineID) error {
		m, err := c.Machine(ctx, id)
		if berth.CodeOf(err) == berth.CodeNotFound {
			return showLaunchOf(ctx, a, c, id, err)
		}
		if err != nil {
			return err
		}
		return showMachine(a, m)
	})
}

// showMachine prints one machine with its GPUs and its jobs.
func showMachine(a *app, m wire.Machine) error {
	return a.show(view{body: m, names: []string{string(m.ID)}, table: func(wide bool) error {
		return describeMachine(a, m, wide)
	}})
}

// describeMachine prints a machine for people: a sheet, then the GPUs and the jobs, each
// only if the machine has any.
func describeMachine(a *app, m wire.Machine, wide bool) error {
	s := sheet{screen: a.outTerm}
	s.add("machine", string(m.ID))
	s.add("state", a.outTerm.paint(toneOfMachine(m), string(m.State)))
	s.add("reason", oneLine(m.Reason))
	s.add("since", stamp(m.StateAt, a.now()))
	s.add("drained by", oneLine(m.DrainBy))
	if m.State == berth.MachineDraining {
		s.add("waits for", workLeft(m))
	}
	s.add("deadline", stamp(m.Deadline, a.now()))
	if w := m.Maintenance; w != nil {
		s.add("maintenance", fmt.Sprintf("window %d, %s to %s (%s)", w.ID, instant(w.From), instant(w.Until),
			oneLine(w.Reason)))
	}
	s.add("seen", stamp(m.SeenAt, a.now()))
	addCapacity(&s, m)
	if m.Approval != nil {
		s.add("approval", approvalText(m, a.now()))
	}
	s.add("pool", m.Pool)
	s.add("region", m.Region)
	s.add("site", m.Site)
	s.add("labels", oneLine(pairs(m.Labels)))
	s.add("taints", oneLine(strings.Join(m.Taints, ", ")))
	// Zero means that the machine cannot fence and gets no at_most_one work.
	if m.Fence > 0 {
		s.add("fence", "stops at_most_one jobs after "+m.Fence.String()+" without contact")
	}
	s.add("engine", oneLine(m.Engine))
	s.add("agent", oneLine(m.Version))
	addSecurity(&s, m, a.now())
	if wide {
		// The epoch identifies the agent's present registration; calls of an earlier one
		// are refused.
		s.add("epoch", fmt.Sprint(m.Epoch))
	}
	if err := s.write(a.out); err != nil {
		return err
	}
	if len(m.GPUs) > 0 {
		fmt.Fprintln(a.out)
		if err := gpuTable(a, m).write(a.out); err != nil {
			return err
		}
	}
	return describeWork(a, m, wide)
}

// addCapacity adds the free capacity of a machine.
func addCapacity(s *sheet, m wire.Machine) {
	s.add("cpus free", ofCPUs(m))
	s.add("memory free", ofMemory(m.Free.MemoryMiB, m.Capacity.MemoryMiB))
	s.add("disk free", ofMemory(m.Free.DiskMiB, m.Capacity.DiskMiB))
	s.add("gpus free", ofGPUs(m))
	if m.Declared {
		s.add("inventory", "GPUs are declared by a file, not read from hardware")
	}
}

// describeWork prints the images and the jobs of a machine, each only if it has any.
func describeWork(a *app, m wire.Machine, wide bool) error {
	if len(m.Images) > 0 {
		fmt.Fprintln(a.out)
		if err := imageTable(a, m.Images).write(a.out); err != nil {
			return err
		}
	}
	if len(m.Jobs) == 0 {
		return nil
	}
	fmt.Fprintln(a.out)
	t := table{screen: a.outTerm, head: []string{"JOB", "NAME", "TENANT", "ATTEMPT", "MEMBER", "STATE", "PHASE"}}
	for _, j := range m.Jobs {
		id := handle(wire.Job{ID: j.Job, Handle: j.Handle})
		if wide {
			id = string(j.Job)
		}
		t.add(id, j.Name, string(j.Tenant), fmt.Sprint(j.Attempt), fmt.Sprint(j.Rank), string(j.State), string(j.Phase))
	}
	return t.write(a.out)
}

// imageTable returns the table of the images that a machine holds, as far as recent jobs name
// them.
func imageTable(a *app, images []wire.MachineImage) *table {
	t := &table{screen: a.outTerm, head: []string{"IMAGE", "SIZE", "TENANT"}}
	for _, i := range images {
		t.add(oneLine(i.Image), bytesOf(i.MiB<<20), string(i.Tenant))
	}
	return t
}

// gpuTable returns the table of a machine's GPUs. IN USE is the reserved share of a GPU,
// not its measured load; the API counts thousandths.
func gpuTable(a *app, m wire.Machine) *table {
	handles := map[berth.JobID]string{}
	for _, j := range m.Jobs {
		handles[j.Job] = j.Handle
	}
	t := &table{screen: a.outTerm, head: []string{"GPU", "MODEL", "MEMORY", "IN USE", "HEALTH", "UUID", "JOBS"}}
	for _, g := range m.GPUs {
		health := cell{"healthy", good}
		if !g.Healthy {
			health = cell{"failed: " + orDash(g.Reason), bad}
		}
		jobs := make([]string, len(g.Jobs))
		for i, id := range g.Jobs {
			jobs[i] = handle(wire.Job{ID: id, Handle: handles[id]})
		}
		t.add(fmt.Sprint(g.Index), g.Model, bytesOf(g.MemoryMiB<<20), fmt.Sprintf("%d%%", g.UsedMilli/10), health,
			g.UUID, strings.Join(jobs, ","))
	}
	return t
}

// showChanged prints a machine after a change: a sentence for people, the machine itself
// for programs. An error of the change is returned unchanged, so that callers can pass both
// results of a call.
func showChanged(a *app, m wire.Machine, err error, said string) error {
	if err != nil {
		return err
	}
	return a.show(view{body: m, names: []string{string(m.ID)}, table: func(bool) error {
		_, err := fmt.Fprintln(a.out, said)
		return err
	}})
}

// newMachineUndrain builds "berth machine undrain" over POST /v1/machines/{id}/undrain.
func newMachineUndrain(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "undrain MACHINE", Short: "End a machine's drain"}
	return onMachine(a, cmd, func(ctx context.Context, c *client.Client, id berth.MachineID) error {
		m, err := c.Undrain(ctx, id)
		return showChanged(a, m, err, fmt.Sprintf("%s is %s", id, m.State))
	})
}

// newMachineConfirmDead builds "berth machine confirm-dead" over POST
// /v1/machines/{id}/confirm-dead. --yes is required because the control plane cannot verify
// the statement, and a wrong one lets an at_most_one job run twice at once.
func newMachineConfirmDead(a *app) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "confirm-dead MACHINE --yes",
		Short: "Confirm that an unreachable machine's containers have stopped",
		Long: "Confirm-dead releases the capacity of an unreachable machine, so that its jobs can run elsewhere. " +
			"The\n" +
			"operator confirms that none of its containers is running: switch the machine off first. A wrong\n" +
			"confirmation lets a job run twice at the same time.",
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "confirm: the machine is off, or its containers have stopped")
	return onMachine(a, cmd, func(ctx context.Context, c *client.Client, id berth.MachineID) error {
		if !yes {
			return &usageError{message: "confirm-dead needs --yes",
				hint: "it confirms that no container on " + string(id) + " is running; switch the machine off first"}
		}
		dead, err := c.ConfirmDead(ctx, id)
		if err != nil {
			return err
		}
		// -o name prints the released jobs, for a script that watches their new starts.
		names := make([]string, len(dead.Jobs))
		for i, j := range dead.Jobs {
			names[i] = string(j)
		}
		return a.show(view{body: dead, names: names, table: func(bool) error {
			_, err := fmt.Fprintf(a.out, "%s is %s; %s can run elsewhere now\n", id, dead.Machine.State,
				plural(len(dead.Jobs), "job", "jobs"))
			return err
		}})
	})
}

// newMachineRemove builds "berth machine remove" over DELETE /v1/machines/{id}. The server
// refuses a machine that still holds work (exit code 4).
func newMachineRemove(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "remove MACHINE",
		Aliases: []string{"rm"},
		Short:   "Remove an empty machine permanently",
		Long: "Remove retires a machine: its credential is revoked and it is no longer listed. The machine must run " +
			"no jobs; drain it first.",
	}
	return onMachine(a, cmd, func(ctx context.Context, c *client.Client, id berth.MachineID) error {
		if err := c.RemoveMachine(ctx, id); err != nil {
			return err
		}
		_, err := fmt.Fprintf(a.out, "%s is retired\n", id)
		return err
	})
}
