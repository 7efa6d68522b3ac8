package web

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"berth"
	"berth/api/client"
	"berth/wire"
)

// tailEvery is the pause between two events with lines: a log of 5,000 lines a second is five events.
const tailEvery = 200 * time.Millisecond

// tailMost is the number of lines of one event. The browser keeps logMost of them anyway.
const tailMost = 1000

// tailPage streams the lines of a log that follow the page, as rows of the same HTML. The stream ends
// with the event end after the last line of the log, or with bye after a sign-out. Without either it
// was cut: the browser connects again, with the id of its last event.
func (s *Site) tailPage(ctx context.Context, v *visit) (result, error) {
	if err := s.boards.enter(v.page.Reader.TokenID, noBoard); err != nil {
		return result{}, err
	}
	defer s.boards.leave(v.page.Reader.TokenID, noBoard)
	attempt, _ := strconv.Atoi(v.query("attempt"))
	member, _ := strconv.Atoi(v.query("member"))
	last := lastLine(v)
	if _, err := v.api.Job(ctx, v.job()); err != nil {
		return result{}, err // before the answer begins
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// lines has no buffer: a browser that reads slowly slows down the call, instead of filling the
	// memory here.
	lines, ended := make(chan wire.LogLine), make(chan error, 1)
	go func() { // ends with ctx; awaited below
		defer close(ended)
		q := client.LogsQuery{Attempt: attempt, Member: member, Since: last.at, Follow: true}
		ended <- v.api.Logs(ctx, v.job(), q, func(l wire.LogLine) error {
			select {
			case lines <- l:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
	}()
	out := newEvents(v)
	err := s.passLines(ctx, out, lines, ended, last)
	cancel()
	for range ended { // until the reading has ended
	}
	switch {
	case errors.Is(err, errTailEnded):
		return result{}, out.end("end")
	case berth.CodeOf(err) == berth.CodeUnauthorized:
		return result{}, out.end("bye")
	}
	return result{}, errWritten // without an end, so that the browser connects again
}

// errTailEnded is the end of the log itself, and errTailCut an end of the stream before it.
var (
	errTailEnded = errors.New("the log has ended")
	errTailCut   = errors.New("the server stops")
)

// tailed is the last line that the reader has. Several lines may have the same time, so a time alone is
// no position.
type tailed struct {
	number int
	at     time.Time
	same   int // lines at this time that the reader has; 0: all of them
}

// String is the position as the id of an event.
func (l tailed) String() string {
	return fmt.Sprintf("%d/%d/%s", l.number, l.same, l.at.UTC().Format(time.RFC3339Nano))
}

// lastLine is the position of a reader: of the last event that it got, or of its page. After a cut, the
// id of the last event takes precedence over the address, which is that of the page.
func lastLine(v *visit) (l tailed) {
	part := strings.Split(v.r.Header.Get("Last-Event-ID"), "/")
	if len(part) == 3 {
		number, err1 := strconv.Atoi(part[0])
		same, err2 := strconv.Atoi(part[1])
		at, err3 := time.Parse(time.RFC3339Nano, part[2])
		if errors.Join(err1, err2, err3) == nil && number >= 0 && same >= 0 {
			return tailed{number, at, same}
		}
	}
	l.number, _ = strconv.Atoi(v.query("after"))
	l.at, _ = time.Parse(time.RFC3339Nano, v.query("since"))
	return l
}

// news reports for each line of a log from the position on whether the reader lacks it.
func (l tailed) news() func(at time.Time) bool {
	seen := 0
	return func(at time.Time) bool {
		if at.Equal(l.at) {
			seen++
			return l.same > 0 && seen > l.same
		}
		return at.After(l.at)
	}
}

// next is the position after a further line.
func (l tailed) next(at time.Time) tailed {
	if at.Equal(l.at) {
		return tailed{l.number + 1, at, l.same + 1}
	}
	return tailed{l.number + 1, at, 1}
}

// passLines sends lines in groups until the log, the session or the reader ends.
func (s *Site) passLines(ctx context.Context, out *events, lines <-chan wire.LogLine, ended <-chan error,
	last tailed) error {
	tick := time.NewTicker(tailEvery)
	defer tick.Stop()
	check := time.NewTicker(liveEvery)
	defer check.Stop()
	var held []string
	var quiet int
	lacks := last.news()
	send := func() error {
		if quiet++; len(held) == 0 && quiet < 50 { // a sign of life every 10 s
			return nil
		}
		quiet = 0
		err := out.sendAt("lines", last.String(), held)
		held = nil
		return err
	}
	for {
		take := lines
		// A nil channel blocks, so no line is taken before the held ones are sent.
		if len(held) >= tailMost {
			take = nil
		}
		select {
		case l := <-take:
			if !lacks(l.At) {
				continue
			}
			last = last.next(l.At)
			row, err := renderLine(logLine{l, last.number, ansi(l.Text)})
			if err != nil {
				return err
			}
			held = append(held, row)
		case <-tick.C:
			if err := send(); err != nil {
				return err
			}
		case err := <-ended:
			if err != nil {
				return err
			}
			if err := send(); err != nil {
				return err
			}
			return errTailEnded
		case <-check.C:
			if _, err := s.reader(out.of, false); berth.CodeOf(err) == berth.CodeUnauthorized {
				return err // signed out, or the token is revoked
			}
		case <-s.Closing:
			return errTailCut
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// renderLine renders a line as the page of the log does.
func renderLine(l logLine) (string, error) {
	var b bytes.Buffer
	err := templates["job"].ExecuteTemplate(&b, "logline", l)
	return b.String(), err
}
