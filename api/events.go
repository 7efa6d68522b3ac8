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
	"berth/wire"
)

func (s *Server) registerStreams() {
	schema := s.huma.OpenAPI().Components.Schemas.Schema
	events := s.operation("list-events", http.MethodGet, "/v1/jobs/{id}/events", "jobs", "A job's history, with who did what and why")
	events.Description = "With `Accept: text/event-stream` it follows: each event has the id of its seq, `Last-Event-ID` resumes without gap or repeat, and the event `end` says that the job's history is complete."
	document(&events, "The history, oldest first", map[string]*huma.MediaType{
		"application/json":  {Schema: schema(reflect.TypeFor[wire.Page[wire.Event]](), true, "")},
		"text/event-stream": {Schema: &huma.Schema{Type: huma.TypeString}},
	})
	register(s, events, s.events)
	logs := s.operation("read-logs", http.MethodGet, "/v1/jobs/{id}/logs", "jobs", "What a job has written")
	logs.Description = "Plain text, or with `Accept: application/x-ndjson` one document a line; with `follow=true` server-sent events, one `log` a line, that go on into later attempts unless one was named, until `end`."
	document(&logs, "The log", map[string]*huma.MediaType{
		"text/plain":        {Schema: &huma.Schema{Type: huma.TypeString}},
		ndjson:              {Schema: schema(reflect.TypeFor[wire.LogLine](), true, "")},
		"text/event-stream": {Schema: schema(reflect.TypeFor[wire.LogLine](), true, "")},
	})
	register(s, logs, s.logs)
}

type eventsInput struct {
	JobInput
	Accept string `header:"Accept" hidden:"true"`
	Last   string `header:"Last-Event-ID" maxLength:"20" doc:"follow after this one"`
	Paging
}

const eventPage = 500

func (s *Server) events(ctx context.Context, in *eventsInput) (*huma.StreamResponse, error) {
	id, err := s.job(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	from := in.Cursor
	if wantsStream(in.Accept) && in.Last != "" {
		from = in.Last
	}
	after, err := strconv.ParseInt(from, 10, 64)
	if from != "" && (err != nil || after < 0) {
		return nil, berth.Errorf(berth.CodeInvalid, "%.40q is no position in a history: cursor and Last-Event-ID are the seq of the last event seen", from)
	}
	if wantsStream(in.Accept) {
		return &huma.StreamResponse{Body: func(h huma.Context) { s.followEvents(humaecho.UnwrapV4(h), id, after) }}, nil
	}
	limit := in.Limit
	if limit == 0 {
		limit = eventPage
	}
	list, err := s.DB.Jobs.Events(ctx, scope(ctx), id, after, limit+1)
	if err != nil {
		return nil, err
	}
	next := ""
	if len(list) > limit {
		list = list[:limit]
		next = strconv.FormatInt(list[limit-1].Seq, 10)
	}
	return &huma.StreamResponse{Body: func(h huma.Context) { _ = writeJSON(humaecho.UnwrapV4(h), http.StatusOK, page(list, next)) }}, nil
}

// followEvents sends a job's history after seq until it is complete. The caller
// has made sure whose job it is.
func (s *Server) followEvents(c echo.Context, id berth.JobID, after int64) {
	t, err := s.begin(c, followTransfer)
	if err != nil {
		s.renderError(err, c)
		return
	}
	defer t.end()
	f := s.watches.follow(t.ctx, id)
	defer f.leave()
	x := s.startStream(c, t)
	err = x.follow(f.C, func(ctx context.Context) (bool, error) {
		for {
			// The state first: if it is terminal now, the events that follow in
			// this look include the last change of state.
			at, err := s.jobAt(ctx, id)
			if err != nil {
				return false, err
			}
			list, err := s.followed.events.get(ctx, eventsAfter{id, after}, func(ctx context.Context) ([]wire.Event, error) {
				return s.DB.Jobs.Events(ctx, "", id, after, eventPage)
			})
			if err != nil {
				return false, err
			}
			for _, e := range list {
				if err := x.send(strconv.FormatInt(e.Seq, 10), streamEvent, e); err != nil {
					return false, err
				}
				after = e.Seq
			}
			if len(list) == eventPage {
				continue
			}
			if at.state.Terminal() {
				return true, x.end(at.state)
			}
			return false, nil
		}
	})
	s.endStream(c, t, err)
}

// followed are the shared reads of clients that follow the same job.
type followed struct {
	states shared[berth.JobID, jobAt]
	events shared[eventsAfter, []wire.Event]
	logs   shared[logAt, logBlock]
}

type jobAt struct {
	state   berth.State
	attempt int
}

type eventsAfter struct {
	job berth.JobID
	seq int64
}

func (s *Server) jobAt(ctx context.Context, id berth.JobID) (jobAt, error) {
	return s.followed.states.get(ctx, id, func(ctx context.Context) (at jobAt, err error) {
		at.state, at.attempt, err = s.DB.Jobs.State(ctx, "", id)
		return at, err
	})
}

// endStream closes the connection of a stream that was cut or broke off, since
// its caller may not take that for the end.
func (s *Server) endStream(c echo.Context, t *transfer, err error) {
	s.logStream(c, err)
	if err != nil || t.broken() != nil {
		panic(http.ErrAbortHandler)
	}
}

// logStream says why a stream broke off, where it was not the client's doing.
func (s *Server) logStream(c echo.Context, err error) {
	if err != nil && c.Request().Context().Err() == nil {
		s.Logger.Warn("stream broke off", "path", c.Path(), "err", err)
	}
}
