package main

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"berth"
	"berth/api/client"
	"berth/wire"
)

// liveStatus is the value of --status that stands for every status before the end.
const liveStatus = "live"

// parseStatuses converts the values of --status. The value live stands for several statuses.
func parseStatuses(list []string) ([]berth.State, error) {
	var states []berth.State
	for _, s := range list {
		if s == liveStatus {
			for _, state := range berth.States {
				if !state.Terminal() {
					states = append(states, state)
				}
			}
			continue
		}
		state, err := berth.ParseState(s)
		if err != nil {
			// The error begins with "status", which the dashes turn into the flag.
			return nil, usagef("--%v; live is any that has not ended", err)
		}
		states = append(states, state)
	}
	return states, nil
}

// completeStatus completes --status.
func completeStatus() completer {
	names := []string{liveStatus}
	for _, s := range berth.States {
		names = append(names, string(s))
	}
	return cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp)
}

// onlyMine restricts a query to jobs that the caller submitted, over GET /v1/whoami. Names of
// tokens are unique in a tenant at most, and admins list all tenants: without a tenant in the
// query, it is the caller's.
func (a *app) onlyMine(ctx context.Context, c *client.Client, q *client.JobsQuery) error {
	w, err := c.Whoami(ctx)
	if err != nil {
		return a.failed(ctx, err)
	}
	q.SubmittedBy = "user:" + w.Name // as actors of submits are named
	q.Tenant = cmp.Or(q.Tenant, w.Tenant)
	return nil
}

// listJobs returns the first page of a list, or with all the pages as one list, so that
// -o json is one document. If people will read a page that is not the last, the page has the
// number of all jobs.
func (a *app) listJobs(
	ctx context.Context, c *client.Client, q client.JobsQuery, all bool,
) (wire.Page[wire.Job], error) {
	list, err := c.Jobs(ctx, q)
	for err == nil && all && list.NextCursor != "" {
		q.Cursor = list.NextCursor
		var page wire.Page[wire.Job]
		page, err = c.Jobs(ctx, q)
		list.Items, list.NextCursor = append(list.Items, page.Items...), page.NextCursor
	}
	if err != nil {
		return list, a.failed(ctx, err)
	}
	if list.NextCursor != "" && (a.Output == "table" || a.Output == "wide") {
		count := q
		count.Count, count.Limit, count.Cursor = true, 1, ""
		// A server of an earlier version does not count; the list is as good without.
		if counted, err := c.Jobs(ctx, count); err == nil {
			list.Total = counted.Total
		}
	}
	return list, nil
}

// mostCounted is the greatest number that the server counts to; more is not counted.
const mostCounted = 1000

// ofAll says how many of the jobs a page shows.
func ofAll(list wire.Page[wire.Job]) string {
	switch {
	case list.Total == nil:
		return "more jobs exist"
	case *list.Total > mostCounted:
		return fmt.Sprintf("%d of more than %d jobs", len(list.Items), mostCounted)
	default:
		return fmt.Sprintf("%d of %d jobs", len(list.Items), *list.Total)
	}
}

// watchJobs prints a list again and again until Ctrl-C.
func (a *app) watchJobs(ctx context.Context, c *client.Client, q client.JobsQuery) error {
	return watchScreen(ctx, a, "programs follow a job with berth events -f", func() error {
		list, err := a.listJobs(ctx, c, q, false)
		if err != nil {
			return err
		}
		clearScreen(a, "Ctrl-C ends the list, not the jobs")
		return showJobs(a, list)
	})
}
