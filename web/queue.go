package web

import (
	"context"
	"slices"
	"time"

	"berth"
	"berth/api/client"
	"berth/wire"
)

// queueView is the data of the queue.
type queueView struct {
	AsOf    time.Time
	Now     time.Time
	Total   int
	Rows    []wire.QueuedJob
	Reasons []reasonCount
	Reason  string // only jobs with this reason are shown
	Tenant  string
	Pool    string
	All     string // address without the reason
	First   string
	Next    string
	None    string
	Read    int // jobs from which the reasons are counted
}

// queueShown is the number of waiting jobs on a page. The counts read more jobs than a page shows; see
// queueRead.
const queueShown = 50

// queuePage shows the waiting jobs in the order in which they would start. The counts by reason
// cover the first queueRead jobs, whichever page is shown.
func queuePage(ctx context.Context, v *visit) (result, error) {
	view := queueView{Now: v.page.Now, Reason: v.query("reason"), Tenant: v.query("tenant"), Pool: v.query("pool"),
		All: v.link("reason", "", "cursor", "")}
	q := client.QueueQuery{Tenant: berth.TenantID(view.Tenant), Pool: view.Pool, Limit: queueRead}
	all, err := v.api.Queue(ctx, q) // the head of the queue, for the counts
	if err != nil {
		return result{}, err
	}
	view.AsOf, view.Total, view.Reasons, view.Read = all.AsOf, all.Total, countReasons(all.Items), len(all.Items)
	page := all
	if q.Cursor = v.query("cursor"); q.Cursor != "" {
		q.Limit = queueShown
		if page, err = v.api.Queue(ctx, q); err != nil {
			return result{}, err
		}
		view.First = v.link("cursor", "")
	}
	view.Rows, view.Next = page.Items, page.NextCursor
	switch {
	case view.Reason != "":
		view.Rows = slices.DeleteFunc(view.Rows, func(j wire.QueuedJob) bool { return codeOf(j) != view.Reason })
		view.Next = ""
	case q.Cursor == "" && len(view.Rows) > queueShown:
		// The cursor of a page of queueShown entries is the API's to give.
		q.Limit = queueShown
		if page, err = v.api.Queue(ctx, q); err != nil {
			return result{}, err
		}
		view.Rows, view.Next = page.Items, page.NextCursor
	}
	// The jobs with one reason come from the head of the queue and have no further pages.
	view.Rows = view.Rows[:min(len(view.Rows), 200)]
	if view.Next != "" {
		view.Next = v.link("cursor", view.Next)
	}
	switch {
	case len(view.Rows) > 0:
	case view.Reason != "":
		view.None = "No job waits for this reason now."
	case v.page.Reader.Operates():
		view.None = "No job waits."
	default:
		view.None = "No job of tenant " + string(v.page.Reader.Tenant) + " waits."
	}
	return result{template: "queue", title: "Queue", data: view}, nil
}

// codeOf is the code of the reason why a job waits. A job that changed after the reading has no reason
// yet.
func codeOf(j wire.QueuedJob) string {
	if j.Waiting == nil {
		return "unknown"
	}
	return j.Waiting.Code
}
