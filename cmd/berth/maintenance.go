package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth"
	"berth/api/client"
	"berth/spec"
	"berth/wire"
)

// newMaintenance builds "berth maintenance": drains that are planned ahead.
func newMaintenance(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "maintenance", Short: "Plan maintenance windows of machines"}
	cmd.AddCommand(newMaintenanceList(a), newMaintenanceCreate(a), newMaintenanceChange(a),
		newMaintenanceVerb(a, "show", "Show a maintenance window and its machines", (*client.Client).Maintenance),
		newMaintenanceVerb(a, "cancel", "Cancel a maintenance window before its machines close",
			(*client.Client).CancelMaintenance),
		newMaintenanceVerb(a, "end", "End a maintenance window early", (*client.Client).EndMaintenance))
	return cmd
}

// newMaintenanceList builds "berth maintenance list" over GET /v1/maintenance.
func newMaintenanceList(a *app) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List maintenance windows",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			list, err := c.MaintenanceWindows(cmd.Context(), all)
			if err != nil {
				return a.failed(cmd.Context(), err)
			}
			names := make([]string, len(list.Items))
			for i, x := range list.Items {
				names[i] = strconv.FormatInt(x.ID, 10)
			}
			return a.show(view{body: list, names: names, table: func(bool) error {
				t := table{screen: a.outTerm, head: []string{"WINDOW", "STATE", "FROM", "UNTIL", "MACHINES", "REASON"}}
				for _, x := range list.Items {
					t.add(strconv.FormatInt(x.ID, 10), x.State, instant(x.From), instant(x.Until), windowMachines(x),
						oneLine(x.Reason))
				}
				return t.write(a.out)
			}})
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "also windows that have ended or were canceled")
	return cmd
}

// instant formats a planned time.
func instant(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

// windowMachines lists a few machines of a window.
func windowMachines(x wire.Maintenance) string {
	const most = 3
	var names []string
	for _, m := range x.Machines[:min(len(x.Machines), most)] {
		names = append(names, string(m.Machine))
	}
	if more := len(x.Machines) - most; more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}

// newMaintenanceVerb builds a command whose only argument is the number of a window.
func newMaintenanceVerb(a *app, verb, short string,
	call func(*client.Client, context.Context, int64) (wire.Maintenance, error)) *cobra.Command {
	return &cobra.Command{
		Use:               verb + " WINDOW",
		Short:             short,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeWindows(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := windowID(args[0])
			if err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			x, err := call(c, cmd.Context(), id)
			if err != nil {
				return a.failed(cmd.Context(), err)
			}
			return showMaintenance(a, x)
		},
	}
}

// completeWindows offers the numbers of the windows that have not ended, each with its reason.
func completeWindows(a *app) completer {
	return a.completeNames(false, func(ctx context.Context, c *client.Client) ([]candidateName, error) {
		page, err := c.MaintenanceWindows(ctx, false)
		var list []candidateName
		for _, w := range page.Items {
			list = append(list, candidateName{strconv.FormatInt(w.ID, 10), w.State + ": " + w.Reason})
		}
		return list, err
	})
}

// windowID parses the number of a window.
func windowID(arg string) (int64, error) {
	id, err := strconv.ParseInt(arg, 10, 64)
	if err != nil || id < 1 {
		return 0, usagef("%q is not the number of a maintenance window, such as 3", arg)
	}
	return id, nil
}

// showMaintenance prints one window.
func showMaintenance(a *app, x wire.Maintenance) error {
	return a.show(view{body: x, names: []string{strconv.FormatInt(x.ID, 10)}, table: func(bool) error {
		s := sheet{screen: a.outTerm}
		s.add("window", strconv.FormatInt(x.ID, 10))
		s.add("state", x.State)
		s.add("reason", oneLine(x.Reason))
		s.add("closes", instant(x.ClosesAt)+"; then running jobs move")
		s.add("from", instant(x.From))
		s.add("until", instant(x.Until))
		s.add("lead", fmt.Sprintf("jobs without a time limit do not start in the %s before", x.Lead))
		after := "machines stay drained"
		if x.Undrain {
			after = "healthy machines return"
		}
		s.add("at the end", after)
		s.add("by", oneLine(x.By))
		if err := s.write(a.out); err != nil {
			return err
		}
		t := table{screen: a.outTerm, head: []string{"MACHINE", "STATE", "NOTE"}}
		for _, m := range x.Machines {
			t.add(string(m.Machine), m.State, oneLine(m.Note))
		}
		_, _ = fmt.Fprintln(a.out)
		return t.write(a.out)
	}})
}

// windowFlags are the flags of a window's times.
type windowFlags struct {
	from        string
	length      time.Duration
	grace, lead time.Duration
	undrain     bool
	reason      string
}

func (w *windowFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&w.from, "from", "", "start: a time with its zone, such as 2026-12-01T06:00:00Z, or now")
	f.DurationVar(&w.length, "for", 0, "length, such as 4h")
	f.DurationVar(&w.grace, "grace", time.Duration(spec.MaintenanceGrace),
		"time before the start at which the machines close and running jobs are asked to checkpoint and stop")
	f.DurationVar(&w.lead, "lead", time.Duration(spec.MaintenanceLead),
		"time before the machines close in which jobs without a time limit do not start")
	f.BoolVar(&w.undrain, "undrain", true, "return healthy machines to service at the end")
	f.StringVar(&w.reason, "reason", "", "reason, shown with the machines and to their jobs")
}

// start parses --from.
func (w *windowFlags) start(now time.Time) (time.Time, error) {
	if w.from == "now" {
		return now, nil
	}
	t, err := time.Parse(time.RFC3339, w.from)
	if err != nil {
		return t, usagef("--from %q is not a time with its zone, such as 2026-12-01T06:00:00Z, or now", w.from)
	}
	return t, nil
}

// newMaintenanceCreate builds "berth maintenance create" over POST /v1/maintenance.
func newMaintenanceCreate(a *app) *cobra.Command {
	var w windowFlags
	var m spec.NewMaintenance
	var machines []string
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Plan a maintenance window",
		Long: "Create plans a maintenance window of the named machines, or of all machines that now are in a pool\n" +
			"or have labels. Jobs that would still run when the machines close do not start on them. The\n" +
			"machines are drained before the start, and healthy ones return to service at the end.",
		Example: "  berth maintenance create --machine m-1 --machine m-2 --from 2026-12-01T06:00:00Z --for 4h " +
			"--reason 'new disks'\n" +
			"  berth maintenance create --label rack=r7 --from now --for 30m --reason 'power work'",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if err := refuseEmpty(cmd, "machine", "pool"); err != nil {
				return err
			}
			if m.From, err = w.start(a.now()); err != nil {
				return err
			}
			for _, name := range machines {
				m.Machines = append(m.Machines, berth.MachineID(name))
			}
			grace, lead := spec.Duration(w.grace), spec.Duration(w.lead)
			m.For, m.Reason, m.Grace, m.Lead, m.Undrain = spec.Duration(w.length), w.reason, &grace, &lead, &w.undrain
			c, err := a.client()
			if err != nil {
				return err
			}
			x, err := c.CreateMaintenance(cmd.Context(), m)
			if err != nil {
				return a.failed(cmd.Context(), err)
			}
			return showMaintenance(a, x)
		},
	}
	w.add(cmd)
	f := cmd.Flags()
	f.StringArrayVar(&machines, "machine", nil, "machine, repeatable")
	f.StringVar(&m.Pool, "pool", "", "all machines of this pool")
	filterVar(f, &m.Labels, "label", "l", "all machines with these labels: KEY=VALUE")
	for _, name := range []string{"from", "for", "reason"} {
		_ = cmd.MarkFlagRequired(name)
	}
	_ = cmd.RegisterFlagCompletionFunc("machine", ofFlag(a.completeMachines))
	return cmd
}

// newMaintenanceChange builds "berth maintenance change" over PATCH /v1/maintenance/{window}.
func newMaintenanceChange(a *app) *cobra.Command {
	var w windowFlags
	cmd := &cobra.Command{
		Use:   "change WINDOW",
		Short: "Move or change a maintenance window",
		Long: "Change changes the settings that flags name and keeps the others. Once the machines have closed,\n" +
			"only --for, --reason and --undrain can change; --for counts from the start of the window.",
		Example: "  berth maintenance change 3 --from 2026-12-02T06:00:00Z\n" +
			"  berth maintenance change 3 --for 6h",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeWindows(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := windowID(args[0])
			if err != nil {
				return err
			}
			m, err := w.change(cmd, a.now())
			if err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			x, err := c.ChangeMaintenance(cmd.Context(), id, m)
			if err != nil {
				return a.failed(cmd.Context(), err)
			}
			return showMaintenance(a, x)
		},
	}
	w.add(cmd)
	return cmd
}

// change returns the settings of the flags that were given.
func (w *windowFlags) change(cmd *cobra.Command, now time.Time) (m spec.MaintenanceChange, err error) {
	given := cmd.Flags().Changed
	if given("from") {
		from, err := w.start(now)
		if err != nil {
			return m, err
		}
		m.From = &from
	}
	for flag, x := range map[string]struct {
		value time.Duration
		into  **spec.Duration
	}{"for": {w.length, &m.For}, "grace": {w.grace, &m.Grace}, "lead": {w.lead, &m.Lead}} {
		if given(flag) {
			d := spec.Duration(x.value)
			*x.into = &d
		}
	}
	if given("undrain") {
		m.Undrain = &w.undrain
	}
	m.Reason = w.reason
	return m, nil
}
