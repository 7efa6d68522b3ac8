package client

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// A connection that ends at the moment at which it counts as steady is no sign of life: a server that ends each
// connection is reported as silent.
func TestAnEndedConnectionIsNoSignOfLife(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		var got []string
		w := &streamWatch{report: func(silent bool) { got = append(got, fmt.Sprint(time.Since(begun), " ", silent)) }}
		defer w.stop()
		w.heard()
		late := w.steady()
		w.broke()
		late() // the timer of the ended connection
		time.Sleep(time.Minute)
		present := w.steady()
		present()
		if want := []string{"2s true", "1m0s false"}; !slices.Equal(got, want) {
			t.Errorf("reports %q, want %q", got, want)
		}
	})
}
