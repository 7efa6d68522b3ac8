package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth"
	"berth/api/client"
	"berth/spec"
	"berth/wire"
)

// floorsText formats how a machine stands to the security floors, for a list.
func floorsText(m wire.Machine) string {
	switch {
	case m.Security == nil:
		return "-"
	case len(m.Security.Conditions) == 0:
		return "met"
	}
	return oneLine(strings.Join(m.Security.Conditions, ","))
}

// addSecurity adds the verdict about the security floors, the waivers and the reported versions.
func addSecurity(s *sheet, m wire.Machine, now time.Time) {
	x := m.Security
	if x == nil {
		return
	}
	if len(x.Conditions) == 0 {
		s.add("floors", "met: takes jobs of untrusted tenants")
	}
	for _, r := range x.Reasons {
		s.add("below floors", oneLine(r))
	}
	for _, w := range x.Waivers {
		s.add("waiver", oneLine(fmt.Sprintf("%s %s until %s by %s: %s", w.Component, w.Version, instant(w.Until),
			w.Actor, w.Reason)))
	}
	if x.Facts == nil {
		return
	}
	var parts []string
	for _, c := range x.Facts.Components {
		parts = append(parts, c.Name+" "+orDash(c.Version))
	}
	s.add("software", oneLine(strings.Join(parts, ", ")))
	s.add("confinement", oneLine(fmt.Sprintf("seccomp %s, lsm %s, userns %v, rootless %v, cgroup %s",
		orDash(x.Facts.Seccomp), orDash(x.Facts.LSM), x.Facts.UserNS, x.Facts.Rootless, orDash(x.Facts.Cgroup))))
	s.add("reported", stamp(x.ReportedAt, now))
}

// newMachineWaive builds "berth machine waive" over POST /v1/machines/{id}/waivers.
func newMachineWaive(a *app) *cobra.Command {
	var until string
	w := spec.NewWaiver{}
	cmd := &cobra.Command{
		Use:   "waive MACHINE COMPONENT",
		Short: "State that the version of a machine's component is secure, until a date",
		Long: "Waive records that the reported version of a component is secure although it is older\n" +
			"than the security floor, for example since the distribution has backported the fix.\n" +
			"The waiver covers the vulnerabilities that are known for the component now. It ends at\n" +
			"--until, and as soon as the machine reports another version. With --checked-version the call\n" +
			"fails if the machine reports another version already.\n" +
			"COMPONENT is a name of \"berth machine show\", such as runc, or a setting of the\n" +
			"engine: seccomp, lsm, userns.",
		Example: "  berth machine waive m-1 runc --checked-version 1.1.5+ds1-1+deb12u1 --until 2027-03-01 " +
			"--reason \"Debian has backported the fix (DSA-5615-1)\"",
		Args: cobra.ExactArgs(2),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
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
			w.Component = args[1]
			if w.Until, err = waiverEnd(until); err != nil {
				return err
			}
			if faults := w.Validate(a.now()); len(faults) > 0 {
				return usagef("%s %s: allowed is %s", faults[0].Field, faults[0].Detail, faults[0].Allowed)
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			m, err := waive(cmd.Context(), c, id, &w)
			if err != nil {
				return a.failed(cmd.Context(), err)
			}
			what := strings.TrimSpace(w.Component + " " + w.Version)
			return showChanged(a, m, nil, oneLine(fmt.Sprintf("waived %s of %s until %s", what, id, instant(w.Until))))
		},
	}
	cmd.Flags().StringVar(&until, "until", "", "end of the waiver: a date or a time in RFC 3339, within 366 days")
	cmd.Flags().StringVar(&w.Version, "checked-version", "",
		"version that you have checked, as the machine reports it (default: the reported one)")
	cmd.Flags().StringVar(&w.Reason, "reason", "", "reason for which the version is secure")
	_ = cmd.MarkFlagRequired("until")
	_ = cmd.MarkFlagRequired("reason")
	return cmd
}

// waive asks for a waiver, without a checked version for the reported one.
func waive(ctx context.Context, c *client.Client, id berth.MachineID, w *spec.NewWaiver) (wire.Machine, error) {
	if w.Version == "" {
		shown, err := c.Machine(ctx, id)
		if err != nil {
			return wire.Machine{}, err
		}
		w.Version = reportedVersion(shown, w.Component)
	}
	return c.WaiveFloor(ctx, id, *w)
}

// reportedVersion returns the version or setting that the machine reports for a component; "": none.
func reportedVersion(m wire.Machine, component string) string {
	if m.Security == nil || m.Security.Facts == nil {
		return ""
	}
	version, _ := m.Security.Facts.Reported(component)
	return version
}

// waiverEnd parses the flag --until: a date stands for its beginning in UTC.
func waiverEnd(text string) (time.Time, error) {
	for _, layout := range []string{time.DateOnly, time.RFC3339} {
		if t, err := time.Parse(layout, text); err == nil {
			return t.UTC(), nil
		}
	}
	return time.Time{}, usagef("--until %q is not a time: allowed are 2027-03-01 and 2027-03-01T12:00:00Z", text)
}

// newMachineUnwaive builds "berth machine unwaive" over DELETE /v1/machines/{id}/waivers/{component}.
func newMachineUnwaive(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "unwaive MACHINE COMPONENT",
		Short:   "End a waiver of a machine's security floor before its date",
		Example: "  berth machine unwaive m-1 runc",
	}
	component := ""
	cmd = onMachine(a, cmd, func(ctx context.Context, c *client.Client, id berth.MachineID) error {
		m, err := c.UnwaiveFloor(ctx, id, component)
		return showChanged(a, m, err, fmt.Sprintf("%s has no waiver of %s", id, component))
	})
	run := cmd.RunE
	cmd.Args = cobra.ExactArgs(2)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		component = args[1]
		return run(cmd, args)
	}
	return cmd
}
