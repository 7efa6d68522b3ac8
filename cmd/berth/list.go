package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth"
	"berth/api/client"
	"berth/wire"
)

// newList builds "berth list" over GET /v1/jobs. Filters are applied by the server; all
// given filters must match. Elements of arrays are listed only with --parent.
func newList(a *app) *cobra.Command {
	var q client.JobsQuery
	var status []string
	var sinceText string
	var all, mine, watch bool
	var parent string
	var alone bool
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List jobs, newest first",
		Long: "List prints jobs, newest first; with --parent the elements of an array by index, with their\n" +
			"variables, or the steps of a pipeline in the order of their needs. Of an array that was retried it\n" +
			"prints the latest element of each index, with the number of its run.",
		Example: "  berth list --status queued,running\n  berth list --label project=vision --since 24h -o json\n" +
			"  berth list --parent sweep",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if q.Status, err = parseStatuses(status); err != nil {
				return err
			}
			since, err := parseSince(sinceText, a.now())
			if err != nil {
				return err
			}
			// The age is converted here, by this machine's clock, and the server receives a
			// time.
			q.Since = since
			if q.Limit < 1 || q.Limit > 1000 {
				return usagef("--limit %d is out of range; allowed: 1 to 1000", q.Limit)
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			if parent != "" {
				if err := selectChildren(cmd.Context(), a, c, &q, parent, alone); err != nil {
					return err
				}
			}
			if mine {
				if err := a.onlyMine(cmd.Context(), c, &q); err != nil {
					return err
				}
			}
			if watch {
				return a.watchJobs(cmd.Context(), c, q)
			}
			list, err := a.listJobs(cmd.Context(), c, q, all)
			if err != nil {
				return err
			}
			return showJobs(a, list)
		},
	}
	f := cmd.Flags()
	f.StringSliceVarP(&status, "status", "s", nil,
		"filter by status, such as queued,running; live is any that has not ended")
	f.BoolVar(&mine, "mine", false, "list only jobs that you submitted, in your tenant or --tenant")
	f.BoolVar(&q.DeadLetter, "dead-letter", false, "list only jobs that failed with no attempts left")
	f.StringVar((*string)(&q.Tenant), "tenant", "", "tenant to list, for admins (default: all; users see their own)")
	f.BoolVar(&watch, "watch", false, "show the list again every 2 seconds until Ctrl-C; only on a terminal")
	f.StringVar(&q.Name, "name", "", "filter by name")
	filterVar(f, &q.Labels, "label", "l", "filter by labels: KEY=VALUE")
	f.StringVar(&parent, "parent", "",
		"list the elements of an array, such as ARRAY or ARRAY[3-7], or the steps of a pipeline (default: neither)")
	f.BoolVar(&alone, "no-merge", false, "with --parent: leave out retries of the array, and arrays that it retries")
	f.StringVar(&sinceText, "since", "", "filter by submit time: 24h, 7d, 2026-01-31 or an RFC 3339 time")
	f.IntVar(&q.Limit, "limit", 50, "maximum number of jobs (page size with --all)")
	f.BoolVar(&all, "all", false, "list all pages")
	_ = cmd.RegisterFlagCompletionFunc("status", completeStatus())
	_ = cmd.RegisterFlagCompletionFunc("name", completeJobNames(a))
	_ = cmd.RegisterFlagCompletionFunc("parent", a.completeJobs(anyJob))
	return cmd
}

// selectChildren restricts a list to the children of a parent. ARRAY[3-7] is an array and a
// filter for its elements. The array itself may be given by name; the API takes its id. alone
// leaves out the retries of the array.
func selectChildren(
	ctx context.Context, a *app, c *client.Client, q *client.JobsQuery, parent string, alone bool,
) error {
	name, which := elementsOf(parent)
	array, err := a.job(ctx, c, name)
	if err != nil {
		return err
	}
	q.Parent, q.Index = array.ID, which
	q.Merged = array.Results != nil && !alone
	return nil
}

// parseSince parses a time or an age. The zero time stands for "", no limit. Days are
// parsed here, since time.ParseDuration has no unit above the hour.
func parseSince(s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if days, ok := strings.CutSuffix(s, "d"); ok {
		// At most 9999 days, about 27 years.
		if n, err := strconv.Atoi(days); err == nil && n >= 0 && n < 10_000 {
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

// showJobs prints a list of jobs. Tables show handles, wide and -o name show whole ids. On a
// narrow terminal names are cut and the attempt is left out, so that status and reason stay
// readable. A list with jobs of several tenants names the tenant of each. A list with elements
// that have variables has the column VARS after their names, and a merged list the column
// RUN.
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
		t := table{screen: a.outTerm, head: []string{"JOB", "NAME", "STATUS", "AGE", "RAN", "ATTEMPT", "REASON"},
			shrinks: []string{"VARS", "NAME"}, drops: "ATTEMPT"}
		if wide {
			t.head = []string{"ID", "NAME", "STATUS", "AGE", "RAN", "ATTEMPT", "TENANT", "PRIORITY", "LABELS", "REASON"}
		}
		tenants := !wide && slices.ContainsFunc(list.Items, func(j wire.Job) bool {
			return j.Tenant != list.Items[0].Tenant
		})
		if tenants {
			t.head = slices.Insert(t.head, 2, "TENANT")
		}
		varied := slices.ContainsFunc(list.Items, func(j wire.Job) bool { return len(j.Variables) > 0 })
		if varied {
			t.head = slices.Insert(t.head, 2, "VARS")
		}
		runs := slices.ContainsFunc(list.Items, func(j wire.Job) bool { return j.Run > 0 })
		if runs {
			t.head = slices.Insert(t.head, 2, "RUN")
		}
		for _, j := range list.Items {
			cells := []any{handle(j), nameText(j), statusCell(j), since(&j.SubmittedAt, a.now()),
				between(j.StartedAt, j.FinishedAt, a.now()), attemptText(j)}
			if wide {
				cells[0] = string(j.ID)
				cells = append(cells, string(j.Tenant), j.Priority.String(), orDash(pairs(j.Labels)))
			}
			if tenants {
				cells = slices.Insert(cells, 2, any(string(j.Tenant)))
			}
			if varied {
				cells = slices.Insert(cells, 2, any(orDash(pairs(j.Variables))))
			}
			if runs {
				cells = slices.Insert(cells, 2, any(fmt.Sprint(j.Run)))
			}
			t.add(append(cells, jobReason(j))...)
		}
		if err := t.write(a.out); err != nil {
			return err
		}
		// On standard error, so that a pipe does not take the note for a job.
		if list.NextCursor != "" {
			a.say("%s; list all with --all", ofAll(list))
		}
		return nil
	}})
}

// doneText counts the children of an array or pipeline: the failed ones once it has failed,
// else the ended ones.
func doneText(kind berth.Kind, status berth.State, t *wire.Tally) string {
	unit := "elements"
	if kind == berth.KindPipeline {
		unit = "steps"
	}
	if status == berth.Failed {
		return fmt.Sprintf("%d of %d %s", t.ByStatus[berth.Failed], t.Total, unit)
	}
	return fmt.Sprintf("%d of %d %s done", t.Ended(), t.Total, unit)
}

// statusCell returns a job's status with the counts and flags that change its meaning:
// ended or failed children of all, a hold, or a dead letter.
func statusCell(j wire.Job) cell {
	text := string(j.Status)
	if j.Tally != nil {
		text += " (" + doneText(j.Kind, j.Status, j.Tally) + ")"
	}
	switch {
	// After the end of a job its hold means nothing.
	case j.Held && !j.Status.Terminal():
		text += " (held)"
	case j.DeadLetter:
		text += " (dead letter)"
	}
	return cell{text, toneOfState(j.Status)}
}

// attemptText returns the number of the current attempt, "-" before the first. Attempts
// count from 1.
func attemptText(j wire.Job) string {
	if j.Attempt == 0 {
		return "-"
	}
	return fmt.Sprint(j.Attempt)
}

// reasonText formats a reason: the stable code, then the message for people. A code that
// the message begins with is left out: "exit code 3", not "exit_code: exit code 3". nil
// gives "".
func reasonText(r *berth.Reason) string {
	if r == nil {
		return ""
	}
	if r.Message == "" {
		return string(r.Code)
	}
	if strings.HasPrefix(r.Message, strings.ReplaceAll(string(r.Code), "_", " ")) {
		return r.Message
	}
	return string(r.Code) + ": " + r.Message
}
