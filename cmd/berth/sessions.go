package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth"
	"berth/api/client"
	"berth/wire"
)

// newSessions builds "berth sessions" over GET /v1/jobs/{id}/sessions, newest first.
func newSessions(a *app) *cobra.Command {
	var q client.SessionsQuery
	var all bool
	cmd := &cobra.Command{
		Use:   "sessions JOB",
		Short: "List the sessions in a job's containers, newest first",
		Long: "Sessions lists who opened a session with berth exec, cp or port-forward, when, and how it ended. All\n" +
			"who may read the job see the list. Wide adds machine, bytes and reason.",
		Example:           "  berth sessions notebook\n  berth sessions notebook --open -o json",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeJobs(anyJob),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			if q.Limit < 1 || q.Limit > 1000 {
				return usagef("--limit %d is out of range; allowed: 1 to 1000", q.Limit)
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			job, err := a.job(ctx, c, args[0])
			if err != nil {
				return err
			}
			list, err := c.Sessions().List(ctx, job.ID, q)
			// With --all the pages form one result, so that -o json is one document.
			for err == nil && all && list.NextCursor != "" {
				q.Cursor = list.NextCursor
				var page wire.Page[wire.SessionRecord]
				page, err = c.Sessions().List(ctx, job.ID, q)
				list.Items, list.NextCursor = append(list.Items, page.Items...), page.NextCursor
			}
			if err != nil {
				return a.failed(ctx, err)
			}
			return showSessions(a, job, list, q.Open)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&q.Open, "open", false, "list only sessions that have not ended")
	f.IntVar(&q.Limit, "limit", 100, "maximum number of sessions (page size with --all)")
	f.BoolVar(&all, "all", false, "list all pages")
	return cmd
}

// showSessions prints sessions. -o name prints their ids.
func showSessions(a *app, job wire.Job, list wire.Page[wire.SessionRecord], open bool) error {
	names := make([]string, len(list.Items))
	var times []time.Time
	for i, s := range list.Items {
		names[i] = s.ID
		// All times are known before the first row, so that the column has one format.
		if at := sessionTime(s); at != nil {
			times = append(times, *at)
		}
	}
	return a.show(view{body: list, names: names, table: func(wide bool) error {
		if len(names) == 0 {
			a.say("%s", noSessions(job, open))
			return nil
		}
		t := table{screen: a.outTerm, shrinks: []string{"BY"}, head: []string{"TIME", "BY", "KIND", "MEMBER",
			"DURATION", "STATE", "COMMAND"}}
		if wide {
			t.head = []string{"TIME", "ID", "BY", "KIND", "ATTEMPT", "MEMBER", "MACHINE", "DURATION", "STATE", "IN",
				"OUT", "REASON", "COMMAND"}
		}
		h := newHistory(a, false, times...)
		for _, s := range list.Items {
			at := "-"
			if from := sessionTime(s); from != nil {
				at = h.text(*from)
			}
			state := cell{sessionText(s), toneOfSession(s)}
			// An open session lasts until now.
			lasted := between(s.StartedAt, s.EndedAt, a.now())
			if !wide {
				t.add(at, s.Actor, string(s.Kind), fmt.Sprint(s.Member), lasted, state, s.Command)
				continue
			}
			t.add(at, s.ID, s.Actor, string(s.Kind), fmt.Sprint(s.Attempt), fmt.Sprint(s.Member), string(s.Machine),
				lasted, state, berth.BytesText(s.BytesIn), berth.BytesText(s.BytesOut), orDash(s.Reason), s.Command)
		}
		if err := t.write(a.out); err != nil {
			return err
		}
		// On standard error, so that a pipe does not take the note for a session.
		if list.NextCursor != "" {
			a.say("older sessions exist; list all with --all")
		}
		return nil
	}})
}

// sessionTime returns the time of a session: its request, or where the record of the request is deleted,
// the first time that is known. nil: none is.
func sessionTime(s wire.SessionRecord) *time.Time {
	for _, at := range []*time.Time{s.RequestedAt, s.StartedAt, s.EndedAt} {
		if at != nil {
			return at
		}
	}
	return nil
}

// sessionText returns the state of a session, and for an ended one how it ended: the exit code if it is
// known, else the cause.
func sessionText(s wire.SessionRecord) string {
	switch {
	case s.State != wire.SessionEnded || s.Exit == nil && s.Cause == "":
		return string(s.State)
	case s.Exit != nil:
		return fmt.Sprintf("exit %d", *s.Exit)
	default:
		return strings.ReplaceAll(string(s.Cause), "_", " ")
	}
}

// toneOfSession returns the tone of a session: an open one stands out.
func toneOfSession(s wire.SessionRecord) tone {
	if s.State == wire.SessionEnded {
		return plain
	}
	return warn
}

// noSessions explains an empty list.
func noSessions(job wire.Job, open bool) string {
	name := oneLine(job.Name)
	switch {
	case job.Kind == berth.KindArray:
		return fmt.Sprintf("an array has no sessions of its own; name an element, such as '%s[0]'", name)
	case job.Kind == berth.KindPipeline:
		return fmt.Sprintf("a pipeline has no sessions of its own; name a step, such as %s.STEP", name)
	case open:
		return "no open sessions"
	default:
		return "no sessions"
	}
}
