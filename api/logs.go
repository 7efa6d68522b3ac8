package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humaecho"
	"github.com/labstack/echo/v4"

	"berth"
	"berth/db"
)

// LogReader reads what ranks have written.
type LogReader interface {
	// OpenLog returns the stored log from a byte offset to its present end,
	// encoded: one line each, <RFC3339Nano> <o|e> <text>\n. A log of which
	// nothing is stored is empty, not an error.
	OpenLog(ctx context.Context, log berth.LogRef, offset int64) (io.ReadCloser, error)
}

type logsInput struct {
	JobInput
	Attempt int    `query:"attempt" minimum:"0" doc:"default: the latest; with follow, those that come after it too"`
	Member  int    `query:"member" minimum:"0" doc:"default 0"`
	Tail    int    `query:"tail" minimum:"0" maximum:"1000000" doc:"only the last lines"`
	Since   string `query:"since" doc:"a time (RFC 3339), or how long ago (10m)"`
	Follow  bool   `query:"follow"`
	Accept  string `header:"Accept" hidden:"true"`
	Last    string `header:"Last-Event-ID" maxLength:"40"`
}

func (s *Server) logs(ctx context.Context, in *logsInput) (*huma.StreamResponse, error) {
	if s.Logs == nil {
		return nil, berth.Errorf(berth.CodeUnavailable, "this server has no store of logs")
	}
	job, err := s.showJob(ctx, &in.JobInput)
	if err != nil {
		return nil, err
	}
	r := &logRead{s: s, job: job.Body.ID, named: in.Attempt > 0, tail: in.Tail}
	r.ref = berth.LogRef{Tenant: job.Body.Tenant, Job: job.Body.ID, Attempt: in.Attempt, Rank: in.Member}
	if !r.named {
		r.ref.Attempt = job.Body.Attempt
	}
	if r.ref.Attempt > job.Body.Attempt {
		return nil, berth.Errorf(berth.CodeNotFound, "job %s has no attempt %d; its latest is %d", job.Body.ID, in.Attempt, job.Body.Attempt)
	}
	if job.Body.Spec != nil && in.Member >= job.Body.Spec.Members {
		return nil, berth.Errorf(berth.CodeNotFound, "job %s has no member %d; it has %d, counted from 0", job.Body.ID, in.Member, job.Body.Spec.Members)
	}
	if in.Since != "" {
		if r.since, err = parseSince(in.Since); err != nil {
			return nil, invalid("", []berth.FieldError{{Field: "since", Detail: err.Error(), Allowed: "a time such as 2026-01-31T12:00:00Z, or how long ago, such as 10m"}}, nil)
		}
	}
	if !in.Follow && !wantsStream(in.Accept) {
		return s.printLogs(ctx, r, strings.Contains(in.Accept, ndjson))
	}
	if err := r.resume(in.Last); err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(h huma.Context) { s.followLogs(humaecho.UnwrapV4(h), r) }}, nil
}

// ndjson is the answer for programs: one LogLine a line.
const ndjson = "application/x-ndjson"

// printLogs answers what is stored, as plain text or as documents. It is opened
// before the answer begins, so that a store that is down is an error and not an
// empty log.
func (s *Server) printLogs(ctx context.Context, r *logRead, documents bool) (*huma.StreamResponse, error) {
	if err := r.begin(ctx); err != nil {
		return nil, err
	}
	in, err := s.Logs.OpenLog(ctx, r.ref, r.offset)
	if err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(h huma.Context) {
		defer in.Close()
		c := humaecho.UnwrapV4(h)
		kind, print := "text/plain; charset=utf-8", func(l berth.LogLine) error {
			_, err := io.WriteString(c.Response(), l.Text+"\n")
			return err
		}
		if documents {
			kind, print = ndjson, func(l berth.LogLine) error { return json.NewEncoder(c.Response()).Encode(l) }
		}
		c.Response().Header().Set("Content-Type", kind)
		c.Response().WriteHeader(http.StatusOK)
		control := http.NewResponseController(c.Response())
		err := r.lines(in, true, func(l berth.LogLine) error {
			_ = control.SetWriteDeadline(time.Now().Add(streamWrite))
			return print(l)
		})
		if err != nil {
			// A client must not take half a log for the whole.
			s.logStream(c, err)
			panic(http.ErrAbortHandler)
		}
	}}, nil
}

// followLogs sends lines until the job has ended and all of them are out.
func (s *Server) followLogs(c echo.Context, r *logRead) {
	hint := s.DB.Hub().Subscribe(db.TopicJob, string(r.job))
	defer hint.Close()
	tenant := scope(c.Request().Context())
	t := s.startStream(c)
	err := t.follow(hint.C, func(ctx context.Context) (bool, error) {
		for {
			// The state first: what was written before it is in the store.
			state, attempt, err := s.DB.JobState(ctx, tenant, r.job)
			if err != nil {
				return false, err
			}
			over := state.Terminal() || attempt > r.ref.Attempt
			if err := r.send(ctx, t, over); err != nil {
				return false, err
			}
			if !over {
				return false, nil
			}
			if r.named || attempt <= r.ref.Attempt {
				return true, t.end(state)
			}
			r.ref.Attempt, r.offset, r.begun = r.ref.Attempt+1, 0, true
		}
	})
	s.logStream(c, err)
}

// logRead is a position in the logs of one member of a job.
type logRead struct {
	s      *Server
	job    berth.JobID
	ref    berth.LogRef
	named  bool // the attempt was asked for; others do not follow
	tail   int
	since  time.Time
	offset int64 // of the next byte to read
	begun  bool  // offset is where it should be; tail is spent
}

// resume takes up a stream where Last-Event-ID says: <attempt>-<offset>.
func (r *logRead) resume(last string) error {
	if last == "" {
		return nil
	}
	a, o, _ := strings.Cut(last, "-")
	attempt, err1 := strconv.Atoi(a)
	offset, err2 := strconv.ParseInt(o, 10, 64)
	if err1 != nil || err2 != nil || attempt < 1 || offset < 0 || attempt > r.ref.Attempt || r.named && attempt != r.ref.Attempt {
		return berth.Errorf(berth.CodeInvalid, "Last-Event-ID %.40q is not one that this stream gave", last)
	}
	r.ref.Attempt, r.offset, r.begun = attempt, offset, true
	return nil
}

// begin finds where to read from, once.
func (r *logRead) begin(ctx context.Context) error {
	if r.begun || r.tail == 0 && r.since.IsZero() {
		return nil
	}
	offset, err := r.s.DB.LogStart(ctx, r.ref, r.tail, r.since)
	r.offset = offset
	return err
}

// send streams what is stored past the position. over says that nothing will
// be added, so that a last line without its end is sent too.
func (r *logRead) send(ctx context.Context, t *stream, over bool) error {
	if r.ref.Attempt == 0 {
		return nil
	}
	if err := r.begin(ctx); err != nil {
		return err
	}
	in, err := r.s.Logs.OpenLog(ctx, r.ref, r.offset)
	if err != nil {
		return err
	}
	defer in.Close()
	err = r.lines(in, over, func(l berth.LogLine) error {
		return t.send(fmt.Sprintf("%d-%d", r.ref.Attempt, r.offset), streamLog, l)
	})
	r.begun = true
	return err
}

// maxLogLine is how much of a line is held at once; the rest follows as if it
// were a line of its own.
const maxLogLine = 1 << 20

// lines reads whole lines, moves the position past each and gives those that
// were asked for to f. With a tail the last ones are given at the end.
func (r *logRead) lines(in io.Reader, over bool, f func(berth.LogLine) error) error {
	var last []positioned
	tail := r.tail
	if r.begun {
		tail = 0
	}
	buf := bufio.NewReaderSize(in, maxLogLine)
	read := r.offset
	for {
		raw, err := buf.ReadSlice('\n')
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bufio.ErrBufferFull) {
			return fmt.Errorf("read log of job %s: %w", r.job, err)
		}
		ended := errors.Is(err, io.EOF)
		if len(raw) == 0 || ended && !over {
			break
		}
		read += int64(len(raw))
		line := r.parse(raw)
		switch {
		case !r.since.IsZero() && line.At.Before(r.since):
			r.offset = read
		case tail > 0:
			last = append(last, positioned{line, read})
			if len(last) > 2*tail {
				last = append(last[:0], last[len(last)-tail:]...)
			}
		default:
			r.offset = read
			if err := f(line); err != nil {
				return err
			}
		}
		if ended {
			break
		}
	}
	for _, p := range last[max(0, len(last)-max(tail, 0)):] {
		r.offset = p.end
		if err := f(p.line); err != nil {
			return err
		}
	}
	return nil
}

type positioned struct {
	line berth.LogLine
	end  int64
}

// parse reads <RFC3339Nano> <o|e> <text>. What has no such beginning is shown
// as it stands.
func (r *logRead) parse(raw []byte) berth.LogLine {
	text := strings.ToValidUTF8(string(bytes.TrimSuffix(raw, []byte("\n"))), "\uFFFD")
	line := berth.LogLine{Stream: "stdout", Text: text, Attempt: r.ref.Attempt, Member: r.ref.Rank}
	stamp, rest, _ := strings.Cut(text, " ")
	kind, words, _ := strings.Cut(rest, " ")
	at, err := time.Parse(time.RFC3339Nano, stamp)
	if err != nil || kind != "o" && kind != "e" {
		return line
	}
	line.At, line.Text = at, words
	if kind == "e" {
		line.Stream = "stderr"
	}
	return line
}
