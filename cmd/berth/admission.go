package main

import (
	"github.com/spf13/cobra"

	"berth/spec"
	"berth/wire"
)

// newAdmission builds "berth admission", which pauses and resumes the start of new work in
// the whole cluster, as before an upgrade of Temporal. A pause lasts until an operator
// resumes.
func newAdmission(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "admission",
		Short: "Pause or resume the start of new work",
		Long: "A pause applies to the whole cluster until admission resume. Jobs are accepted and wait; running " +
			"jobs, their\n" +
			"ends and cancels continue.",
	}
	cmd.AddCommand(
		newAdmissionChange(a, true, "pause", "Stop starting new work, in the whole cluster",
			"  berth admission pause --reason \"upgrade of Temporal\""),
		newAdmissionChange(a, false, "resume", "Start new work again", "  berth admission resume"),
		newAdmissionShow(a),
	)
	return cmd
}

// newAdmissionChange builds pause or resume: both are the call PUT /v1/admission, with
// another value of paused. The call is idempotent, so a repeat after a lost answer is safe.
func newAdmissionChange(a *app, paused bool, name, short, example string) *cobra.Command {
	// The flag --reason below fills n before RunE sends it; paused is a pointer because the
	// API distinguishes false from absent.
	n := spec.NewAdmission{Paused: &paused}
	cmd := &cobra.Command{
		Use:     name,
		Short:   short,
		Example: example,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			now, err := c.SetAdmission(cmd.Context(), n)
			if err != nil {
				return a.failed(cmd.Context(), err)
			}
			return showAdmission(a, now)
		},
	}
	cmd.Flags().StringVar(&n.Reason, "reason", "",
		"reason, shown to the owners of waiting jobs; at most 1000 characters")
	return cmd
}

// newAdmissionShow builds "berth admission show" over GET /v1/admission.
func newAdmissionShow(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "show",
		Short: "Show whether new work may start, and who changed the setting last",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			now, err := c.Admission(cmd.Context())
			if err != nil {
				return a.failed(cmd.Context(), err)
			}
			return showAdmission(a, now)
		},
	}
}

// showAdmission prints the setting. For -o name the result is one word, open or paused,
// that scripts can compare.
func showAdmission(a *app, now wire.Admission) error {
	name := "open"
	text := a.outTerm.paint(good, "open")
	if now.Paused {
		name, text = "paused", a.outTerm.paint(bad, "paused")
	}
	return a.show(view{body: now, names: []string{name}, table: func(bool) error {
		s := sheet{screen: a.outTerm}
		s.add("admission", text)
		// Since is nil in a cluster whose admission was never changed; then there is no
		// actor either.
		if now.Since != nil {
			s.add("since", stamp(now.Since, a.now()))
			s.add("by", now.Actor)
		}
		if now.Reason != "" {
			s.add("reason", oneLine(now.Reason))
		}
		return s.write(a.out)
	}})
}
