package agent_test

import (
	"strings"
	"testing"
)

func TestDockerFollowersSeeABarMove(t *testing.T) {
	t.Parallel()
	s, m := dockerMachine(t)
	id := s.submit(nil, "redraw", "100000", "100ms")
	m.place(id)
	f := s.followBar(s.user(), id)
	m.until("the bar moves", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.bars) >= 3
	})
	s.cancel(id)
	// The line is empty of the stream that had the bar, or of the usual one: the report of the agent and the end of the
	// container come in either order.
	m.until("the bar ends with its container", func() bool { return strings.HasSuffix(f.last(), " 1.0 ") })
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, bar := range f.bars[:3] {
		if i > 0 && bar == f.bars[i-1] {
			t.Errorf("the bar stands: %q", f.bars[:3])
		}
	}
}
