package controlplane

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
)

// ended notes the order in which parts end.
type ended struct {
	mu    sync.Mutex
	names []string
}

func (e *ended) part(name string, started chan<- struct{}) part {
	return func(ctx context.Context) error {
		started <- struct{}{}
		<-ctx.Done()
		e.mu.Lock()
		defer e.mu.Unlock()
		e.names = append(e.names, name)
		return ctx.Err()
	}
}

func TestStagesStopOneAfterTheOther(t *testing.T) {
	t.Parallel()
	var e ended
	started := make(chan struct{}, 4)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- runStages(ctx, []part{e.part("api", started)}, []part{e.part("worker", started), e.part("worker", started)}, []part{e.part("hub", started)})
	}()
	for range 4 {
		<-started
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("got %v", err)
	}
	if want := []string{"api", "worker", "worker", "hub"}; !slices.Equal(e.names, want) {
		t.Errorf("ended as %v", e.names)
	}
}

func TestAPartThatFailsEndsTheOthers(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for _, c := range []struct{ part, says error }{{broken, broken}, {nil, errEnded}} {
		var e ended
		started := make(chan struct{}, 1)
		err := runStages(t.Context(), []part{e.part("api", started)}, []part{func(context.Context) error { <-started; return c.part }})
		if !errors.Is(err, c.says) || !slices.Equal(e.names, []string{"api"}) {
			t.Errorf("got %v, ended %v", err, e.names)
		}
	}
}
