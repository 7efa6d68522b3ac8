package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"berth"
	"berth/api/client"
	"berth/wire"
)

// newQueue builds "berth queue" over GET /v1/queue: the waiting jobs in the order in which
// they would start, by one reading of the queue that all callers share.
func newQueue(a *app) *cobra.Command {
	var q client.QueueQuery
	var tenant string
	var all bool
	cmd := &cobra.Command{
		Use:   "queue",
		Short: "List waiting jobs in the order in which they would start, with the reason of each",
		Long: "Queue lists the waiting jobs by their place in the queue, then the jobs outside of it: held jobs,\n" +
			"and jobs in backoff before a retry. START is an estimate by the run times\n" +
			"of earlier jobs and by time limits.\n" +
			"Wide adds tenant, priority band, the share of the cluster that the tenant uses, and pools.",
		Example: "  berth queue\n  berth queue --tenant vision --pool gpu -o wide",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// The limits of the API, checked before the call so that the error names the flag.
			if q.Limit < 1 || q.Limit > 1000 {
				return usagef("--limit %d is out of range; allowed: 1 to 1000", q.Limit)
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			q.Tenant = berth.TenantID(tenant)
			list, err := c.Queue(cmd.Context(), q)
			// With --all the pages form one result, so that -o json is one document.
			for err == nil && all && list.NextCursor != "" {
				q.Cursor = list.NextCursor
				var page wire.Queue
				page, err = c.Queue(cmd.Context(), q)
				list.Items, list.NextCursor = append(list.Items, page.Items...), page.NextCursor
			}
			if err != nil {
				return a.failed(cmd.Context(), err)
			}
			return showQueue(a, list)
		},
	}
	f := cmd.Flags()
	f.StringVar(&tenant, "tenant", "", "filter by tenant, for admins (default: all tenants, or your own)")
	f.StringVar(&q.Pool, "pool", "", "filter by pool: jobs that a machine of this pool could run")
	f.IntVar(&q.Limit, "limit", 50, "maximum number of jobs (page size with --all)")
	f.BoolVar(&all, "all", false, "list all pages")
	return cmd
}

// showQueue prints the queue. The default table keeps the reason readable in 80 columns.
func showQueue(a *app, q wire.Queue) error {
	names := make([]string, len(q.Items))
	for i, j := range q.Items {
		names[i] = string(j.ID)
	}
	return a.show(view{body: q, names: names, table: func(wide bool) error {
		if len(q.Items) == 0 {
			a.say("no waiting jobs")
			return nil
		}
		now := a.now()
		t := table{screen: a.outTerm, head: []string{"POS", "JOB", "NAME", "START", "REASON"},
			shrinks: []string{"NAME"}}
		if wide {
			t.head = []string{"POS", "ID", "NAME", "TENANT", "BAND", "SHARE", "PRIORITY", "AGE", "START", "POOLS",
				"REASON"}
		}
		for _, j := range q.Items {
			// Jobs outside of the queue have no place in it: held jobs, and jobs in backoff.
			w := wire.Waiting{}
			if j.Waiting != nil {
				w = *j.Waiting
			}
			position := "-"
			if w.Position > 0 {
				position = fmt.Sprint(w.Position)
			}
			start := startCell(w.EstimatedStart, now)
			if !wide {
				t.add(position, handle(j.Job), nameText(j.Job), start, jobReason(j.Job))
				continue
			}
			t.add(position, string(j.ID), nameText(j.Job), string(j.Tenant), fmt.Sprint(j.Band),
				fmt.Sprintf("%.1f%%", 100*j.Share), j.Priority.String(), since(&j.SubmittedAt, now), start,
				orDash(strings.Join(j.Pools, ",")), jobReason(j.Job))
		}
		if err := t.write(a.out); err != nil {
			return err
		}
		// On standard error, so that a pipe does not take the note for a job.
		if q.NextCursor != "" {
			a.say("%d of %d waiting jobs; list all with --all", len(q.Items), q.Total)
		}
		return nil
	}})
}
