package client_test

import (
	"fmt"
	"net/http"
	"slices"
	"testing"

	"berth/api/client"
	"berth/wire"
)

// A connection that moves to a server of a previous version continues after the last line.
func TestLogGoesOnAtAServerWithoutUnfinishedLines(t *testing.T) {
	t.Parallel()
	calls := 0
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		calls++
		w.Header().Set("Content-Type", "text/event-stream")
		send := func(id, event, text string) {
			if id != "" {
				fmt.Fprintf(w, "id: %s\n", id)
			}
			fmt.Fprintf(w, "event: %s\ndata: {\"text\":%q}\n\n", event, text)
		}
		switch {
		case calls == 1: // of this version; its connection breaks
			send("1-5", "log", "first")
			send("", "unfinished", "50%")
		case r.URL.Query().Has("unfinished"):
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"code":"invalid","detail":"x","errors":[{"field":"unfinished","detail":"is not a parameter"}]}`)
		default:
			if r.Header.Get("Last-Event-ID") != "1-5" {
				send("1-5", "log", "first")
			}
			send("1-9", "log", "second")
			send("", "end", "")
		}
	})
	var lines, bars []string
	q := client.LogsQuery{Follow: true, Unfinished: func(l wire.LogLine) error {
		bars = append(bars, l.Text)
		return nil
	}}
	err := c.Logs(t.Context(), "j", q, func(l wire.LogLine) error {
		lines = append(lines, l.Text)
		return nil
	})
	if err != nil || !slices.Equal(lines, []string{"first", "second"}) {
		t.Errorf("lines %q, %v, want each once", lines, err)
	}
	if !slices.Equal(bars, []string{"50%", ""}) {
		t.Errorf("unfinished lines %q, want the last one removed: no further one comes", bars)
	}
}
