package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"berth"
	"berth/api/client"
	"berth/spec"
	"berth/wire"
)

// topFlags are the flags of berth top.
type topFlags struct {
	query client.MachineQuery
	gpus  bool
	watch bool
	sort  string
}

// topOrders are the values of --sort.
var topOrders = []string{"name", "cpu", "memory", "gpu"}

// newTop builds "berth top" over GET /v1/machines.
func newTop(a *app) *cobra.Command {
	var flags topFlags
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show the measured use of machines and GPUs next to the reserved amounts",
		Long: "Top prints the measured use of each machine's jobs, the amounts that jobs have reserved (RESV), and\n" +
			"the capacity; with --gpus the same for each GPU. Agents measure every few seconds. A machine whose\n" +
			"agent has not reported for two minutes has \"-\" in place of the use.",
		Example: "  berth top --watch\n  berth top --gpus --sort gpu\n  berth top --pool a100 -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains(topOrders, flags.sort) {
				return usagef("--sort %q is not known; allowed: name, cpu, memory or gpu", flags.sort)
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			if !flags.watch {
				list, err := flags.read(cmd.Context(), a, c)
				if err != nil {
					return err
				}
				return showTop(a, list, flags)
			}
			return watchScreen(cmd.Context(), a, "programs read berth top -o json", func() error {
				list, err := flags.read(cmd.Context(), a, c)
				if err != nil {
					return err
				}
				clearScreen(a, "Ctrl-C ends")
				return showTop(a, list, flags)
			})
		},
	}
	f := cmd.Flags()
	f.BoolVar(&flags.gpus, "gpus", false, "show each GPU")
	f.StringVar(&flags.sort, "sort", "name", "order: name, or most used first by cpu, memory or gpu")
	f.StringVar(&flags.query.Pool, "pool", "", "filter by pool")
	f.StringArrayVarP(&flags.query.Labels, "label", "l", nil, "filter by label: KEY=VALUE; all must match")
	f.BoolVar(&flags.watch, "watch", false, "show the screen again every 2 seconds until Ctrl-C; only on a terminal")
	_ = cmd.RegisterFlagCompletionFunc("sort", cobra.FixedCompletions(topOrders, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// read returns the machines in the order of --sort.
func (f topFlags) read(ctx context.Context, a *app, c *client.Client) (wire.Page[wire.Machine], error) {
	list, err := c.FindMachines(ctx, f.query)
	if err != nil {
		return list, a.failed(ctx, err)
	}
	// The sort is stable, and the server lists machines by name.
	slices.SortStableFunc(list.Items, func(x, y wire.Machine) int {
		return cmp.Compare(topValue(y, f.sort), topValue(x, f.sort))
	})
	return list, nil
}

// topValue returns the measured use by which a machine is sorted; machines without one come last.
func topValue(m wire.Machine, order string) float64 {
	switch {
	case order == "name":
		return 0
	case m.Measured == nil:
		return -1
	case order == "cpu":
		return float64(m.Measured.CPUMilli)
	case order == "memory":
		return float64(m.Measured.MemoryMiB)
	}
	busy, known := gpusBusy(m)
	if !known {
		return -1
	}
	return busy
}

// gpusBusy sums the busy shares of a machine's GPUs: 1.5 is one and a half busy GPUs.
func gpusBusy(m wire.Machine) (sum float64, known bool) {
	if m.Measured == nil {
		return 0, false
	}
	for _, g := range m.Measured.GPUs {
		if g.Busy != nil {
			sum, known = sum+*g.Busy, true
		}
	}
	return sum, known
}

// showTop prints machines, or their GPUs.
func showTop(a *app, list wire.Page[wire.Machine], f topFlags) error {
	names := make([]string, len(list.Items))
	for i, m := range list.Items {
		names[i] = string(m.ID)
	}
	return a.show(view{body: list, names: names, table: func(bool) error {
		t := topMachines(a, list.Items)
		if f.gpus {
			t = topGPUs(a, list.Items, f.sort)
		}
		switch {
		case len(list.Items) == 0:
			a.say("no machines")
			return nil
		case len(t.rows) == 0:
			a.say("no GPUs")
			return nil
		}
		return t.write(a.out)
	}})
}

// topMachines is the table of machines. Amounts are used/reserved/capacity.
func topMachines(a *app, list []wire.Machine) *table {
	t := &table{screen: a.outTerm, head: []string{"MACHINE", "STATE", "CPUS USE/RESV/ALL",
		"GIB USE/RESV/ALL", "GPUS USE/RESV/ALL", "JOBS"}, shrinks: []string{"MACHINE"}, drops: "STATE"}
	for _, m := range list {
		cpus, memory, gpus := "-", "-", "-"
		// An unknown use is "-", never 0: an idle machine and a silent agent must look different.
		if u := m.Measured; u != nil {
			cpus, memory = fmt.Sprintf("%.1f", float64(u.CPUMilli)/1000), gib(u.MemoryMiB)
		}
		if busy, known := gpusBusy(m); known {
			gpus = fmt.Sprintf("%.1f", busy)
		}
		gpuText := fmt.Sprintf("%s/%s/%s", gpus, spec.MilliGPU(m.Used.GPUMilli), spec.MilliGPU(m.Capacity.GPUMilli))
		if m.Capacity.GPUMilli == 0 {
			gpuText = "-"
		}
		t.add(string(m.ID), cell{string(m.State), toneOfMachine(m)},
			fmt.Sprintf("%s/%s/%s", cpus, spec.MilliCPU(m.Used.CPUMilli), spec.MilliCPU(m.Capacity.CPUMilli)),
			fmt.Sprintf("%s/%s/%s", memory, gib(m.Used.MemoryMiB), gib(m.Capacity.MemoryMiB)),
			gpuText, fmt.Sprint(jobsOn(m)))
	}
	return t
}

// gib formats an amount in MiB as GiB: with at most one decimal, and none from 100 GiB on.
func gib(mib int64) string {
	text := fmt.Sprintf("%.1f", float64(mib)/1024)
	if whole, _, _ := strings.Cut(text, "."); len(whole) > 2 {
		text = fmt.Sprintf("%.0f", float64(mib)/1024)
	}
	return strings.TrimSuffix(text, ".0")
}

// jobsOn counts the jobs on a machine that the caller may see; members of one gang are one job.
func jobsOn(m wire.Machine) int {
	jobs := map[berth.JobID]bool{}
	for _, j := range m.Jobs {
		jobs[j.Job] = true
	}
	return len(jobs)
}

// gpuRow is one line of the table of GPUs.
type gpuRow struct {
	machine berth.MachineID
	gpu     wire.MachineGPU
	now     wire.GPUNow
}

// topGPUs is the table of GPUs, by machine and index or by use.
func topGPUs(a *app, list []wire.Machine, order string) *table {
	var rows []gpuRow
	for _, m := range list {
		for _, g := range m.GPUs {
			row := gpuRow{machine: m.ID, gpu: g}
			if m.Measured != nil {
				// By UUID: the index of a device may change when its machine starts again.
				i := slices.IndexFunc(m.Measured.GPUs, func(n wire.GPUNow) bool { return n.UUID == g.UUID })
				if i >= 0 {
					row.now = m.Measured.GPUs[i]
				}
			}
			rows = append(rows, row)
		}
	}
	// Stable: devices with equal values keep the order by machine and index.
	slices.SortStableFunc(rows, func(x, y gpuRow) int { return cmp.Compare(y.value(order), x.value(order)) })
	t := &table{screen: a.outTerm, head: []string{"MACHINE", "GPU", "MODEL", "BUSY", "RESERVED",
		"GIB USE/ALL", "JOBS", "HEALTH"}, shrinks: []string{"MODEL"}}
	for _, r := range rows {
		busy, memory := "-", "-"
		if r.now.Busy != nil {
			busy = fmt.Sprintf("%.0f %%", 100**r.now.Busy)
		}
		if r.now.MemoryMiB != nil {
			memory = gib(*r.now.MemoryMiB)
		}
		health := cell{"healthy", good}
		if !r.gpu.Healthy {
			health = cell{"unhealthy: " + r.gpu.Reason, bad}
		}
		t.add(string(r.machine), fmt.Sprint(r.gpu.Index), r.gpu.Model, busy,
			fmt.Sprintf("%d %%", r.gpu.UsedMilli/10), fmt.Sprintf("%s/%s", memory, gib(r.gpu.MemoryMiB)),
			fmt.Sprint(len(r.gpu.Jobs)), health)
	}
	return t
}

// value is the measured use by which a GPU is sorted; devices without one come last. The CPUs
// order machines alone.
func (r gpuRow) value(order string) float64 {
	switch {
	case order == "gpu" && r.now.Busy != nil:
		return *r.now.Busy
	case order == "memory" && r.now.MemoryMiB != nil:
		return float64(*r.now.MemoryMiB)
	case order == "gpu", order == "memory":
		return -1
	default:
		return 0
	}
}
