package api

import (
	"context"
	"encoding/base64"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"berth"
	"berth/db"
	"berth/internal/control/explain"
	"berth/placement"
	"berth/wire"
)

// queueHandlers serve the queue: all waiting jobs in the order in which they would start.
type queueHandlers struct {
	jobs      *db.Jobs
	explainer *explain.Explainer
	reasons   *waitReasons
}

func (h *queueHandlers) mount(r *router) {
	show := r.operation("show-queue", http.MethodGet, "/v1/queue", "jobs",
		"List the waiting jobs in the order in which they would start, with the reason of each")
	show.Description = "The order, the reasons and the estimated starts come from one reading of the queue, which " +
		"all callers share; `as_of` is its time. A job that has started since is left out, so a page may be shorter " +
		"than its limit. Users see the jobs of their own tenant, with positions among all jobs."
	register(r, show, h.show)
}

// queueInput selects waiting jobs; all given conditions must hold.
type queueInput struct {
	Tenant string `query:"tenant" doc:"for admins; others see their own"`
	Pool   string `query:"pool" doc:"jobs that a machine of this pool could run"`
	Paging
}

type queueOutput struct{ Body wire.Queue }

// show returns a page of the queue. The board selects the jobs, and their rows are read
// again: a row that no longer waits is left out.
func (h *queueHandlers) show(ctx context.Context, in *queueInput) (*queueOutput, error) {
	tenant, err := in.tenant(ctx)
	if err != nil {
		return nil, err
	}
	after, err := parsePlace(in.Cursor)
	if err != nil {
		return nil, err
	}
	board := h.explainer.Board(ctx, nil)
	if board == nil {
		return nil, berth.Errorf(berth.CodeUnavailable, "the queue is being read; try again in a moment")
	}
	limit := in.Limit
	if limit == 0 {
		limit = db.DefaultPage
	}
	page, next, total := queuePage(board, tenant, in.Pool, after, limit)
	items, err := h.items(ctx, board, page)
	if err != nil {
		return nil, err
	}
	return &queueOutput{wire.Queue{AsOf: board.At.UTC(), Total: total, Items: items, NextCursor: next}}, nil
}

// tenant returns the tenant to show, "" for all, which only admins may see.
func (in *queueInput) tenant(ctx context.Context) (berth.TenantID, error) {
	own := scope(ctx)
	if in.Tenant != "" && own != "" && in.Tenant != string(own) {
		return "", berth.Errorf(berth.CodeForbidden, "only admins see other tenants' jobs in the queue")
	}
	if in.Tenant != "" {
		return berth.TenantID(in.Tenant), nil
	}
	return own, nil
}

// items reads the rows of the page's jobs and joins them with the board.
func (h *queueHandlers) items(
	ctx context.Context, board *explain.Board, page []placement.Waiting,
) ([]wire.QueuedJob, error) {
	items := []wire.QueuedJob{}
	if len(page) == 0 {
		return items, nil
	}
	ids := make([]berth.JobID, len(page))
	for i, w := range page {
		ids[i] = w.Job
	}
	rows, err := h.jobs.Among(ctx, scope(ctx), ids)
	if err != nil {
		return nil, err
	}
	each := make([]*wire.Job, 0, len(page))
	for _, w := range page {
		if j, ok := rows[w.Job]; ok && j.Status.Waiting() {
			items = append(items, wire.QueuedJob{Job: j, Band: w.Band, Share: w.Share, Pools: w.Pools})
		}
	}
	for i := range items {
		each = append(each, &items[i].Job)
	}
	if err := h.reasons.control.tellPause(ctx, each...); err != nil {
		return nil, err
	}
	for _, j := range each {
		j.Waiting = h.reasons.reason(j, nil, board) // of the board that ordered the page
	}
	return items, h.reasons.addNotes(ctx, each)
}

// queuePage returns the jobs of a page with the cursor of the next page, "" after the last,
// and the number of jobs on all pages.
func queuePage(
	b *explain.Board, tenant berth.TenantID, pool string, after place, limit int,
) (page []placement.Waiting, next string, total int) {
	from := after.index(b)
	for i, w := range b.Jobs {
		if tenant != "" && w.Tenant != tenant || pool != "" && !slices.Contains(w.Pools, pool) {
			continue
		}
		total++
		switch {
		case i < from:
		case len(page) < limit:
			page = append(page, w)
		case next == "":
			last := page[len(page)-1]
			at, _ := b.Index(last.Job)
			next = place{at, last.Job}.String()
		}
	}
	return page, next, total
}

// place is a job's place in a board, from 0. A cursor contains the place of the last job of
// a page. The next page comes from a later board: it begins after that job, or at its former
// place if the job has left the queue.
type place struct {
	at  int
	job berth.JobID // "": the beginning
}

// index returns the index in b from which the next page begins.
func (p place) index(b *explain.Board) int {
	if p.job == "" {
		return 0
	}
	if i, ok := b.Index(p.job); ok {
		return i + 1
	}
	return p.at
}

// String encodes the place as an opaque cursor.
func (p place) String() string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.Itoa(p.at) + " " + string(p.job)))
}

// parsePlace decodes a cursor; "" is the beginning. It bounds the input, which comes from
// clients.
func parsePlace(cursor string) (place, error) {
	if cursor == "" {
		return place{}, nil
	}
	bad := berth.Errorf(berth.CodeInvalid, "cursor %.40q is not a cursor of the queue", cursor)
	text, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil {
		return place{}, bad
	}
	at, id, _ := strings.Cut(string(text), " ")
	n, err := strconv.Atoi(at)
	if err != nil || n < 0 {
		return place{}, bad
	}
	job, err := berth.ParseJobID(id)
	if err != nil {
		return place{}, bad
	}
	return place{n, job}, nil
}
