package client_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"berth"
	"berth/api/client"
	"berth/wire"
)

// positionedLog is a log of a server with positions, whose answers break off: answer number i after cuts[i] lines, and
// later ones are whole. The last line of a log has no position. Servers of the version before answer the calls of old.
type positionedLog struct {
	lines []wire.LogLine
	cuts  []int
	old   []int
	asks  []string // position and tail of each call
}

func (x *positionedLog) answer(w http.ResponseWriter, r *http.Request) {
	call := len(x.asks)
	position, tail := r.Header.Get("Last-Event-ID"), r.URL.Query().Get("tail")
	x.asks = append(x.asks, strings.TrimSpace(position+" "+tail))
	old := slices.Contains(x.old, call)
	from := 0
	if n, _ := strconv.Atoi(tail); n > 0 {
		from = max(0, len(x.lines)-n)
	}
	if !old {
		w.Header().Set("Content-Type", "application/x-ndjson; positions=true")
		if n, ok := strings.CutPrefix(position, "2-"); ok {
			from, _ = strconv.Atoi(n)
		}
	}
	for i, l := range x.lines[from:] {
		if call < len(x.cuts) && i == x.cuts[call] {
			break
		}
		if l.Position = ""; !old && from+i+1 < len(x.lines) {
			l.Position = fmt.Sprintf("2-%d", from+i+1)
		}
		text, _ := json.Marshal(l)
		_, _ = w.Write(append(text, '\n'))
	}
	if call < len(x.cuts) {
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

// A stored log is read on from the last line that the caller has, at servers with positions and without.
func TestAStoredLogIsReadOnFromItsPosition(t *testing.T) {
	t.Parallel()
	all := []string{"a", "b", "b", "c", "d", "e"}
	for name, c := range map[string]struct {
		tail, cuts, old []int
		want            []string
		asks            []string
	}{
		"twice":                     {nil, []int{3, 2}, nil, all, []string{"", "2-2", "2-3"}},
		"after its first line":      {nil, []int{1}, nil, all, []string{"", ""}},
		"before its first line":     {nil, []int{0}, nil, all, []string{"", ""}},
		"without a new line":        {nil, []int{3, 1, 0}, nil, all, []string{"", "2-2", "2-2", "2-2"}},
		"after its last line":       {nil, []int{6}, nil, all, []string{"", "2-5"}},
		"after its last line again": {nil, []int{6, 1}, nil, all, []string{"", "2-5", "2-5"}},
		"a tail":                    {[]int{4}, []int{2}, nil, all[2:], []string{"4", "2-3 40"}},
		"at an old server first":    {nil, []int{3, 5}, []int{0}, all, []string{"", "", "2-4"}},
		"at an old server later":    {nil, []int{3, 2}, []int{1}, all, []string{"", "2-2", "2-2"}},
		"a tail at an old server":   {[]int{4}, []int{2}, []int{1}, all[2:], []string{"4", "2-3 40"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := &positionedLog{cuts: c.cuts, old: c.old}
			for i, text := range all {
				at := l0.Add(time.Duration(i/3) * time.Hour)
				x.lines = append(x.lines, wire.LogLine{At: at, Text: text, Attempt: 2})
			}
			q := client.LogsQuery{}
			if c.tail != nil {
				q.Tail = c.tail[0]
			}
			var got []string
			err := serve(t, x.answer).Logs(t.Context(), "j", q, func(l wire.LogLine) error {
				if got = append(got, l.Text); l.Position != "" {
					t.Errorf("the caller gets position %q", l.Position)
				}
				return nil
			})
			if err != nil || !slices.Equal(got, c.want) || !slices.Equal(x.asks, c.asks) {
				t.Errorf("lines %q of the calls %q, %v; want %q of %q", got, x.asks, err, c.want, c.asks)
			}
		})
	}
}

// A position at which another line is stored now is no place to continue.
func TestAnotherLogAtThePositionIsRefused(t *testing.T) {
	t.Parallel()
	calls := 0
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/x-ndjson; positions=true")
		if calls++; calls == 2 {
			fmt.Fprint(w, `{"text":"other","position":"1-2"}`+"\n"+`{"text":"c","position":"1-3"}`+"\n")
			return
		}
		fmt.Fprint(w, `{"text":"a","position":"1-1"}`+"\n"+`{"text":"b","position":"1-2"}`+"\n")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	err := c.Logs(t.Context(), "j", client.LogsQuery{}, func(wire.LogLine) error { return nil })
	broken, ok := errors.AsType[*client.BrokenLogError](err)
	if !ok || broken.Lines != 2 || !strings.Contains(err.Error(), "stored as") || calls != 2 {
		t.Errorf("%v after %d calls", err, calls)
	}
}

const damage = `{"status":500,"code":"log_damaged","detail":"the log cannot be read from byte 9 on"}`

// A log that the server cannot read to its end is an error with the server's words. Nothing of it is a line.
func TestTheServerNamesWhyALogBreaksOff(t *testing.T) {
	t.Parallel()
	const line = `{"at":"2026-01-31T12:00:00Z","text":"a","attempt":1}`
	for name, c := range map[string]struct {
		follow      bool
		body        string
		least, most time.Duration
		code        string // stable code of the error
		faults      int    // at least; calls of LogsQuery.Fault
	}{
		"stored": {false, line + "\n" + `{"error":` + damage + "}\n", 8 * time.Second, 25 * time.Second,
			"log_damaged", 0},
		"followed, damaged": {true, "id: 1-9\nevent: log\ndata: " + line + "\n\nevent: error\ndata: " + damage + "\n\n",
			8 * time.Second, 25 * time.Second, "log_damaged", 3},
		"followed, no store": {true, "id: 1-9\nevent: log\ndata: " + line + "\n\nevent: error\ndata: " +
			`{"status":503,"code":"unavailable","detail":"x"}` + "\n\n", 10 * time.Minute, 11 * time.Minute,
			"unavailable", 3},
		"followed, refused": {true, "id: 1-9\nevent: log\ndata: " + line + "\n\nevent: error\ndata: " +
			`{"status":403,"code":"forbidden","detail":"x"}` + "\n\n", 0, time.Second, "forbidden", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				transport := roundTrip(func(r *http.Request) (*http.Response, error) {
					body := c.body
					if r.Header.Get("Last-Event-ID") != "" {
						_, rest, _ := strings.Cut(body, "\n\n")
						body = rest
					}
					if !strings.Contains(r.Header.Get("Accept"), ";errors=true") {
						t.Errorf("Accept: %s", r.Header.Get("Accept"))
					}
					return &http.Response{StatusCode: http.StatusOK, Body: cutBody{strings.NewReader(body)},
						Header: http.Header{}}, nil
				})
				begun, lines, faults := time.Now(), 0, 0
				q := client.LogsQuery{Follow: c.follow, Fault: func(error) { faults++ },
					Silence: func(on bool) { t.Errorf("silent %v", on) }}
				err := client.Over(transport, "").Logs(t.Context(), "j", q, func(l wire.LogLine) error {
					if lines++; l.Text != "a" {
						t.Errorf("line %+v", l)
					}
					return nil
				})
				e, _ := errors.AsType[*berth.Error](err)
				wrong := faults < c.faults || c.faults == 0 && faults > 0
				if e == nil || e.StableCode() != c.code || lines != 1 || wrong {
					t.Errorf("%v after %d lines and %d faults, want %s", err, lines, faults, c.code)
				}
				if took := time.Since(begun); took < c.least || took > c.most {
					t.Errorf("took %s, want %s to %s", took, c.least, c.most)
				}
			})
		})
	}
}

// Events that this client does not know are no lines and no events of a job.
func TestUnknownEventsAreIgnored(t *testing.T) {
	t.Parallel()
	transport := roundTrip(func(*http.Request) (*http.Response, error) {
		text := "id: 3\nevent: novelty\ndata: {\"text\":\"x\",\"seq\":7}\n\nevent: end\ndata: {}\n\n"
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(text)),
			Header: http.Header{}}, nil
	})
	c := client.Over(transport, "")
	err := c.Logs(t.Context(), "j", client.LogsQuery{Follow: true}, func(l wire.LogLine) error {
		return fmt.Errorf("line %+v", l)
	})
	if err != nil {
		t.Error(err)
	}
	err = c.FollowEvents(t.Context(), "j", 0, func(e wire.Event) error { return fmt.Errorf("event %+v", e) })
	if err != nil {
		t.Error(err)
	}
}
