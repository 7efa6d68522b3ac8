package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth"
	"berth/wire"
)

// streamSilence ends a connection without a sign of life: the server writes at least
// every 15 s. streamPatience bounds the time without a connection; the pause between
// tries grows from reconnectFirst to reconnectLast.
const (
	streamSilence  = 45 * time.Second // three heartbeats of the server
	streamPatience = 10 * time.Minute // since the stream broke
	reconnectFirst = 200 * time.Millisecond
	reconnectLast  = 5 * time.Second
	streamSteady   = time.Second // a connection that lives for this long is a sign of life of the server
	maxStreamLine  = 4 << 20
)

// FollowEvents calls f with each event of a job after seq, in order and as they happen,
// and returns nil when the job's history is complete. An error of f ends the stream and
// is returned. Broken connections are resumed for up to 10 minutes, without gap or
// repeat, and OnSilence learns of the time without one.
func (c *Client) FollowEvents(ctx context.Context, id berth.JobID, after int64, f func(wire.Event) error) error {
	last := ""
	if after > 0 {
		last = strconv.FormatInt(after, 10)
	}
	event := func(data []byte) error {
		var e wire.Event
		if err := json.Unmarshal(data, &e); err != nil {
			return fmt.Errorf("read event: %w", err)
		}
		return f(e)
	}
	r := request{method: http.MethodGet, path: jobPath(id) + "/events"}
	calls := map[string]func([]byte) error{"": event, "event": event}
	s := &follower{last: last, calls: calls, watch: streamWatch{report: c.OnSilence}}
	defer s.watch.stop()
	return s.follow(ctx, c, r)
}

// LogsQuery selects lines of a job's log. The zero value selects the whole stored log of
// member 0 in the latest attempt.
type LogsQuery struct {
	Attempt int // 0: the latest; with Follow also later ones
	Member  int
	Tail    int // 0: all
	Since   time.Time
	Grep    string // regular expression (RE2) that lines must match; "": all lines
	Follow  bool   // continue until the job has ended

	// Unfinished, with Follow, is called with the line that the member has not ended yet, such as a progress bar: about
	// once a second, each in place of the one before. An empty text means that there is none. nil: not wanted. A
	// server of a previous version sends none.
	Unfinished func(wire.LogLine) error

	// Silence, with Follow, is called with true when nothing has come from the server for 20 s, or no connection for
	// 2 s, and with false at the next sign of life. The last unfinished line may be an old one meanwhile. Another
	// goroutine may call it. nil: not wanted.
	Silence func(silent bool)

	// Fault, with Follow, is called with the error of a server that cannot read the log at present, once for each
	// connection: Logs tries again. A server of a previous version names no error. nil: not wanted.
	Fault func(err error)

	// Position, with Follow, is the position after which the stream begins. Each line advances it, and after an error
	// another call with it continues without gap or repeat. nil: from the beginning.
	Position *LogPosition
}

// LogPosition is a position in the log of one member of a job. The zero value is the beginning.
type LogPosition struct{ last string } // Last-Event-ID

// Logs calls f with each selected line, in order. With q.Follow it returns nil after the
// end of the job, and resumes broken connections as FollowEvents does. Without q.Follow an
// answer that breaks off is read on after the last line that f has seen: the server
// ends the answer to a caller whose f takes long. If that fails for 15 s, the error is a
// BrokenLogError. An error of f ends the call and is returned. A followed log with a damaged
// piece (wire.SlugLogDamaged) is given up after 15 s too.
func (c *Client) Logs(ctx context.Context, id berth.JobID, q LogsQuery, f func(wire.LogLine) error) error {
	v := url.Values{}
	for name, n := range map[string]int{"attempt": q.Attempt, "member": q.Member, "tail": q.Tail} {
		if n > 0 {
			v.Set(name, strconv.Itoa(n))
		}
	}
	if q.Grep != "" {
		v.Set("grep", q.Grep)
	}
	if !q.Since.IsZero() {
		v.Set("since", q.Since.UTC().Format(time.RFC3339Nano))
	}
	r := request{method: http.MethodGet, path: jobPath(id) + "/logs", query: v}
	line := func(data []byte) error {
		var l wire.LogLine
		if err := json.Unmarshal(data, &l); err != nil {
			return fmt.Errorf("read log line: %w", err)
		}
		return f(l)
	}
	if !q.Follow {
		return storedLog(ctx, c, r, q.Tail, f)
	}
	v.Set("follow", "true")
	s := &follower{calls: map[string]func([]byte) error{"": line, "log": line}, watch: streamWatch{report: q.Silence},
		fault: q.Fault}
	defer s.watch.stop()
	if q.Position != nil {
		s.last = q.Position.last
		defer func() { q.Position.last = s.last }()
	}
	if q.Unfinished == nil {
		return s.follow(ctx, c, r)
	}
	return s.followUnfinished(ctx, c, r, q)
}

// followUnfinished follows a log with its unfinished lines. A server of a previous version refuses them: at once, or
// after the connection to another server broke. The stream then continues after its last line, without them.
func (s *follower) followUnfinished(ctx context.Context, c *Client, r request, q LogsQuery) error {
	s.calls["unfinished"] = func(data []byte) error {
		var l wire.LogLine
		if err := json.Unmarshal(data, &l); err != nil {
			return fmt.Errorf("read unfinished line: %w", err)
		}
		return q.Unfinished(l)
	}
	r.query.Set("unfinished", "true")
	err := s.follow(ctx, c, r)
	e, ok := errors.AsType[*berth.Error](err)
	if !ok || !slices.ContainsFunc(e.Fields, func(f berth.FieldError) bool { return f.Field == "unfinished" }) {
		return err
	}
	if s.seen > 0 { // no event will replace the last unfinished line
		if err := q.Unfinished(wire.LogLine{Attempt: q.Attempt, Member: q.Member}); err != nil {
			return err
		}
	}
	r.query.Del("unfinished")
	return s.follow(ctx, c, r)
}

// callerError is an error of the caller's own function, which ends a stream: such an
// error must not be mistaken for a broken connection.
type callerError struct{ err error }

func (e *callerError) Error() string { return e.err.Error() }

// streamFault is an error that the server has named before it broke a stream off.
type streamFault struct{ err error }

// Error returns the error of the server.
func (e *streamFault) Error() string { return e.err.Error() }

// follow reads a stream to its end. A broken stream is resumed after the last event seen. Before the first connection
// succeeds, an error is returned at once. A connection that breaks without news counts as a failure: else a server that
// cannot read the log would be asked again and again, without an end.
func (s *follower) follow(ctx context.Context, c *Client, r request) error {
	broken, wait := time.Time{}, reconnectFirst
	for {
		from := s.last
		answered, moved, err := s.read(ctx, c, r)
		if e, ok := errors.AsType[*callerError](err); ok {
			return e.err
		}
		if s.ended {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		fault, named := errors.AsType[*streamFault](err)
		if named {
			err = fault.err
			s.watch.heard() // a server that names an error responds
		}
		switch {
		case named && !passing(err):
			return err
		case moved && !named, s.last != from:
			broken, wait = time.Time{}, reconnectFirst
		case named: // also if the server took long to fail
		case answered:
			err = fmt.Errorf("the stream breaks off each time that it is opened: %w", err)
		case broken.IsZero() && s.seen == 0 || !passing(err):
			return err
		}
		if broken.IsZero() {
			broken = time.Now()
		}
		most := streamPatience
		if berth.IsSlug(err, wire.SlugLogDamaged) {
			most = patience
		}
		if time.Since(broken) > most {
			return err
		}
		if named && s.fault != nil {
			s.fault(err)
		}
		// Jitter: followers of a restarted server do not come back together.
		if err := pause(ctx, wait+rand.N(wait/4)); err != nil {
			return err
		}
		wait = min(2*wait, reconnectLast)
	}
}

// passing reports whether the next try may succeed despite this error.
func passing(err error) bool {
	if e, ok := errors.AsType[*berth.Error](err); ok {
		return e.Code == berth.CodeUnavailable || e.Code == berth.CodeCapacity || e.Code == berth.CodeInternal
	}
	return true
}

// follower is the state of a stream over all its connections.
type follower struct {
	calls map[string]func(data []byte) error // for events by their name; others are ignored
	last  string                             // Last-Event-ID
	seen  int                                // connections that the server answered
	ended bool
	watch streamWatch
	fault func(err error) // takes errors that the server names; nil: not wanted
}

// read reads one connection to its end. answered reports that the server answered with a stream, and moved that the
// stream advanced, or lived for reconnectLast.
func (s *follower) read(ctx context.Context, c *Client, r request) (answered, moved bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.header = http.Header{"Accept": {"text/event-stream;errors=true"}}
	if s.last != "" {
		r.header.Set("Last-Event-ID", s.last)
	}
	res, err := c.send(ctx, r)
	if err != nil {
		return false, false, err
	}
	defer res.Body.Close()
	defer s.watch.broke()
	begun, from := time.Now(), s.last
	defer func() { moved = s.last != from || time.Since(begun) >= reconnectLast }()
	if s.seen++; s.seen == 1 {
		s.watch.heard()
	} else {
		steady := time.AfterFunc(streamSteady, s.watch.steady())
		defer steady.Stop()
	}
	// A connection that died without a close is ended by its silence.
	silence := time.AfterFunc(streamSilence, cancel)
	defer silence.Stop()
	in := bufio.NewReaderSize(res.Body, 64<<10)
	var e sse
	for news := false; ; {
		text, err := readLine(in)
		if err != nil {
			return true, false, err
		}
		silence.Reset(streamSilence)
		// The comment with which each stream begins says nothing about the next moment.
		if news = news || text != "" && text[0] != ':'; news || time.Since(begun) >= streamSteady {
			s.watch.heard()
		}
		if !e.add(text) {
			continue
		}
		if err := s.take(e); err != nil || s.ended {
			return true, false, err
		}
		e = sse{}
	}
}

// take passes an event to the caller. The position advances after the call: an event
// whose call failed was not seen.
func (s *follower) take(e sse) error {
	call := s.calls[e.name]
	switch {
	case e.name == "end":
		s.ended = true
	case e.name == "error":
		var p problemBody
		if err := json.Unmarshal([]byte(e.data), &p); err != nil {
			return fmt.Errorf("read the error of a stream: %w", err)
		}
		return &streamFault{p.asError(p.Status)}
	case e.data != "" && call != nil:
		s.watch.calling(true)
		err := call([]byte(e.data))
		s.watch.calling(false)
		if err != nil {
			return &callerError{err}
		}
	}
	if e.id != "" {
		s.last = e.id
	}
	return nil
}

// readLine returns a line without its end, up to maxStreamLine.
func readLine(in *bufio.Reader) (string, error) {
	var b strings.Builder
	for {
		part, more, err := in.ReadLine()
		if err != nil {
			return "", err
		}
		b.Write(part)
		if !more {
			return b.String(), nil
		}
		if b.Len() > maxStreamLine {
			return "", fmt.Errorf("a line of the stream is longer than %d bytes", maxStreamLine)
		}
	}
}

// sse is a server-sent event while its lines arrive.
type sse struct{ id, name, data string }

// add takes a line and reports whether this line ends an event. Comments, which the
// server sends as heartbeats, are ignored.
func (e *sse) add(line string) bool {
	if line == "" {
		return e.name != "" || e.data != ""
	}
	field, value, _ := strings.Cut(line, ":")
	value = strings.TrimPrefix(value, " ")
	switch field {
	case "id":
		e.id = value
	case "event":
		e.name = value
	case "data":
		if e.data != "" {
			e.data += "\n"
		}
		e.data += value
	}
	return false
}
