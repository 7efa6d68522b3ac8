package proof_test

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"berth"
	"berth/api/client"
	"berth/wire"
)

// follower reads a job's log as berth logs -f does, all attempts.
type follower struct {
	s     *stack
	ended chan error

	mu    sync.Mutex
	lines [][]string // by attempt, from 1
}

func (s *stack) follow(id berth.JobID) *follower {
	f := &follower{s: s, ended: make(chan error, 1)}
	go func() {
		f.ended <- s.api.Logs(s.t.Context(), id, client.LogsQuery{Follow: true}, func(l wire.LogLine) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			if l.Attempt < len(f.lines) || l.Attempt > len(f.lines)+1 {
				return fmt.Errorf("a line of attempt %d comes after %d attempts: %s", l.Attempt, len(f.lines), l.Text)
			}
			if l.Attempt > len(f.lines) {
				f.lines = append(f.lines, nil)
			}
			f.lines[l.Attempt-1] = append(f.lines[l.Attempt-1], l.Text)
			return nil
		})
	}()
	return f
}

func (f *follower) count() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, lines := range f.lines {
		n += len(lines)
	}
	return n
}

func (f *follower) await(lines int) {
	f.s.t.Helper()
	until(f.s.t, fmt.Sprintf("%d lines have come", lines), func(context.Context) error {
		select {
		case err := <-f.ended:
			f.s.t.Fatalf("the log ended after %d lines: %v", f.count(), err)
		default:
		}
		if n := f.count(); n < lines {
			return fmt.Errorf("%d have", n)
		}
		return nil
	})
}

// want waits for the end of the log. Each attempt's lines must have come once and in order; of an
// attempt that was cut short, the lines up to the cut.
func (f *follower) want(attempts [][]string) {
	f.s.t.Helper()
	if err := <-f.ended; err != nil {
		f.s.t.Errorf("the log ended with: %v", err)
	}
	if len(f.lines) != len(attempts) {
		f.s.t.Fatalf("lines of %d attempts came: %q", len(f.lines), f.lines)
	}
	for i, want := range attempts {
		if i < len(attempts)-1 {
			want = want[:min(len(want), len(f.lines[i]))]
		}
		if !slices.Equal(f.lines[i], want) {
			f.s.t.Errorf("of attempt %d came %q, want %q", i+1, f.lines[i], want)
		}
	}
}
