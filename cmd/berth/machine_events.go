package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"berth"
	"berth/api/client"
	"berth/wire"
)

// newMachineEvents builds "berth machine events" over GET /v1/machines/{id}/events. --follow
// polls the list from the last event on, since a machine changes rarely.
func newMachineEvents(a *app) *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use:     "events MACHINE",
		Short:   "Show a machine's events with time and actor",
		Example: "  berth machine events m-1\n  berth machine events m-1 --follow",
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "follow new events until interrupted")
	return onMachine(a, cmd, func(ctx context.Context, c *client.Client, id berth.MachineID) error {
		list, err := c.MachineEvents(ctx, id, 0)
		if err != nil {
			return err
		}
		if follow {
			return followMachine(ctx, a, c, id, list)
		}
		return showMachineEvents(a, list)
	})
}

// showMachineEvents prints a machine's history, oldest first. -o name prints the states.
func showMachineEvents(a *app, list wire.Page[wire.MachineEvent]) error {
	names := make([]string, len(list.Items))
	for i, e := range list.Items {
		names[i] = e.State
	}
	return a.show(view{body: list, names: names, table: func(wide bool) error {
		t := table{screen: a.outTerm, head: []string{"TIME", "WHAT", "BY", "DETAIL"}}
		for _, e := range list.Items {
			t.add(eventTime(a, wire.Event{At: e.At}, wide), cell{machineEventText(e), toneOfMachineEvent(e)},
				orDash(e.Actor), machineEventDetail(a, e))
		}
		return t.write(a.out)
	}})
}

// followMachine prints the events so far and the new ones until ctx ends: a line for each, or a
// JSON document on each line for programs.
func followMachine(ctx context.Context, a *app, c *client.Client, id berth.MachineID,
	list wire.Page[wire.MachineEvent]) error {
	last := int64(0)
	for {
		for _, e := range list.Items {
			last = e.Seq
			if err := printMachineEvent(a, e); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pollLast):
		}
		var err error
		if list, err = c.MachineEvents(ctx, id, last); err != nil {
			return err
		}
	}
}

func printMachineEvent(a *app, e wire.MachineEvent) error {
	switch a.Output {
	case "json", "yaml":
		b, err := json.Marshal(e)
		if err != nil {
			return fmt.Errorf("print event: %w", err)
		}
		_, err = fmt.Fprintf(a.out, "%s\n", b)
		return err
	case "name":
		_, err := fmt.Fprintln(a.out, e.State)
		return err
	default:
		what := fmt.Sprintf("%-16s", machineEventText(e)) // padded before it is painted
		_, err := fmt.Fprintf(a.out, "%s  %s  %-16s  %s\n", eventTime(a, wire.Event{At: e.At}, a.Output == "wide"),
			a.outTerm.paint(toneOfMachineEvent(e), what), orDash(e.Actor), machineEventDetail(a, e))
		return err
	}
}

// machineEventText names the state that an event records, of the machine or of one GPU.
func machineEventText(e wire.MachineEvent) string {
	if e.GPU != nil {
		return fmt.Sprintf("GPU %d %s", *e.GPU, e.State)
	}
	return e.State
}

func toneOfMachineEvent(e wire.MachineEvent) tone {
	switch {
	case e.GPU == nil:
		return toneOfMachine(wire.Machine{State: berth.MachineState(e.State)})
	case e.State == "healthy":
		return good
	default:
		return bad
	}
}

// machineEventDetail joins an event's reason and the deadline of a drain.
func machineEventDetail(a *app, e wire.MachineEvent) string {
	text := oneLine(e.Reason)
	if e.Deadline != nil {
		text += " (deadline " + eventTime(a, wire.Event{At: *e.Deadline}, true) + ")"
	}
	return text
}
