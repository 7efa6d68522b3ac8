package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth/wire"
)

// newEvents builds "berth events". Without --follow the command reads the whole history
// from GET /v1/jobs/{id}/events; with it, the same address as a stream.
func newEvents(a *app) *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use:               "events JOB",
		Short:             "Show a job's events with time and actor",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeJobs(anyJob),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			job, err := a.job(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			if follow {
				return followEvents(cmd.Context(), a, job)
			}
			list, err := c.Events(cmd.Context(), job.ID, 0)
			if err != nil {
				return a.failed(cmd.Context(), err)
			}
			if len(job.Variables) > 0 && (a.Output == "table" || a.Output == "wide") {
				// On standard error, so that each line of the output is an event.
				a.say("%s has %s", nameText(job), oneLine(pairs(job.Variables)))
			}
			return showEvents(a, list)
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "follow new events until the job ends")
	return cmd
}

// showEvents prints a history, oldest first. -o name prints the kinds of events.
func showEvents(a *app, list wire.Page[wire.Event]) error {
	names := make([]string, len(list.Items))
	for i, e := range list.Items {
		names[i] = string(e.Kind)
	}
	return a.show(view{body: list, names: names, table: func(wide bool) error {
		t := table{screen: a.outTerm, head: []string{"TIME", "WHAT", "ATTEMPT", "BY", "DETAIL"}}
		for _, e := range list.Items {
			t.add(eventTime(a, e, wide), cell{eventText(e), toneOfEvent(e)}, fmt.Sprint(e.Attempt), e.Actor,
				eventDetail(e))
		}
		return t.write(a.out)
	}})
}

// followEvents prints events as they arrive and returns when the job has ended: a line for
// each event, or a JSON document on each line for programs. The client reconnects after the
// last event that it has received, so none is lost or repeated when the connection breaks.
func followEvents(ctx context.Context, a *app, job wire.Job) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	err = c.FollowEvents(ctx, job.ID, 0, func(e wire.Event) error {
		switch a.Output {
		// Events may arrive over days, so each is a document of its own, on one line.
		case "json", "yaml":
			b, err := json.Marshal(e)
			if err != nil {
				return fmt.Errorf("print event: %w", err)
			}
			_, err = fmt.Fprintf(a.out, "%s\n", b)
			return err
		case "name":
			_, err := fmt.Fprintln(a.out, e.Kind)
			return err
		default:
			// Widths are fixed, because the later rows are unknown while the first is
			// printed. The text is padded before it is painted: escape sequences would
			// count as characters.
			what := fmt.Sprintf("%-22s", eventText(e))
			at := eventTime(a, e, a.Output == "wide")
			_, err := fmt.Fprintf(a.out, "%s  %s  %-16s  %s\n",
				at, a.outTerm.paint(toneOfEvent(e), what), e.Actor, eventDetail(e))
			return err
		}
	})
	return a.failed(ctx, err)
}

// eventTime formats an event's time in UTC: the time of day with milliseconds for recent
// events, the date for older ones, and the full precision for wide. Below 20 hours a time
// of day is unambiguous.
func eventTime(a *app, e wire.Event, wide bool) string {
	if wide {
		return e.At.UTC().Format(time.RFC3339Nano)
	}
	if a.now().Sub(e.At) < 20*time.Hour {
		return e.At.UTC().Format("15:04:05.000")
	}
	return e.At.UTC().Format("2006-01-02 15:04:05")
}

// eventText names an event. A change of status shows both statuses; the first event of a
// job has no earlier one.
func eventText(e wire.Event) string {
	switch {
	case e.Kind != wire.EventState:
		return strings.ReplaceAll(string(e.Kind), "_", " ")
	case e.From == "":
		return string(e.To)
	default:
		return string(e.From) + " -> " + string(e.To)
	}
}

// toneOfEvent returns the tone of an event: the one of the new status, or a warning for
// events that an owner should look into. Unknown kinds of a newer server are plain.
func toneOfEvent(e wire.Event) tone {
	switch e.Kind {
	case wire.EventState:
		return toneOfState(e.To)
	case wire.EventWarning, wire.EventOrphaned, wire.EventCheckpointRejected,
		wire.EventCheckpointRefused, wire.EventLogCut:
		return warn
	case wire.EventCheckpoint:
		return good
	case wire.EventStage:
		if e.Facts != nil && e.Facts.Stage != nil && e.Facts.Stage.Problem != "" {
			return warn
		}
		return plain
	default:
		return plain
	}
}

// eventDetail joins an event's reason and detail into one line.
func eventDetail(e wire.Event) string {
	text := reasonText(e.Reason)
	if e.Detail != "" && text != "" {
		text += "; "
	}
	return oneLine(text + e.Detail)
}
