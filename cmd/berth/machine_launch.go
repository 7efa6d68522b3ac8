package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"berth"
	"berth/api/client"
	"berth/wire"
)

// newMachineLaunch builds "berth machine launch" over POST /v1/launches.
func newMachineLaunch(a *app) *cobra.Command {
	var r wire.LaunchRequest
	var name string
	cmd := &cobra.Command{
		Use:   "launch",
		Short: "Launch machines in a cloud",
		Long: "Launch requests machines from a provider in the --cloud file of berthd. The machines join\n" +
			"the pool by themselves, under names that begin with the pool's name.",
		Example: "  berth machine launch --pool burst --provider lab --type gpu-8 --region eu-1 --count 2\n" +
			"  berth machine launch --pool burst --provider lab --type gpu-8 --region eu-1 --market spot",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			r.Machine = berth.MachineID(name)
			// The client repeats a call without an answer. The key makes the repeat return the launches of the first
			// call, instead of launching machines twice.
			if r.Key == "" {
				r.Key = berth.NewSecret()[:16]
			}
			list, err := c.Launch(cmd.Context(), r)
			if err != nil {
				return a.failed(cmd.Context(), err)
			}
			return showLaunches(a, list)
		},
	}
	f := cmd.Flags()
	f.StringVar(&r.Pool, "pool", "", "pool that the machines join (required)")
	f.StringVar(&r.Provider, "provider", "", "name of a provider in berthd's --cloud file (required)")
	f.StringVar(&r.Type, "type", "", "the cloud's name of the machine type (required)")
	f.StringVar(&r.Region, "region", "", "region (required)")
	f.StringVar(&r.Zone, "zone", "", "zone (default: the cloud chooses)")
	f.StringVar(&r.Market, "market", "on_demand", "on_demand, or spot (the cloud may take the machine back)")
	f.Float64Var(&r.Price, "price", 0, "price in US dollars an hour, for the record")
	f.IntVar(&r.Count, "count", 1, fmt.Sprintf("number of machines, at most %d", wire.MaxLaunches))
	f.StringVar(&name, "machine", "", "name of the machine, with a count of 1 (default: derived from the pool's name)")
	f.BoolVar(&r.Force, "force", false, "launch although the cloud refused the offering a short time ago")
	f.StringVar(&r.Key, "key", "", "idempotency key; a repeated launch with the same key returns the existing launches")
	for _, required := range []string{"pool", "provider", "type", "region"} {
		_ = cmd.MarkFlagRequired(required)
	}
	return cmd
}

// newMachineLaunches builds "berth machine launches" over GET /v1/launches.
func newMachineLaunches(a *app) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "launches [MACHINE]",
		Short: "List requests for machines of clouds, with their states",
		Long: "Launches lists requests for machines of clouds. A launch is unresolved if it is not known whether\n" +
			"an instance exists, and gone once the cloud has reported the instance as terminated twice.",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeMachines,
		RunE: func(cmd *cobra.Command, args []string) error {
			var id berth.MachineID
			if len(args) > 0 {
				var err error
				if id, err = berth.ParseMachineID(args[0]); err != nil {
					return usagef("%v", err)
				}
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			list, err := c.Launches(cmd.Context(), id, all)
			if err != nil {
				return a.failed(cmd.Context(), err)
			}
			return showLaunches(a, list)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "also launches that are gone or failed")
	return cmd
}

// showLaunches prints launches.
func showLaunches(a *app, list wire.Page[wire.Launch]) error {
	names := make([]string, len(list.Items))
	for i, l := range list.Items {
		names[i] = string(l.Machine)
	}
	return a.show(view{body: list, names: names, table: func(bool) error {
		t := table{screen: a.outTerm, head: []string{"MACHINE", "N", "STATE", "AGE", "POOL", "PROVIDER", "REGION",
			"TYPE", "MARKET", "$/H", "COST", "TENANT", "INSTANCE", "REASON"}}
		for _, l := range list.Items {
			region := l.Region
			if l.Zone != "" {
				region += "/" + l.Zone
			}
			price, cost := "-", "-"
			// Price 0 means unknown, not free, so the cost is unknown too.
			if l.Price > 0 {
				price, cost = fmt.Sprintf("%.2f", l.Price), fmt.Sprintf("%.2f", l.Cost)
			}
			instance := l.Instance
			if instance == "" {
				instance = "-"
			}
			reason := l.Reason
			// The reason often is the last error of the cloud; it is printed once.
			if l.Error != "" && reason != l.Error {
				reason += " " + l.Error
			}
			t.add(string(l.Machine), fmt.Sprint(l.N), l.State, span(a.now().Sub(l.StateAt)), l.Pool, l.Provider,
				oneLine(region), oneLine(l.Type), l.Market, price, cost, orDash(string(l.Tenant)), oneLine(instance),
				oneLine(reason))
		}
		return t.write(a.out)
	}})
}

// newMachineTerminate builds "berth machine terminate" over POST /v1/launches/{machine}/terminate.
func newMachineTerminate(a *app) *cobra.Command {
	var r wire.TerminateRequest
	var deadline time.Duration
	cmd := &cobra.Command{
		Use:   "terminate MACHINE",
		Short: "Drain a machine of a cloud and terminate its instance",
		Long: "Terminate places no new work on a machine that Berth launched, waits until it holds none, retires\n" +
			"the machine, and terminates its instance. With --deadline, jobs that still run then are asked to\n" +
			"checkpoint and stop. The command returns at once; \"berth machine launches\" shows the progress.",
		Example: "  berth machine terminate burst-1f2e3d4c --deadline 30m\n" +
			"  berth machine terminate burst-1f2e3d4c --now",
	}
	f := cmd.Flags()
	f.StringVar(&r.Reason, "reason", "", "reason, shown with the machine and to its jobs")
	f.DurationVar(&deadline, "deadline", 0, "time until running jobs are moved away (default: never)")
	f.BoolVar(&r.IfIdle, "now", false, "terminate only if no work is on the machine, and fail otherwise")
	f.BoolVar(&r.ConfirmAbsent, "confirm-absent", false,
		"confirm that the cloud has no instance of an unresolved or terminating launch")
	return onMachine(a, cmd, func(ctx context.Context, c *client.Client, id berth.MachineID) error {
		if deadline > 0 {
			at := a.now().Add(deadline).UTC()
			r.Deadline = &at
		}
		l, err := c.Terminate(ctx, id, r)
		if err != nil {
			return err
		}
		return showLaunches(a, wire.Page[wire.Launch]{Items: []wire.Launch{l}})
	})
}

// showLaunchOf prints the launch of a machine that has not joined. Without one it returns missing, the error
// of the machine's look-up.
func showLaunchOf(ctx context.Context, a *app, c *client.Client, id berth.MachineID, missing error) error {
	list, err := c.Launches(ctx, id, false)
	if err != nil || len(list.Items) == 0 {
		return missing
	}
	return showLaunches(a, list)
}
