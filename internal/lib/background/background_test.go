package background_test

import (
	"context"
	"sync/atomic"
	"testing"

	"berth/internal/lib/background"
)

func TestCloseEndsAndAwaitsEveryGoroutine(t *testing.T) {
	t.Parallel()
	g := background.New()
	var ended atomic.Int64
	for range 10 {
		if !g.Go(func(ctx context.Context) {
			<-ctx.Done()
			ended.Add(1)
		}) {
			t.Fatal("an open group runs nothing")
		}
	}
	g.Close()
	if n := ended.Load(); n != 10 {
		t.Errorf("%d of 10 goroutines have ended at the end of Close", n)
	}
	g.Close()
	if g.Go(func(context.Context) { t.Error("a closed group runs something") }) {
		t.Error("a closed group reports that it runs something")
	}
}
