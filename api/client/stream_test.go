package client_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
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
		// Connections with bars alone do not move the stream, so the pauses grow. The last one before the refusals
		// breaks after 39 s, and the first try after them is at most 6 s late.
		times := make([]time.Duration, len(got))
		for i, report := range got {
			text, _, _ := strings.Cut(report, " ")
			times[i], _ = time.ParseDuration(text)
			got[i] = strings.TrimPrefix(report, text+" ")
		}
		if !slices.Equal(got, []string{"true", "false", "true", "false"}) || times[0] != 30*time.Second ||
			times[1] != 35*time.Second || times[2] < 39*time.Second || times[2] > 43*time.Second ||
			times[3] < time.Minute || times[3] > 67*time.Second {
			t.Errorf("reports %q at %s", got, times)
		}
		if bars != connections || connections < 4 {
			t.Errorf("%d unfinished lines of %d connections", bars, connections)
		}
	})
}

// A server that breaks each stream off at once is asked less and less often, counts as silent, and is given up.
func TestAStreamThatBreaksOffAtOnceIsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begun, calls := time.Now(), 0
		var silent []string
		transport := roundTrip(func(*http.Request) (*http.Response, error) {
			calls++
			text := ": stream\n\n"
			if calls == 1 {
				text += "id: 1-5\nevent: log\ndata: {\"text\":\"first\"}\n\n"
			}
			return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(text)),
				Header: http.Header{}}, nil
		})
		q := client.LogsQuery{Follow: true, Silence: func(on bool) {
			silent = append(silent, fmt.Sprint(time.Since(begun).Round(time.Second), " ", on))
		}}
		lines := 0
		err := client.Over(transport, "").Logs(t.Context(), "j", q, func(wire.LogLine) error { lines++; return nil })
		if took := time.Since(begun); !client.Unreachable(err) || took < 10*time.Minute || took > 11*time.Minute {
			t.Errorf("%v after %s", err, took)
		}
		if calls < 90 || calls > 140 || lines != 1 {
			t.Errorf("%d calls, %d lines", calls, lines)
		}
		if !slices.Equal(silent, []string{"2s true"}) {
			t.Errorf("reports %q", silent)
		}
	})
}

// The time in which the caller's function takes a line is no silence of the server.
func TestASlowCallerIsNoSilence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		transport := roundTrip(func(*http.Request) (*http.Response, error) {
			text := "id: 1\ndata: {\"seq\":1}\n\nid: 2\ndata: {\"seq\":2}\n\nevent: end\ndata: {}\n\n"
			return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(text)),
				Header: http.Header{}}, nil
		})
		c := client.Over(transport, "")
		c.OnSilence = func(on bool) { t.Errorf("silent %v", on) }
		err := c.FollowEvents(t.Context(), "j", 0, func(wire.Event) error {
			time.Sleep(10 * time.Minute) // a pager
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}
