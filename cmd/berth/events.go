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
		h := newHistory(a, wide, eventTimes(list.Items)...)
		for _, e := range list.Items {
			t.add(h.text(e.At), cell{eventText(e), toneOfEvent(e)}, fmt.Sprint(e.Attempt), e.Actor,
				eventDetail(e))
		}
		return t.write(a.out)
	}})
}

// eventTimes returns the times of events.
func eventTimes(list []wire.Event) []time.Time {
	times := make([]time.Time, len(list))
	for i, e := range list {
		times[i] = e.At
	}
	return times
}

// followEvents prints events as they arrive and returns when the job has ended: a line for
// each event, or a JSON document on each line for programs. The client reconnects after the
// last event that it has received, so none is lost or repeated when the connection breaks.
func followEvents(ctx context.Context, a *app, job wire.Job) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	h := newHistory(a, a.Output == "wide")
	c.OnSilence = func(silent bool) { a.say("%s", silenceText(a.now(), silent)) }
	err = c.FollowEvents(ctx, job.ID, 0, func(e wire.Event) error {
		err := followedEvent{
			body: e, name: string(e.Kind), at: e.At, what: fmt.Sprintf("%-22s", eventText(e)), tone: toneOfEvent(e),
			actor: e.Actor, detail: eventDetail(e),
		}.print(a, h)
		if err != nil {
			return &outputError{err}
		}
		return nil
	})
	return a.failed(ctx, err)
}

// followedEvent is an event of a job or of a machine, printed as it arrives.
type followedEvent struct {
	body   any    // for programs
	name   string // for -o name
	at     time.Time
	what   string // padded to a fixed width: the later rows are unknown while the first is printed
	tone   tone
	actor  string
	detail string
}

// print prints the event on one line, with its time in the format of the history. Events may
// arrive over days, so for programs each is a document of its own.
func (e followedEvent) print(a *app, h *history) error {
	switch a.Output {
	case "json", "yaml":
		b, err := json.Marshal(e.body)
		if err != nil {
			return fmt.Errorf("print event: %w", err)
		}
		_, err = fmt.Fprintf(a.out, "%s\n", a.outTerm.document(b))
		return err
	case "name":
		_, err := fmt.Fprintln(a.out, e.name)
		return err
	default:
		// The text was padded before it is painted: escape sequences would count as characters.
		h.note(a, e.at)
		_, err := fmt.Fprintf(a.out, "%s  %s  %-16s  %s\n", h.text(e.at), a.outTerm.paint(e.tone, e.what), e.actor,
			e.detail)
		return err
	}
}

// history formats the times of a history in UTC: the time of day alone if the whole history
// is of one day and recent, else the date with the time. Wide has the full precision. A history
// that is followed gets dates from its first event of another day on.
type history struct {
	wide, dated bool
	day         string // of the last event
}

// newHistory returns the format for a list of times, oldest first.
func newHistory(a *app, wide bool, times ...time.Time) *history {
	h := &history{wide: wide}
	for _, at := range times {
		h.note(a, at)
	}
	return h
}

// note takes a time of the history. Below 20 hours of age a time of day is unambiguous.
func (h *history) note(a *app, at time.Time) {
	day := at.UTC().Format(time.DateOnly)
	h.dated = h.dated || h.day != "" && h.day != day || a.now().Sub(at) >= 20*time.Hour
	h.day = day
}

// text formats one time.
func (h *history) text(at time.Time) string {
	switch {
	case h.wide:
		return at.UTC().Format(time.RFC3339Nano)
	case h.dated:
		return at.UTC().Format("2006-01-02 15:04:05")
	default:
		return at.UTC().Format("15:04:05.000")
	}
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
	case wire.EventWarning, wire.EventOrphaned, wire.EventCheckpointRejected, wire.EventCheckpointPassedOver,
		wire.EventCheckpointRefused, wire.EventLogCut, wire.EventHung, wire.EventOddMember:
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
