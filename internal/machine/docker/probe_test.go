package docker_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"berth/internal/machine/docker"
)

// stub is an engine's API with only the calls of a probe. A call with a path that
// ends in hangs is never answered.
func stub(t *testing.T) (engine *docker.Engine, hangs *atomic.Pointer[string]) {
	t.Helper()
	hangs = &atomic.Pointer[string]{}
	engine = answering(t, func(w http.ResponseWriter, r *http.Request) {
		if part := hangs.Load(); part != nil && strings.HasSuffix(r.URL.Path, *part) {
			<-r.Context().Done()
			return
		}
		w.Header().Set("Api-Version", "1.41")
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte("[]"))
	})
	return engine, hangs
}

// An engine whose networks are locked for good answers pings, and no probe.
func TestF53AProbeNoticesAnEngineThatStillAnswersPings(t *testing.T) {
	t.Parallel()
	engine, hangs := stub(t)
	probe := func(patience time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		return engine.Probe(ctx, map[string]string{"berth.machine": "m1"})
	}
	if err := probe(time.Minute); err != nil {
		t.Fatalf("a sound engine: %v", err)
	}
	for _, part := range []string{"/networks", "/containers/json"} {
		hangs.Store(&part)
		if err := probe(50 * time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s hangs: %v", part, err)
		}
	}
	hangs.Store(nil)
	if err := probe(time.Minute); err != nil {
		t.Errorf("once it answers again: %v", err)
	}
}
