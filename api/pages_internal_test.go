package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"
)

// TestAFaultIsShownForItsOwnErrorAlone checks that a check that is late, or that fails otherwise, shows no text that
// describes another failure.
func TestAFaultIsShownForItsOwnErrorAlone(t *testing.T) {
	t.Parallel()
	own := errors.New("restored")
	late := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	h := &pageHandlers{log: slog.New(slog.DiscardHandler), ping: func(context.Context) error { return nil }, checks: []Check{
		{Name: "own", Fault: own, Optional: true, Run: func(context.Context) error { return fmt.Errorf("check: %w", own) }},
		{Name: "other", Fault: own, Optional: true, Run: func(context.Context) error { return errors.New("other") }},
		{Name: "late", Fault: own, Optional: true, Run: late},
	}}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	r := h.checkAll(ctx)
	for name, want := range map[string]string{"own": "restored", "other": "does not answer", "late": "does not answer"} {
		if r.Checks[name] != want {
			t.Errorf("check %s is %q, want %q", name, r.Checks[name], want)
		}
	}
}
