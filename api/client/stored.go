package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
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

// storedLog reads a stored log and passes each line to f once. An answer that breaks off is requested again: the lines
// that f has seen are skipped, by their number, or after the last of a tail by the last line seen, since a log that
// grows has another tail. The attempt is fixed by the first line, since a job may begin another one meanwhile.
func storedLog(ctx context.Context, c *Client, r request, tail bool, f func(wire.LogLine) error) error {
	s := storedReader{tail: tail, f: f}
	broken := time.Time{}
	wait := reconnectFirst
	for {
		before := s.seen
		opened, err := c.lines(ctx, r, s.begin())
		if e, ok := errors.AsType[*callerError](err); ok {
			return e.err
		}
		switch {
		case err == nil && s.found:
			return nil
		case err == nil:
			return &BrokenLogError{Lines: s.seen, Err: errOtherLog}
		case ctx.Err() != nil:
			return ctx.Err()
		case !opened && broken.IsZero() && s.seen == 0:
			return err
		case s.seen > before || broken.IsZero():
			broken, wait = time.Now(), reconnectFirst
		}
		if !opened && !passing(err) || time.Since(broken) > patience {
			return &BrokenLogError{Lines: s.seen, Err: err}
		}
		if s.seen > 0 && s.last.Attempt > 0 {
			r.query.Set("attempt", strconv.Itoa(s.last.Attempt))
		}
		if err := pause(ctx, wait+rand.N(wait/4)); err != nil {
			return err
		}
		wait = min(2*wait, reconnectLast)
	}
}

// storedReader is the position in a stored log over all calls.
type storedReader struct {
	tail bool
	f    func(wire.LogLine) error
	seen int          // lines passed to f
	last wire.LogLine // the last of them

	skipped int  // lines of this answer before the position
	found   bool // the position is reached in this answer
}

// begin returns the function for the lines of the next answer.
func (s *storedReader) begin() func([]byte) error {
	s.skipped, s.found = 0, s.seen == 0
	return s.take
}

// take passes a line to f, or skips it. Its errors end the reading.
func (s *storedReader) take(data []byte) error {
	var l wire.LogLine
	if err := json.Unmarshal(data, &l); err != nil {
		return &callerError{fmt.Errorf("read log line: %w", err)}
	}
	if !s.found {
		s.skipped++
		same := l.At.Equal(s.last.At) && l.Text == s.last.Text && l.Stream == s.last.Stream &&
			l.Attempt == s.last.Attempt && l.Member == s.last.Member
		if !s.tail && s.skipped == s.seen && !same {
			return &callerError{&BrokenLogError{Lines: s.seen, Err: errOtherLog}}
		}
		s.found = same && (s.tail || s.skipped == s.seen)
		return nil
	}
	if err := s.f(l); err != nil {
		return &callerError{err}
	}
	s.seen, s.last = s.seen+1, l
	return nil
}

// lines reads an answer with one JSON document per line. An answer that breaks off is an
// error, never a short log. opened reports that the server answered with a log.
func (c *Client) lines(ctx context.Context, r request, f func([]byte) error) (opened bool, err error) {
	r.header = http.Header{"Accept": {"application/x-ndjson"}}
	res, err := c.send(ctx, r)
	if err != nil {
		return false, err
	}
	defer res.Body.Close()
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
		if err := f(text); err != nil {
			return true, err
		}
	}
}
