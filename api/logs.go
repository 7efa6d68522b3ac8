package api

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humaecho"

	"berth"
	"berth/db"
	"berth/wire"
)

// LogReader reads the logs of members.
type LogReader interface {
	// OpenLog returns the stored log from a byte offset to its present end, encoded: one
	// line each, <RFC3339Nano> <o|e> <text>\n. A log without stored pieces is empty, not
	// an error.
	OpenLog(ctx context.Context, log berth.LogRef, offset int64) (io.ReadCloser, error)
}

// logsInput selects lines of one member's log. Last resumes a stream; see logRead.resume.
type logsInput struct {
	JobInput
	Attempt int    `query:"attempt" minimum:"0" doc:"default: the latest; with follow, those that come after it too"`
	Member  int    `query:"member" minimum:"0" doc:"default 0"`
	Tail    int    `query:"tail" minimum:"0" maximum:"1000000" doc:"only the last lines"`
	Since   string `query:"since" doc:"a time (RFC 3339), or how long ago (10m)"`
	Grep    string `query:"grep" maxLength:"1000" doc:"only lines that match this regular expression (RE2)"`
	Follow  bool   `query:"follow"`

	Unfinished bool `query:"unfinished" doc:"with follow, send the unfinished line too, such as a progress bar"`

	Accept string `header:"Accept" hidden:"true"`
	Last   string `header:"Last-Event-ID" maxLength:"40"`
}

// logHandlers serve the logs of jobs.
type logHandlers struct {
	jobReader
	logs     *db.Logs
	reader   LogReader // nil: no logs are stored here
	streams  *streams
	followed *followed

	unfinished *unfinishedLines
}

func (h *logHandlers) mount(r *router) {
	schema := r.huma.OpenAPI().Components.Schemas.Schema
	logs := r.operation("read-logs", http.MethodGet, "/v1/jobs/{id}/logs", "jobs", "Read the log of a job")
	logs.Description = "Plain text, or with `Accept: application/x-ndjson` one document a line; with `follow=true` " +
		"server-sent events, one `log` a line, that go on into later attempts unless one was named, until `end`. " +
		"With `unfinished=true` events `unfinished` show the line that the member has not ended yet, such as a " +
		"progress bar: about once a second, each in place of the one before, an empty text when there is none. " +
		"They are no part of the stored log and do not change the position of the stream; a member whose output " +
		"is too fast, or one of too many on a machine, sends none. " +
		"With `grep`, `tail` counts matching lines; a line of more than 64 KiB is matched in pieces. " + logBreaks
	document(&logs, "The log", map[string]*huma.MediaType{
		"text/plain":        {Schema: &huma.Schema{Type: huma.TypeString}},
		ndjson:              {Schema: schema(reflect.TypeFor[wire.LogLine](), true, "")},
		"text/event-stream": {Schema: schema(reflect.TypeFor[wire.LogLine](), true, "")},
	})
	register(r, logs, h.readLogs)
}

// readLogs answers with the stored log, or with a stream that follows the log. Everything
// that can fail is checked before the answer begins, while the call holds its slot.
func (h *logHandlers) readLogs(ctx context.Context, in *logsInput) (*huma.StreamResponse, error) {
	if h.reader == nil {
		return nil, berth.Errorf(berth.CodeUnavailable, "this server has no store of logs")
	}
	id, err := h.job(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	job, err := h.logs.Job(ctx, scope(ctx), id)
	if err != nil {
		return nil, err
	}
	// Clients that follow a log from its beginning are at the same position as others.
	r := &logRead{of: h, job: id, named: in.Attempt > 0, tail: in.Tail, shares: in.Tail == 0 && in.Since == "",
		unfinished: in.Unfinished, errors: accepts(in.Accept, "errors"), positions: accepts(in.Accept, "positions")}
	r.ref = berth.LogRef{Tenant: job.Tenant, Job: id, Attempt: in.Attempt, Rank: in.Member}
	if !r.named {
		r.ref.Attempt = job.Attempt
	}
	if r.ref.Attempt > job.Attempt {
		return nil, berth.Errorf(berth.CodeNotFound, "job %s has no attempt %d; its latest is %d", id,
			in.Attempt, job.Attempt)
	}
	if job.Members > 0 && in.Member >= job.Members {
		return nil, berth.Errorf(berth.CodeNotFound, "job %s has no member %d; it has %d, counted from 0", id,
			in.Member, job.Members)
	}
	if in.Unfinished && !in.Follow && !wantsStream(in.Accept) {
		return nil, invalid("", []berth.FieldError{{Field: "unfinished",
			Detail: "is for followed logs: a stored log has finished lines only", Allowed: "with follow=true"}}, nil)
	}
	if in.Since != "" {
		if r.since, err = parseSince(in.Since); err != nil {
			return nil, invalid("", []berth.FieldError{{Field: "since", Detail: err.Error(),
				Allowed: "a time such as 2026-01-31T12:00:00Z, or how long ago, such as 10m"}}, nil)
		}
	}
	if in.Grep != "" {
		if r.grep, err = grepPattern(in.Grep); err != nil {
			return nil, invalid("", []berth.FieldError{{Field: "grep", Detail: err.Error(),
				Allowed: "a regular expression of RE2, such as (?i)error|nan"}}, nil)
		}
		r.shares = false // blocks are shared by followers of all lines
	}
	if err := r.resume(in.Last); err != nil {
		return nil, err
	}
	if !in.Follow && !wantsStream(in.Accept) {
		if err := r.begin(ctx); err != nil {
			return nil, err
		}
		return &huma.StreamResponse{Body: func(out huma.Context) {
			h.printLogs(out, r, strings.Contains(in.Accept, ndjson))
		}}, nil
	}
	if r.ref.Attempt > 0 { // the call still has its slot
		if err := r.begin(ctx); err != nil {
			return nil, err
		}
	}
	return &huma.StreamResponse{Body: func(out huma.Context) { h.followLogs(out, r) }}, nil
}

// ndjson is the media type for programs: one LogLine per line.
const ndjson = "application/x-ndjson"

// printLogs answers with the stored log, as plain text or as documents. It opens the log
// before the answer begins, so that an unavailable store is an error and not an empty
// log.
func (h *logHandlers) printLogs(out huma.Context, r *logRead, documents bool) {
	c := humaecho.UnwrapV4(out)
	t, err := h.streams.begin(c, downloadTransfer)
	if err != nil {
		h.streams.router.renderError(err, c)
		return
	}
	defer t.end()
	in, err := h.reader.OpenLog(t.ctx, r.ref, r.offset)
	if err == nil {
		if err = r.countBeyond(t.ctx); err != nil {
			_ = in.Close()
		}
	}
	if err != nil {
		h.streams.router.renderError(err, c)
		return
	}
	defer in.Close()
	kind, format := "text/plain; charset=utf-8", func(b []byte, l wire.LogLine) ([]byte, error) {
		return append(append(b, l.Text...), '\n'), nil
	}
	if documents {
		kind, format = r.documents()
	}
	c.Response().Header().Set("Content-Type", kind)
	c.Response().WriteHeader(http.StatusOK)
	var text []byte
	err = r.lines(in, true, func(l wire.LogLine) (err error) {
		if text, err = format(text[:0], l); err == nil {
			_, err = t.Write(text)
		}
		return err
	})
	if err != nil {
		if documents {
			r.breakOff(t, errorDocument, err)
		} else {
			r.breakOff(t, nil, err)
		}
		// A client must not take half a log for the whole, so the connection is cut.
		h.streams.logStream(c, err)
		panic(http.ErrAbortHandler)
	}
}

// followLogs sends lines until the job has ended and all its lines are sent. Unless an
// attempt was named, the stream continues with the log of the next attempt.
func (h *logHandlers) followLogs(out huma.Context, r *logRead) {
	c := humaecho.UnwrapV4(out)
	t, err := h.streams.begin(c, followTransfer)
	if err != nil {
		h.streams.router.renderError(err, c)
		return
	}
	defer t.end()
	f := h.followed.watches.follow(t.ctx, r.job)
	defer f.leave()
	x := h.streams.startStream(c, t)
	also, leave := h.unfinished.stream(t.ctx, r, x)
	defer leave()
	err = x.follow(f.C, also, func(ctx context.Context) (bool, error) {
		for {
			// Read the state first: lines written before an end are then in the store.
			at, err := h.followed.at(ctx, r.job)
			if err != nil {
				return false, err
			}
			over := at.state.Terminal() || at.attempt > r.ref.Attempt
			if err := r.send(ctx, x, over); err != nil {
				return false, err
			}
			if !over {
				return false, nil
			}
			if r.named || at.attempt <= r.ref.Attempt {
				return true, x.end(at.state)
			}
			r.ref.Attempt, r.offset, r.skip, r.beyond, r.begun = r.ref.Attempt+1, 0, 0, 0, true
		}
	})
	r.breakOff(t, errorEvent, err)
	h.streams.endStream(c, t, err)
}

// logRead is a position in the logs of one member of a job.
type logRead struct {
	of         *logHandlers
	job        berth.JobID
	ref        berth.LogRef
	named      bool // the caller named the attempt; later ones are left out
	tail       int
	since      time.Time
	offset     int64          // of the next byte to read
	skip       int            // lines from offset on that come before the tail
	begun      bool           // tail and since are applied to offset and skip
	grep       *regexp.Regexp // nil: all lines
	counted    bool           // beyond is known
	beyond     int            // matching lines from offset on that come before the tail
	unfinished bool           // the caller asked for the unfinished line
	shares     bool           // other followers are likely at this position: see sendNew
	errors     bool           // the client takes an error as the last record
	positions  bool           // the client takes the position after each line
	whole      bool           // offset is at the end of a line
}

// resume sets the position from Last-Event-ID: <attempt>-<offset>. The position of
// another attempt is refused if the caller named an attempt. A tail has its beginning before
// the position.
func (r *logRead) resume(last string) error {
	if last == "" {
		return nil
	}
	a, o, _ := strings.Cut(last, "-")
	attempt, err1 := strconv.Atoi(a)
	offset, err2 := strconv.ParseInt(o, 10, 64)
	if err1 != nil || err2 != nil || attempt < 1 || offset < 0 || attempt > r.ref.Attempt ||
		r.named && attempt != r.ref.Attempt {
		return berth.Errorf(berth.CodeInvalid, "Last-Event-ID %.40q is not one that this stream gave", last)
	}
	r.ref.Attempt, r.offset, r.begun, r.counted = attempt, offset, true, true
	return nil
}

// begin finds the start position for tail and since, once.
func (r *logRead) begin(ctx context.Context) error {
	if r.begun || r.tail == 0 && r.since.IsZero() {
		return nil
	}
	tail := r.tail
	if r.grep != nil {
		tail = 0 // counts matching lines, which the database does not know
	}
	start, err := r.of.logs.Start(ctx, r.ref, tail, r.since)
	if err == nil {
		r.offset, r.skip, r.begun = start.Offset, start.Skip, true
	}
	return err
}

// countBeyond reads the stored log and counts the matching lines before the last tail ones, once.
// The log is then read a second time, so that the server holds no lines, however many are
// requested. It is part of the transfer, since it may take as long.
func (r *logRead) countBeyond(ctx context.Context) error {
	if r.grep == nil || r.tail == 0 || r.counted {
		return nil
	}
	r.counted = true
	in, err := r.of.reader.OpenLog(ctx, r.ref, r.offset)
	if err != nil {
		return err
	}
	defer in.Close()
	matches, count := 0, *r
	err = count.lines(in, true, func(wire.LogLine) error {
		matches++
		return ctx.Err()
	})
	r.beyond = max(matches-r.tail, 0)
	return err
}

// send streams the stored log past the position. over means that the log is complete, so
// that a last line without its line feed is sent too.
func (r *logRead) send(ctx context.Context, x *stream, over bool) error {
	if r.ref.Attempt == 0 {
		return nil
	}
	if err := r.begin(ctx); err != nil {
		return err
	}
	if err := r.countBeyond(ctx); err != nil {
		return err
	}
	if r.shares && !over {
		more, err := r.sendNew(ctx, x)
		if err != nil || !more {
			return err
		}
	}
	in, err := r.of.reader.OpenLog(ctx, r.ref, r.offset)
	if err != nil {
		return err
	}
	defer in.Close()
	var text []byte
	err = r.lines(in, over, func(l wire.LogLine) (err error) {
		if text, err = appendEvent(text[:0], r.id(), streamLog, l); err == nil {
			_, err = x.t.Write(text)
		}
		return err
	})
	r.shares = err == nil && r.skip == 0 && r.since.IsZero() && r.grep == nil // a shared block is not filtered
	return err
}

// id is the Last-Event-ID at which a stream resumes after the line that was just read.
func (r *logRead) id() string {
	return strconv.Itoa(r.ref.Attempt) + "-" + strconv.FormatInt(r.offset, 10)
}

// logAt is a position in a log.
type logAt struct {
	ref    berth.LogRef
	offset int64
}

// logBlock is the part of the log after a position, at most a transferBlock, as events.
// Followers that start at the beginning, or have caught up, are at the same position, so
// they send the same block.
type logBlock struct {
	text []byte
	next int64 // offset after the block
	full bool  // the log may go on after the block
}

// sendNew sends the lines added since the last call. more reports that the log may go on.
func (r *logRead) sendNew(ctx context.Context, x *stream) (more bool, err error) {
	b, err := r.of.followed.logs.get(ctx, logAt{r.ref, r.offset}, r.block)
	if err != nil {
		return false, err
	}
	if _, err := x.t.Write(b.text); err != nil {
		return false, err
	}
	r.offset = b.next
	return b.full, nil
}

// block reads the block at r's position, without moving the position.
func (r *logRead) block(ctx context.Context) (b logBlock, err error) {
	at := logRead{of: r.of, job: r.job, ref: r.ref, offset: r.offset, begun: true}
	in, err := r.of.reader.OpenLog(ctx, r.ref, r.offset)
	if err != nil {
		return b, err
	}
	defer in.Close()
	left := &io.LimitedReader{R: in, N: transferBlock}
	err = at.lines(left, false, func(l wire.LogLine) (err error) {
		b.text, err = appendEvent(b.text, at.id(), streamLog, l)
		return err
	})
	b.next, b.full = at.offset, left.N == 0
	if err != nil && at.offset > r.offset { // the next read begins after these lines, and fails
		b.full, err = true, nil
	}
	return b, err
}

// logBuffers are readers that hold transferBlock bytes of a log each; a longer line comes
// in pieces. Machines write lines of at most 16 KiB.
var logBuffers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, transferBlock) }}

// lines reads whole lines, moves the position past each, and passes the requested ones to
// f. A line that is still being written is left for the next call, unless over.
func (r *logRead) lines(in io.Reader, over bool, f func(wire.LogLine) error) error {
	buf := logBuffers.Get().(*bufio.Reader)
	buf.Reset(in)
	defer func() {
		buf.Reset(nil)
		logBuffers.Put(buf)
	}()
	var before *wire.LogLine // a line too long for the buffer; its rest comes next
	for {
		raw, err := buf.ReadSlice('\n')
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bufio.ErrBufferFull) {
			return fmt.Errorf("read log of job %s: %w", r.job, err)
		}
		ended := errors.Is(err, io.EOF)
		if len(raw) == 0 || ended && !over {
			return nil
		}
		line := r.parse(raw)
		if before != nil {
			line.At, line.Stream, line.Text = before.At, before.Stream, rawText(raw)
		}
		if before = nil; errors.Is(err, bufio.ErrBufferFull) {
			before = &line
		}
		r.offset += int64(len(raw))
		r.whole = raw[len(raw)-1] == '\n'
		switch {
		case r.skip > 0:
			if before == nil {
				r.skip--
			}
		case !r.since.IsZero() && line.At.Before(r.since), r.grep != nil && !r.grep.MatchString(line.Text):
		case r.beyond > 0:
			r.beyond--
		default:
			if err := f(line); err != nil {
				return err
			}
		}
		if ended {
			return nil
		}
	}
}

// rawText returns a line without its line feed, with invalid UTF-8 replaced.
func rawText(raw []byte) string {
	return strings.ToValidUTF8(string(bytes.TrimSuffix(raw, []byte("\n"))), "\uFFFD")
}

// parse reads <RFC3339Nano> <o|e> <text>. A line in another format is shown unchanged.
func (r *logRead) parse(raw []byte) wire.LogLine {
	text := rawText(raw)
	line := wire.LogLine{Stream: "stdout", Text: text, Attempt: r.ref.Attempt, Member: r.ref.Rank}
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
