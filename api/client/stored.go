package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"berth/wire"
)

// BrokenLogError is the end of a stored log that broke off and could not be read on.
type BrokenLogError struct {
	Lines int // passed to the caller before
	Err   error
}

// Error returns the number of lines and the cause.
func (e *BrokenLogError) Error() string {
	return fmt.Sprintf("the log broke off after %d lines: %v", e.Lines, e.Err)
}

// Unwrap returns the error of the last call.
func (e *BrokenLogError) Unwrap() error { return e.Err }

// errOtherLog is the answer to a second call whose lines differ from the lines of the first.
var errOtherLog = errors.New("the lines before are no longer stored as they were")

// storedLog reads a stored log and passes each line to f once. An answer that breaks off is requested again, from the
// last line that f has seen. The first line fixes the attempt, since a job may begin another one meanwhile.
//
// A server of a previous version sends no positions. Each of its answers begins at the beginning, and the lines that f
// has seen are skipped. A log that grows has another tail in each such answer, so the rest of a tail is sought in a
// longer tail, and then in the whole log.
func storedLog(ctx context.Context, c *Client, r request, tail int, f func(wire.LogLine) error) error {
	s := storedReader{tail: tail > 0, f: f}
	broken := time.Time{}
	wait := reconnectFirst
	for {
		before := s.seen
		opened, err := c.lines(ctx, r, &s)
		if e, ok := errors.AsType[*callerError](err); ok {
			return e.err
		}
		switch {
		case err == nil && s.found:
			return nil
		case err == nil && r.query.Has("tail"):
			r.query.Del("tail")
			continue
		case err == nil:
			return &BrokenLogError{Lines: s.seen, Err: errOtherLog}
		case ctx.Err() != nil:
			return ctx.Err()
		case !opened && broken.IsZero() && s.seen == 0:
			return err
		case s.seen > before || broken.IsZero():
			broken, wait = time.Now(), reconnectFirst
		}
		if !passing(err) || time.Since(broken) > patience {
			return &BrokenLogError{Lines: s.seen, Err: err}
		}
		if s.seen > 0 {
			s.adjust(r.query, tail)
		}
		if err := pause(ctx, wait+rand.N(wait/4)); err != nil {
			return err
		}
		wait = min(2*wait, reconnectLast)
	}
}

// tailContext is the number of last lines by which the position in another tail is found, since one line may be stored
// several times with one stamp. tailGrowth is the factor by which the second tail is longer.
const (
	tailContext = 64
	tailGrowth  = 10
	tailMost    = 1_000_000 // the server's limit
)

// storedReader is the position in a stored log over all calls.
//
// The next answer begins with the last line that f has seen, by the position before that line: if the answer has
// another line there, the log is not the same any longer.
type storedReader struct {
	tail bool
	f    func(wire.LogLine) error
	seen int            // lines passed to f
	last []wire.LogLine // the last of these: one, or of a tail up to tailContext

	from  string // position before the last line, or before earlier ones; "": none is known
	after int    // lines passed to f after from
	end   string // position after the last line; "": not known

	skip    int            // lines of this answer up to the position; 0: the position is sought in a tail
	skipped int            // lines of this answer before the position
	window  []wire.LogLine // of a tail, the last of these, as many as last has
	found   bool           // the position is reached in this answer
}

// adjust sets attempt and tail of the next call, once lines were seen.
func (s *storedReader) adjust(query url.Values, tail int) {
	if attempt := s.last[len(s.last)-1].Attempt; attempt > 0 {
		query.Set("attempt", strconv.Itoa(attempt))
	}
	switch {
	case !query.Has("tail"):
	case tail > tailMost/tailGrowth:
		query.Del("tail")
	default:
		query.Set("tail", strconv.Itoa(tail*tailGrowth))
	}
}

// begin prepares for the lines of the next answer. resumed reports that the answer begins at the position from.
func (s *storedReader) begin(resumed bool) {
	s.skipped, s.window, s.skip, s.found = 0, nil, 0, s.seen == 0
	switch {
	case resumed:
		s.skip = s.after
	case !s.tail:
		s.skip = s.seen
	}
}

// storedRecord is a record of a stored log: a line, or the error before the answer breaks off.
type storedRecord struct {
	wire.LogLine
	Error *problemBody `json:"error"`
}

// take passes a line to f, or skips it. Its errors end the reading.
func (s *storedReader) take(data []byte) error {
	var record storedRecord
	if err := json.Unmarshal(data, &record); err != nil {
		return &callerError{fmt.Errorf("read log line: %w", err)}
	}
	if p := record.Error; p != nil {
		return p.asError(p.Status)
	}
	l, position := record.LogLine, record.Position
	l.Position = ""
	if s.found {
		return s.pass(l, position)
	}
	s.skipped++
	if s.skip == 0 {
		s.window = appendLast(s.window, l, len(s.last))
		s.found = slices.EqualFunc(s.window, s.last, sameLine)
		return nil
	}
	if s.found = s.skipped == s.skip; s.found && !sameLine(l, s.last[len(s.last)-1]) {
		return &callerError{&BrokenLogError{Lines: s.seen, Err: errOtherLog}}
	}
	return nil
}

// pass passes a line to f, and moves the position past it.
func (s *storedReader) pass(l wire.LogLine, position string) error {
	if err := s.f(l); err != nil {
		return &callerError{err}
	}
	most := 1
	if s.tail {
		most = tailContext
	}
	s.seen, s.last = s.seen+1, appendLast(s.last, l, most)
	if s.end != "" {
		s.from, s.after = s.end, 0
	}
	s.after, s.end = s.after+1, position
	return nil
}

// appendLast appends a line and keeps the last most lines.
func appendLast(list []wire.LogLine, l wire.LogLine, most int) []wire.LogLine {
	if len(list) == most {
		list = list[1:]
	}
	return append(list, l)
}

// sameLine reports whether two answers have the same line.
func sameLine(a, b wire.LogLine) bool {
	return a.At.Equal(b.At) && a.Text == b.Text && a.Stream == b.Stream && a.Attempt == b.Attempt &&
		a.Member == b.Member
}

// lines reads an answer with one JSON document per line. An answer that breaks off is an
// error, never a short log. opened reports that the server answered with a log.
func (c *Client) lines(ctx context.Context, r request, s *storedReader) (opened bool, err error) {
	r.header = http.Header{"Accept": {"application/x-ndjson;positions=true;errors=true"}}
	if s.from != "" {
		r.header.Set("Last-Event-ID", s.from)
	}
	res, err := c.send(ctx, r)
	if err != nil {
		return false, err
	}
	defer res.Body.Close()
	// A server of a previous version ignores the position.
	_, parameters, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	s.begin(s.from != "" && parameters["positions"] == "true")
	in := bufio.NewReader(res.Body)
	for {
		text, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) && len(text) == 0 {
			return true, nil
		}
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF // in the middle of a line
		}
		if err != nil {
			return true, err
		}
		if err := s.take(text); err != nil {
			return true, err
		}
	}
}
