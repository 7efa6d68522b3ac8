package api

import (
	"context"
	"net/http"
	"reflect"
	"strconv"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humaecho"
	"github.com/labstack/echo/v4"

	"berth"
	"berth/db"
	"berth/wire"
)

// eventHandlers serve the histories of jobs.
type eventHandlers struct {
	jobReader
	streams  *streams
	followed *followed
}

func (h *eventHandlers) mount(r *router) {
	schema := r.huma.OpenAPI().Components.Schemas.Schema
	events := r.operation("list-events", http.MethodGet, "/v1/jobs/{id}/events", "jobs",
		"List a job's events, with actor and reason")
	events.Description = "With `Accept: text/event-stream` it follows: each event has the id of its seq, " +
		"`Last-Event-ID` resumes without gap or repeat, and the event `end` says that the job's history is complete."
	document(&events, "The history, oldest first", map[string]*huma.MediaType{
		"application/json":  {Schema: schema(reflect.TypeFor[wire.Page[wire.Event]](), true, "")},
		"text/event-stream": {Schema: &huma.Schema{Type: huma.TypeString}},
	})
	register(r, events, h.events)
}

// eventsInput selects a part of a job's history. Last resumes a stream, Cursor continues
// a list; both are the seq of the last event seen.
type eventsInput struct {
	JobInput
	Accept string `header:"Accept" hidden:"true"`
	Last   string `header:"Last-Event-ID" maxLength:"20" doc:"follow after this one"`
	Paging
}

// eventPage is the default number of events in a page, and the number that a stream reads
// at a time.
const eventPage = 500

// events answers with a page of a job's history, or with a stream that follows the
// history.
func (h *eventHandlers) events(ctx context.Context, in *eventsInput) (*huma.StreamResponse, error) {
	id, err := h.job(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	from := in.Cursor
	if wantsStream(in.Accept) && in.Last != "" {
		from = in.Last
	}
	after, err := strconv.ParseInt(from, 10, 64)
	if from != "" && (err != nil || after < 0) {
		return nil, berth.Errorf(berth.CodeInvalid,
			"%.40q is no position in a history: cursor and Last-Event-ID are the seq of the last event seen", from)
	}
	if wantsStream(in.Accept) {
		return &huma.StreamResponse{Body: func(out huma.Context) {
			h.followEvents(humaecho.UnwrapV4(out), id, after)
		}}, nil
	}
	limit := in.Limit
	if limit == 0 {
		limit = eventPage
	}
	// One event more than the page reveals whether a next page exists.
	list, err := h.jobs.Events(ctx, scope(ctx), id, after, limit+1)
	if err != nil {
		return nil, err
	}
	next := ""
	if len(list) > limit {
		list = list[:limit]
		next = strconv.FormatInt(list[limit-1].Seq, 10)
	}
	return &huma.StreamResponse{Body: func(out huma.Context) {
		_ = writeJSON(humaecho.UnwrapV4(out), http.StatusOK, page(list, next))
	}}, nil
}

// followEvents sends a job's history after seq until the history is complete. The caller
// has checked that the job belongs to the calling tenant: from here on no query does.
func (h *eventHandlers) followEvents(c echo.Context, id berth.JobID, after int64) {
	t, err := h.streams.begin(c, followTransfer)
	if err != nil {
		h.streams.router.renderError(err, c)
		return
	}
	defer t.end()
	f := h.followed.watches.follow(t.ctx, id)
	defer f.leave()
	x := h.streams.startStream(c, t)
	err = x.follow(f.C, aside{}, func(ctx context.Context) (bool, error) {
		for {
			// Read the state first: if it is terminal now, the events read afterwards
			// include the last change of state.
			at, err := h.followed.at(ctx, id)
			if err != nil {
				return false, err
			}
			read := func(ctx context.Context) ([]wire.Event, error) {
				return h.jobs.Events(ctx, "", id, after, eventPage)
			}
			list, err := h.followed.events.get(ctx, eventsAfter{id, after}, read)
			if err != nil {
				return false, err
			}
			for _, e := range list {
				if err := x.send(strconv.FormatInt(e.Seq, 10), streamEvent, e); err != nil {
					return false, err
				}
				after = e.Seq
			}
			// A full page may not be the last one, so the state proves nothing yet.
			if len(list) == eventPage {
				continue
			}
			if at.state.Terminal() {
				return true, x.end(at.state)
			}
			return false, nil
		}
	})
	h.streams.endStream(c, t, err)
}

// followed holds the shared reads of clients that follow the same job. Followers that
// read at the same moment share one query.
type followed struct {
	jobs    *db.Jobs
	watches *watches

	states shared[berth.JobID, jobAt]
	events shared[eventsAfter, []wire.Event]
	logs   shared[logAt, logBlock]
}

// jobAt is the state and the current attempt of a job.
type jobAt struct {
	state   berth.State
	attempt int
}

// eventsAfter is a position in a job's history: after the event with this seq.
type eventsAfter struct {
	job berth.JobID
	seq int64
}

// at reads the present state of a job, shared with other followers. It checks no tenant.
func (f *followed) at(ctx context.Context, id berth.JobID) (jobAt, error) {
	return f.states.get(ctx, id, func(ctx context.Context) (at jobAt, err error) {
		at.state, at.attempt, err = f.jobs.State(ctx, "", id)
		return at, err
	})
}
