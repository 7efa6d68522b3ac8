package agent

import (
	"errors"
	"fmt"
	"testing"

	"berth/activities/node"
)

func TestReadersMoveByTheirTable(t *testing.T) {
	t.Parallel()
	states := []lineState{lineIdle, lineStarted, lineReading, lineEnded, lineLeft, lineKilled, lineGivenUp}
	events := []lineEvent{lineStart, lineAttached, lineOver, lineTooFast, lineDied, lineDiedLast, lineUnwanted}
	for _, s := range states {
		for _, e := range events {
			next := s.after(e)
			switch {
			case s == lineGivenUp && next != lineGivenUp:
				t.Errorf("%s leaves %q for %q", e, s, next)
			case e == lineStart && !s.runs() && s != lineGivenUp && next != lineStarted:
				t.Errorf("start in %q leads to %q", s, next)
			case e == lineUnwanted && next.runs():
				t.Errorf("unwanted in %q leaves a process", s)
			case e == lineUnwanted && !s.runs() && next != s:
				t.Errorf("unwanted in %q ends the pause: %q", s, next)
			case !s.runs() && e != lineStart && next != s:
				t.Errorf("%s of a replaced reader moves %q to %q", e, s, next)
			case s.runs() && e != lineStart && e != lineAttached && next.runs():
				t.Errorf("%s leaves the process of %q", e, s)
			}
		}
	}
}

func TestEndOfAReaderIsJudgedByItsError(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err   error
		kills int
		want  lineEvent
	}{
		{nil, 0, lineOver},
		{nil, maxLineKills, lineOver},
		{fmt.Errorf("x: %w", node.ErrOutputTooFast), maxLineKills, lineTooFast},
		{node.ErrReaderKilled, 1, lineDied},
		{node.ErrReaderKilled, maxLineKills, lineDiedLast},
		{errors.New("no such container"), maxLineKills - 1, lineDied},
	} {
		if got := lineEnd(c.err, c.kills); got != c.want {
			t.Errorf("%v after %d: %s, want %s", c.err, c.kills, got, c.want)
		}
	}
}
