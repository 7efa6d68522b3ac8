package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"berth"
	"berth/api/client"
	"berth/wire"
)

// inProcess is a transport to a handler. A handler that panics is a connection that breaks before its answer.
type inProcess http.HandlerFunc

func (h inProcess) RoundTrip(r *http.Request) (res *http.Response, err error) {
	defer func() {
		if recover() != nil {
			err = io.ErrUnexpectedEOF
		}
	}()
	w := httptest.NewRecorder()
	h(w, r)
	res = w.Result()
	res.Request = r
	return res, nil
}

const (
	sweepID  = berth.JobID("0193a1b2-0000-7000-8000-00000000000a")
	firstID  = berth.JobID("0193a1b2-0000-7000-8000-00000000000b")
	secondID = berth.JobID("0193a1b2-0000-7000-8000-00000000000c")
)

// sweepServer answers for an ended array of two elements with one line each. refuse answers the first calls for the log
// of the second element.
func sweepServer(refuse func(call int, w http.ResponseWriter) bool) (inProcess, wire.Job) {
	sweep := wire.Job{ID: sweepID, Name: "sweep", Kind: berth.KindArray, Status: berth.Succeeded,
		Tally: &wire.Tally{Total: 2}}
	calls := 0
	answer := func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/v1/jobs":
			fmt.Fprintf(w, `{"items":[{"id":%q,"name":"sweep","array_index":0,"status":"succeeded"},`+
				`{"id":%q,"name":"sweep","array_index":1,"status":"succeeded"}]}`, firstID, secondID)
			return
		case !strings.HasSuffix(r.URL.Path, "/logs"):
			fmt.Fprintf(w, `{"id":%q,"name":"sweep","kind":"array","status":"succeeded"}`, sweepID)
			return
		case strings.Contains(r.URL.Path, string(secondID)):
			if calls++; refuse(calls, w) {
				return
			}
		}
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, ": stream\n\nid: 1-9\nevent: log\ndata: {\"text\":\"line\"}\n\nevent: end\ndata: {}\n\n")
	}
	return answer, sweep
}

// A log whose first connection fails is opened again, is printed whole, and keeps no other log from being printed. If
// it cannot be opened for good, the command fails in the end.
func TestALogThatCannotBeOpenedYetIsOpenedLater(t *testing.T) {
	t.Parallel()
	answers := func(status int, code string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			w.WriteHeader(status)
			fmt.Fprintf(w, `{"code":%q,"detail":"x"}`, code)
		}
	}
	for name, c := range map[string]struct {
		refuse      func(http.ResponseWriter)
		times       int
		lines       int
		least, most time.Duration
		code        berth.Code // of the error
	}{
		"a proxy": {answers(502, ""), 1, 2, time.Second, 5 * time.Second, ""},
		"a broken connection": {func(http.ResponseWriter) { panic(http.ErrAbortHandler) }, 3, 2, 7 * time.Second,
			15 * time.Second, ""},
		"no free stream": {answers(429, "rate_limited"), 2, 2, time.Second, 15 * time.Second, ""},
		"for good": {answers(503, "unavailable"), 1 << 30, 1, 10 * time.Minute, 11 * time.Minute,
			berth.CodeUnavailable},
		"not found": {answers(404, "not_found"), 1 << 30, 1, 0, time.Second, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				answer, sweep := sweepServer(func(call int, w http.ResponseWriter) bool {
					if call <= c.times {
						c.refuse(w)
					}
					return call <= c.times
				})
				var out, errs bytes.Buffer
				a := &app{config: config{Output: "table"}, out: &out, err: &errs, now: time.Now}
				begun := time.Now()
				tree := newLogTree(a, client.Over(answer, ""))
				err := printLogs(t.Context(), tree, newLogPrinter(a), sweep, client.LogsQuery{Follow: true})
				if n := strings.Count(out.String(), "line\n"); n != c.lines || berth.CodeOf(err) != c.code {
					t.Errorf("%d lines, want %d; %v\n%s%s", n, c.lines, err, out.String(), errs.String())
				}
				if took := time.Since(begun); took < c.least || took > c.most {
					t.Errorf("took %s, want %s to %s", took, c.least, c.most)
				}
				n := strings.Count(errs.String(), "cannot be opened yet")
				if n != min(c.times, 1) && name != "not found" {
					t.Errorf("%d messages about the retry:\n%s", n, errs.String())
				}
			})
		})
	}
}

// A log whose connection breaks, and for which the server has no stream for longer than the client tries, continues
// after its last line once another log has ended.
func TestALogWithoutAStreamContinuesAfterItsLastLine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const line, end = "id: 1-9\nevent: log\ndata: {\"text\":\"line\"}\n\n", "event: end\ndata: {}\n\n"
		answer, sweep := sweepServer(func(int, http.ResponseWriter) bool { return false })
		begun := time.Now()
		transport := roundTripper(func(r *http.Request) (*http.Response, error) {
			at := time.Since(begun)
			text, status := line, http.StatusOK
			switch {
			case !strings.HasSuffix(r.URL.Path, "/logs"):
				return answer.RoundTrip(r)
			case strings.Contains(r.URL.Path, string(firstID)): // followed for 12 minutes
				in, out := io.Pipe()
				go func() {
					_, err := io.WriteString(out, line)
					for ; err == nil && time.Since(begun) < 12*time.Minute; time.Sleep(15 * time.Second) {
						_, err = io.WriteString(out, ": heartbeat\n\n")
					}
					_, _ = io.WriteString(out, end)
					_ = out.Close()
				}()
				return &http.Response{StatusCode: status, Body: in, Header: http.Header{}}, nil
			case at > 0 && at < 15*time.Minute:
				text, status = `{"code":"rate_limited","detail":"x"}`, http.StatusTooManyRequests
			case at > 0:
				if r.Header.Get("Last-Event-ID") == "1-9" {
					text = ""
				}
				text += strings.NewReplacer("1-9", "1-12", "line", "second").Replace(line) + end
			}
			return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(text)),
				Header: http.Header{}, Request: r}, nil
		})
		var out, errs bytes.Buffer
		a := &app{config: config{Output: "table"}, out: &out, err: &errs, now: time.Now}
		tree := newLogTree(a, client.Over(transport, ""))
		err := printLogs(t.Context(), tree, newLogPrinter(a), sweep, client.LogsQuery{Follow: true})
		if strings.Count(out.String(), "line\n") != 2 || strings.Count(out.String(), "second\n") != 1 || err != nil {
			t.Errorf("%v\n%s%s", err, out.String(), errs.String())
		}
	})
}

// In a pipe a followed log says once that its server is silent, and that it is back.
func TestASilentServerIsReportedInAPipe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		transport := inProcess(func(w http.ResponseWriter, _ *http.Request) {
			switch at := time.Since(begun); {
			case at == 0:
				fmt.Fprint(w, "id: 1-9\nevent: log\ndata: {\"text\":\"first\"}\n\n")
			case at < time.Minute:
				panic(http.ErrAbortHandler)
			default:
				fmt.Fprint(w, "id: 1-12\nevent: log\ndata: {\"text\":\"second\"}\n\nevent: end\ndata: {}\n\n")
			}
		})
		var out, errs bytes.Buffer
		a := &app{config: config{Output: "table"}, out: &out, err: &errs, now: time.Now}
		tree := newLogTree(a, client.Over(transport, ""))
		q := client.LogsQuery{Follow: true}
		if err := printLogs(t.Context(), tree, newLogPrinter(a), running(), q); err != nil {
			t.Fatal(err)
		}
		said := strings.Split(errs.String(), "\n")
		if out.String() != "first\nsecond\n" || len(said) != 3 ||
			!strings.HasSuffix(said[0], "  the server does not respond; still waiting") ||
			!strings.HasSuffix(said[1], "  the server responds again") {
			t.Errorf("lines %q, messages %q", out.String(), said)
		}
	})
}

// The log of a wait is printed to its end, however long the reader of standard output pauses.
func TestAPausedReaderLosesNoLine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const lines = 50
		transport := inProcess(func(w http.ResponseWriter, _ *http.Request) {
			for i := range lines {
				fmt.Fprintf(w, "id: 1-%d\nevent: log\ndata: {\"text\":\"line %d\"}\n\n", i+1, i)
			}
			fmt.Fprint(w, "event: end\ndata: {}\n\n")
		})
		in, out := io.Pipe()
		a, _ := onTerminal(80, false)
		a.out, a.outTerm, a.err, a.errTerm = out, screen{}, io.Discard, screen{}
		job := running()
		job.Status = berth.Succeeded
		logs := startLogs(t.Context(), a, client.Over(transport, ""), job, newProgress(a))
		read := make(chan string)
		go func() {
			begin := make([]byte, 20)
			_, _ = io.ReadFull(in, begin)
			time.Sleep(5 * logDrain) // a pager shows its first page
			rest, _ := io.ReadAll(in)
			read <- string(begin) + string(rest)
		}()
		if err := logs.finish(t.Context(), true); err != nil {
			t.Error(err)
		}
		_ = out.Close()
		if text := <-read; strings.Count(text, "\n") != lines {
			t.Errorf("%d lines of %d", strings.Count(text, "\n"), lines)
		}
	})
}

// A log of which the server sends no further lines ends the wait for it.
func TestTheRestOfALogIsNotAwaitedForever(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		body, open := io.Pipe()
		transport := roundTripper(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusOK, Body: body, Header: http.Header{}}, nil
		})
		a, _ := onTerminal(80, false)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		context.AfterFunc(ctx, func() { _ = open.Close() })
		job := running()
		job.Status = berth.Succeeded
		logs := startLogs(ctx, a, client.Over(transport, ""), job, newProgress(a))
		stop := logs.cancel
		logs.cancel = func() { stop(); _ = open.Close() }
		begun := time.Now()
		if err := logs.finish(ctx, true); err == nil || time.Since(begun) != logDrain {
			t.Errorf("%v after %s", err, time.Since(begun))
		}
	})
}

// roundTripper is a transport.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
