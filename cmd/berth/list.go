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

func newList(a *app) *cobra.Command {
	var q client.JobsQuery
	var status []string
	var sinceText string
	var all bool
	var parent string
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List jobs, newest first",
		Example: "  berth list --status queued,running\n  berth list --label project=vision --since 24h -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, s := range status {
				state, err := berth.ParseState(s)
				if err != nil {
					return usagef("--%v", err)
				}
				q.Status = append(q.Status, state)
			}
			since, err := parseSince(sinceText, a.now())
			if err != nil {
				return err
			}
			q.Since = since
			if q.Limit < 1 || q.Limit > 1000 {
				return usagef("--limit %d is out of range; allowed: 1 to 1000", q.Limit)
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			if parent != "" {
				var which string
				parent, which = elementsOf(parent)
				array, err := a.job(cmd.Context(), c, parent)
				if err != nil {
					return err
				}
				q.Parent, q.Index = array.ID, which
			}
			list, err := c.Jobs(cmd.Context(), q)
			for err == nil && all && list.NextCursor != "" {
				q.Cursor = list.NextCursor
				var page wire.Page[wire.Job]
				page, err = c.Jobs(cmd.Context(), q)
				list.Items, list.NextCursor = append(list.Items, page.Items...), page.NextCursor
			}
			if err != nil {
				return a.failed(cmd.Context(), err)
			}
			return showJobs(a, list)
		},
	}
	f := cmd.Flags()
	f.StringSliceVarP(&status, "status", "s", nil, "filter by status, such as queued,running")
	f.StringVar(&q.Name, "name", "", "filter by name")
	f.StringToStringVarP(&q.Labels, "label", "l", nil, "filter by labels: KEY=VALUE")
	f.StringVar(&parent, "parent", "",
		"list the elements of an array, such as ARRAY or ARRAY[3-7] (default: elements are not listed)")
	f.StringVar(&sinceText, "since", "", "filter by submit time: 24h, 7d, 2026-01-31 or an RFC 3339 time")
	f.IntVar(&q.Limit, "limit", 50, "maximum number of jobs (page size with --all)")
	f.BoolVar(&all, "all", false, "list all pages")
	var names []string
	for _, s := range berth.States {
		names = append(names, string(s))
	}
	_ = cmd.RegisterFlagCompletionFunc("status", cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// parseSince reads a time, or how long ago it was.
func parseSince(s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if days, ok := strings.CutSuffix(s, "d"); ok {
		var n int
		if _, err := fmt.Sscanf(days, "%d", &n); err == nil && n >= 0 && n < 10_000 {
			return now.AddDate(0, 0, -n), nil
		}
	}
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if t, err := time.Parse(layout, s); err == nil {
			return t.UTC(), nil
		}
	}
	return time.Time{}, usagef("--since %q is not a time; allowed: 90m, 24h, 7d, 2026-01-31 or 2026-01-31T15:04:05Z", s)
}

func showJobs(a *app, list wire.Page[wire.Job]) error {
	names := make([]string, len(list.Items))
	for i, j := range list.Items {
		names[i] = string(j.ID)
	}
	return a.show(view{body: list, names: names, table: func(wide bool) error {
		if len(list.Items) == 0 {
			a.say("no jobs")
			return nil
		}
		t := table{screen: a.outTerm, head: []string{"ID", "NAME", "STATUS", "AGE", "RAN", "ATTEMPT", "REASON"}}
		if wide {
			t.head = []string{"ID", "NAME", "STATUS", "AGE", "RAN", "ATTEMPT", "TENANT", "PRIORITY", "LABELS", "REASON"}
		}
		for _, j := range list.Items {
			cells := []any{shortID(j.ID), nameText(j), statusCell(j), since(&j.SubmittedAt, a.now()),
				between(j.StartedAt, j.FinishedAt, a.now()), attemptText(j)}
			if wide {
				cells[0] = string(j.ID)
				cells = append(cells, string(j.Tenant), j.Priority.String(), orDash(pairs(j.Labels)))
			}
			t.add(append(cells, whyText(j.Reason, j.CachedFrom))...)
		}
		if err := t.write(a.out); err != nil {
			return err
		}
		if list.NextCursor != "" {
			a.say("there are more; --all shows them")
		}
		return nil
	}})
}

// statusCell is a job's status with the flags that change its meaning.
func statusCell(j wire.Job) cell {
	text := string(j.Status)
	if j.Tally != nil {
		text += fmt.Sprintf(" %d/%d", j.Tally.Ended(), j.Tally.Total)
	}
	switch {
	case j.Held && !j.Status.Terminal():
		text += " (held)"
	case j.DeadLetter:
		text += " (dead letter)"
	}
	return cell{text, toneOfState(j.Status)}
}

// attemptText is the current attempt, "-" before the first.
func attemptText(j wire.Job) string {
	if j.Attempt == 0 {
		return "-"
	}
	return fmt.Sprint(j.Attempt)
}

func reasonText(r *berth.Reason) string {
	if r == nil {
		return ""
	}
	if r.Message == "" {
		return string(r.Code)
	}
	return string(r.Code) + ": " + r.Message
}
