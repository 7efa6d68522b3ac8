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

	"berth/api/client"
	"berth/wire"
)

// cutLog is a server whose answers break off: the answer number i of the log ends after cuts[i] lines, and later ones
// are whole. The log grows by a line with each call, and by further ones with the first. Lines alike are in it.
type cutLog struct {
	log  []wire.LogLine
	cuts []int
	more int
	asks []string
}

func (x *cutLog) answer(w http.ResponseWriter, r *http.Request) {
	x.asks = append(x.asks, r.URL.RawQuery)
	lines := x.log
	if tail, _ := strconv.Atoi(r.URL.Query().Get("tail")); tail > 0 {
		lines = lines[max(0, len(lines)-tail):]
	}
	at := len(x.asks) - 1
	for i, l := range lines {
		if at < len(x.cuts) && i == x.cuts[at] {
			break
		}
		text, _ := json.Marshal(l)
		_, _ = w.Write(append(text, '\n'))
	}
	x.log = append(x.log, wire.LogLine{At: l0.Add(time.Hour), Text: fmt.Sprint("new ", at), Attempt: 2})
	for ; x.more > 0; x.more-- {
		x.log = append(x.log, wire.LogLine{At: l0.Add(time.Hour), Text: "more", Attempt: 2})
	}
	if at < len(x.cuts) {
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

var l0 = time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)

// A stored log that breaks off is read on: each line comes once, also of a log that grows meanwhile.
func TestAStoredLogThatBreaksOffIsReadOn(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		query client.LogsQuery
		cuts  []int
		more  int
		want  []string
		asks  []string
	}{
		"twice": {client.LogsQuery{}, []int{2, 4}, 0, []string{"0", "1", "same", "same", "4", "new 0", "new 1"},
			[]string{"", "attempt=2", "attempt=2"}},
		"before its first line": {client.LogsQuery{}, []int{0}, 0, []string{"0", "1", "same", "same", "4", "new 0"},
			[]string{"", ""}},
		"without a new line": {client.LogsQuery{}, []int{2, 1}, 0,
			[]string{"0", "1", "same", "same", "4", "new 0", "new 1"}, []string{"", "attempt=2", "attempt=2"}},
		"a tail": {client.LogsQuery{Tail: 4}, []int{2}, 0, []string{"1", "same", "same", "4", "new 0"},
			[]string{"tail=4", "attempt=2&tail=40"}},
		"a tail after the second of two lines alike": {client.LogsQuery{Tail: 4}, []int{3}, 0,
			[]string{"1", "same", "same", "4", "new 0"}, []string{"tail=4", "attempt=2&tail=40"}},
		"a tail of a log that grows fast": {client.LogsQuery{Tail: 4}, []int{2}, 10,
			append([]string{"1", "same", "same", "4", "new 0"}, slices.Repeat([]string{"more"}, 10)...),
			[]string{"tail=4", "attempt=2&tail=40"}},
		"a tail of a log that grows faster": {client.LogsQuery{Tail: 4}, []int{2}, 50,
			slices.Concat([]string{"1", "same", "same", "4", "new 0"}, slices.Repeat([]string{"more"}, 50),
				[]string{"new 1"}), []string{"tail=4", "attempt=2&tail=40", "attempt=2"}},
		"the longest tail": {client.LogsQuery{Tail: 1_000_000}, []int{2}, 0,
			[]string{"0", "1", "same", "same", "4", "new 0"}, []string{"tail=1000000", "attempt=2"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := &cutLog{cuts: c.cuts, more: c.more}
			for i, text := range []string{"0", "1", "same", "same", "4"} {
				l := wire.LogLine{At: l0.Add(time.Duration(i)), Text: text, Attempt: 2}
				if i == 3 {
					l.At = x.log[2].At // parts of one long line have one stamp
				}
				x.log = append(x.log, l)
			}
			var got []string
			err := serve(t, x.answer).Logs(t.Context(), "j", c.query, func(l wire.LogLine) error {
				got = append(got, l.Text)
				return nil
			})
			if err != nil || !slices.Equal(got, c.want) || !slices.Equal(x.asks, c.asks) {
				t.Errorf("lines %q of the calls %q, %v; want %q of %q", got, x.asks, err, c.want, c.asks)
			}
		})
	}
}

// A log that cannot be read on ends with the number of its lines, and another log is never taken for the rest.
func TestAStoredLogThatCannotBeReadOn(t *testing.T) {
	t.Parallel()
	line := func(text string) string {
		return `{"at":"2026-01-31T12:00:00Z","text":"` + text + `","attempt":1}` + "\n"
	}
	for name, c := range map[string]struct {
		answers     []string // one for each call; the last for all further ones
		lines       int
		least, most time.Duration
		says        string
	}{
		"for good":        {[]string{line("a") + line("b")}, 2, 8 * time.Second, 25 * time.Second, "unexpected EOF"},
		"another log":     {[]string{line("a") + line("b"), line("a") + line("c")}, 2, 0, time.Second, "stored as"},
		"a shorter log":   {[]string{line("a") + line("b"), "whole " + line("a")}, 2, 0, time.Second, "stored as"},
		"no line of it":   {[]string{""}, 0, 8 * time.Second, 25 * time.Second, "unexpected EOF"},
		"in a line's end": {[]string{line("a") + "{"}, 1, 8 * time.Second, 25 * time.Second, "unexpected EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				calls, begun := 0, time.Now()
				transport := roundTrip(func(*http.Request) (*http.Response, error) {
					text, whole := strings.CutPrefix(c.answers[min(calls, len(c.answers)-1)], "whole ")
					calls++
					res, _ := answered(http.StatusOK, text)
					if !whole {
						res.Body = cutBody{strings.NewReader(text)}
					}
					return res, nil
				})
				got := 0
				err := client.Over(transport, "").Logs(t.Context(), "j", client.LogsQuery{}, func(wire.LogLine) error {
					got++
					return nil
				})
				broken, ok := errors.AsType[*client.BrokenLogError](err)
				if !ok || broken.Lines != c.lines || got != c.lines || !strings.Contains(err.Error(), c.says) {
					t.Errorf("%d lines, %v; want %d and %q", got, err, c.lines, c.says)
				}
				if took := time.Since(begun); took < c.least || took > c.most {
					t.Errorf("%d calls took %s, want %s to %s", calls, took, c.least, c.most)
				}
			})
		})
	}
}

// cutBody is the body of a connection that breaks after the text.
type cutBody struct{ *strings.Reader }

func (b cutBody) Read(p []byte) (int, error) {
	if n, _ := b.Reader.Read(p); n > 0 {
		return n, nil
	}
	return 0, errCut
}

func (cutBody) Close() error { return nil }

var errCut = fmt.Errorf("read: %w", io.ErrUnexpectedEOF)
