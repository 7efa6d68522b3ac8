package client_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

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

// roundTrip is a transport.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A follower learns that a stream says nothing, whether its connection is dead or no server accepts one, and when the
// server is back. A connection that is replaced at once is no news.
func TestFollowerLearnsOfASilentServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		var got []string
		note := func(silent bool) { got = append(got, fmt.Sprint(time.Since(begun), " ", silent)) }
		connections := 0
		transport := roundTrip(func(*http.Request) (*http.Response, error) {
			at := time.Since(begun)
			if at > 40500*time.Millisecond && at < time.Minute {
				return nil, errors.New("connection refused")
			}
			connections++
			in, out := io.Pipe()
			go func(first bool) {
				defer out.Close()
				_, _ = io.WriteString(out, "event: unfinished\ndata: {\"text\":\"50%\"}\n\n")
				switch {
				case first:
					time.Sleep(10 * time.Second)
					_, _ = io.WriteString(out, ": heartbeat\n\n")
					time.Sleep(25 * time.Second) // silent after 20 s of these
					_, _ = io.WriteString(out, ": heartbeat\n\n")
				case at > time.Minute:
					_, _ = io.WriteString(out, "event: end\ndata: {}\n\n")
				}
				time.Sleep(time.Second)
			}(connections == 1)
			return &http.Response{StatusCode: http.StatusOK, Body: in, Header: http.Header{}}, nil
		})
		bars := 0
		q := client.LogsQuery{Follow: true, Silence: note, Unfinished: func(wire.LogLine) error { bars++; return nil }}
		err := client.Over(transport, "").Logs(t.Context(), "j", q, func(wire.LogLine) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour) // nothing is reported after the end
		// The last connection before the refusals breaks at 40.8 s, and 62 s is the first try after them.
		if want := []string{"30s true", "35s false", "42.8s true", "1m2s false"}; !slices.Equal(got, want) {
			t.Errorf("reports %q, want %q", got, want)
		}
		if bars != connections || connections != 6 {
			t.Errorf("%d unfinished lines of %d connections", bars, connections)
		}
	})
}
