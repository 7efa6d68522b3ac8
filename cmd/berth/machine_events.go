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
		h := newHistory(a, wide)
		for _, e := range list.Items {
			h.note(a, e.At)
		}
		for _, e := range list.Items {
			t.add(h.text(e.At), cell{machineEventText(e), toneOfMachineEvent(e)},
				orDash(e.Actor), machineEventDetail(e))
		}
		return t.write(a.out)
	}})
}

// followMachine prints the events so far and the new ones until ctx ends. A server that does not
// answer is asked again, as long as the wait for a job has patience.
func followMachine(ctx context.Context, a *app, c *client.Client, id berth.MachineID,
	list wire.Page[wire.MachineEvent]) error {
	last, answered, h := int64(0), a.now(), newHistory(a, a.Output == "wide")
	for {
		for _, e := range list.Items {
			// The sequence number is the cursor: the next call returns only later events.
			last = e.Seq
			err := followedEvent{
				body: e, name: e.State, at: e.At, what: fmt.Sprintf("%-16s", machineEventText(e)),
				tone: toneOfMachineEvent(e), actor: orDash(e.Actor), detail: machineEventDetail(e),
			}.print(a, h)
			if err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pollLast):
		}
		next, err := c.MachineEvents(ctx, id, last)
		switch {
		case err == nil:
			answered = a.now()
		case !passing(a.failed(ctx, err)) || a.now().Sub(answered) > patience:
			return err
		}
		list = next // with an error, the events that came before it
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
func machineEventDetail(e wire.MachineEvent) string {
	text := oneLine(e.Reason)
	if e.Deadline != nil {
		text += " (deadline " + e.Deadline.UTC().Format(time.RFC3339) + ")"
	}
	return text
}
