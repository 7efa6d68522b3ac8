package web

import (
	"bytes"
	"context"
	"errors"
	"strconv"
	"time"

	"berth"
	"berth/api/client"
	"berth/wire"
)

// tailEvery is the pause between two events with lines: a log of 5,000 lines a second is five events.
const tailEvery = 200 * time.Millisecond

// tailMost is the number of lines of one event. The browser keeps logMost of them anyway.
const tailMost = 1000

// tailPage streams the lines of a log after those of the page, as rows of the same HTML.
func (s *Site) tailPage(ctx context.Context, v *visit) (result, error) {
	if err := s.boards.enter(v.page.Reader.TokenID); err != nil {
		return result{}, err
	}
	defer s.boards.leave(v.page.Reader.TokenID)
	attempt, _ := strconv.Atoi(v.query("attempt"))
	member, _ := strconv.Atoi(v.query("member"))
	number, _ := strconv.Atoi(v.query("after"))
	since, _ := time.Parse(time.RFC3339Nano, v.query("since"))
	if _, err := v.api.Job(ctx, v.job()); err != nil {
		return result{}, err // before the answer begins
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lines, ended := make(chan wire.LogLine), make(chan error, 1)
	go func() { // ends with ctx; awaited below
		q := client.LogsQuery{Attempt: attempt, Member: member, Since: since, Follow: true}
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
	err := s.passLines(ctx, out, lines, ended, tailed{number, since})
	cancel()
	if !errors.Is(err, errTailEnded) {
		<-ended
	}
	return result{}, out.end("end")
}

// errTailEnded is the end of the log itself.
var errTailEnded = errors.New("the log has ended")

// tailed is the last line that the reader has.
type tailed struct {
	number int
	at     time.Time
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
	send := func() error {
		if quiet++; len(held) == 0 && quiet < 50 { // a sign of life every 10 s
			return nil
		}
		quiet = 0
		err := out.send("lines", held)
		held = nil
		return err
	}
	for {
		take := lines
		if len(held) >= tailMost {
			take = nil
		}
		select {
		case l := <-take:
			if !l.At.After(last.at) { // the page has it
				continue
			}
			last.number++
			row, err := renderLine(logLine{l, last.number, ansi(l.Text)})
			if err != nil {
				return err
			}
			held = append(held, row)
		case <-tick.C:
			if err := send(); err != nil {
				return err
			}
		case <-ended:
			if err := send(); err != nil {
				return err
			}
			return errTailEnded
		case <-check.C:
			if _, err := s.reader(out.of); berth.CodeOf(err) == berth.CodeUnauthorized {
				return err // signed out, or the token is revoked
			}
		case <-s.Closing:
			return nil
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
