package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"berth/spec"
	"berth/wire"
)

// newScheduleApply builds "berth schedule apply" over PUT /v1/schedules/{name}.
func newScheduleApply(a *app) *cobra.Command {
	var flags scheduleFlags
	var over overrides
	cmd := &cobra.Command{
		Use:   "apply FILE|-",
		Short: "Create a schedule from a file, or change the one of that name",
		Long: "Apply takes the same files and flags as create. A schedule that exists is changed in place: it keeps\n" +
			"its history and its running jobs, and new times count from now on. The command names the changed\n" +
			"fields; a repeat changes nothing. A pause stays, and the file or --paused may pause the schedule.",
		Example: "  berth schedule apply nightly.schedule.yaml\n" +
			"  berth schedule apply train.yaml --cron '0 4 * * *'",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			// Without the flag a paused schedule stays paused: the default false must not resume it.
			flags.setsPaused = cmd.Flags().Changed("paused")
			schedule, err := readSchedule(cmd.Context(), a, args[0], flags, over)
			if err != nil {
				return err
			}
			return applySchedule(cmd.Context(), a, schedule, baseFolder(args[0]))
		},
	}
	flags.register(cmd)
	over.register(cmd)
	return cmd
}

// applySchedule uploads the folders of the work, applies the schedule and reports the result.
func applySchedule(ctx context.Context, a *app, schedule spec.Schedule, base string) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	// Folders first: the stored schedule names their content, and its first time may be a moment away.
	if err := sendWork(ctx, a, c, &schedule, base); err != nil {
		return err
	}
	// The server takes the name of a pipeline or a job from the schedule, and the path needs it.
	schedule = schedule.WithDefaults()
	applied, err := c.ApplySchedule(ctx, schedule)
	if err != nil {
		return a.failed(ctx, err)
	}
	switch applied.Result {
	case wire.ScheduleCreated:
		sayCreated(a, applied.Schedule)
	case wire.ScheduleUnchanged:
		a.say("schedule %s is unchanged", applied.Name)
	default:
		a.say("changed schedule %s:", applied.Name)
		for _, c := range applied.Changes {
			a.say("  %s", changeText(c))
		}
	}
	return a.show(view{body: applied, names: []string{applied.Name}, table: func(bool) error {
		return describeSchedule(a, applied.Schedule).write(a.out)
	}})
}

// changeText describes the change of one field.
func changeText(c spec.Change) string {
	from, to := oneLine(plainValue(c.From)), oneLine(plainValue(c.To))
	switch {
	// The server leaves out long values. If both are left out, only the field is named.
	case from == "" && to == "":
		return c.Field + " changed"
	case from == "":
		return fmt.Sprintf("%s: %s (new)", c.Field, to)
	case to == "":
		return fmt.Sprintf("%s: removed (was %s)", c.Field, from)
	default:
		return fmt.Sprintf("%s: %s -> %s", c.Field, from, to)
	}
}

// plainValue removes the quotes of a JSON string without escapes.
func plainValue(text string) string {
	if plain, ok := strings.CutPrefix(text, `"`); ok && !strings.Contains(text, `\`) {
		return strings.TrimSuffix(plain, `"`)
	}
	return text
}
