package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"berth"
	"berth/spec"
)

// newMachineTaint builds "berth machine taint" over POST /v1/machines/{id}/taints.
func newMachineTaint(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "taint MACHINE TAINT...",
		Short: "Set or remove taints of a machine, which keep jobs away that do not tolerate them",
		Long: "Taint sets taints KEY or KEY=VALUE on a machine; KEY- removes the taint of the key.\n" +
			"No job starts on a machine with a taint that placement.tolerations of the job does not contain.\n" +
			"Running jobs continue: to move them away, drain the machine. A taint replaces the one of its key.",
		Example: "  berth machine taint m-1 maintenance\n" +
			"  berth machine taint m-1 team=ml maintenance-",
		Args: cobra.MinimumNArgs(2),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			// Only the first argument is a machine; taints are free text, and file names would be no help.
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return a.completeMachines(cmd, args, word)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := berth.ParseMachineID(args[0])
			if err != nil {
				return usagef("%v", err)
			}
			// The server checks again. A check here reports a mistyped taint as wrong usage, before any call.
			change := taintChange(args[1:])
			if faults := change.Validate(); len(faults) > 0 {
				return usagef("%s %s: allowed is %s", faults[0].Field, faults[0].Detail, faults[0].Allowed)
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			m, err := c.Taint(cmd.Context(), id, change)
			if err != nil {
				return a.failed(cmd.Context(), err)
			}
			said := fmt.Sprintf("%s has no taints", id)
			if len(m.Taints) > 0 {
				said = fmt.Sprintf("%s is tainted %s", id, spec.ShortTaints(m.Taints))
			}
			return showChanged(a, m, nil, said)
		},
	}
}

// taintChange reads the arguments of "berth machine taint". KEY- and KEY:no_schedule- remove a taint.
func taintChange(args []string) (c spec.TaintChange) {
	for _, t := range args {
		if key, removed := strings.CutSuffix(t, "-"); removed {
			c.Remove = append(c.Remove, strings.TrimSuffix(key, ":"+spec.NoSchedule))
		} else {
			c.Add = append(c.Add, t)
		}
	}
	return c
}
