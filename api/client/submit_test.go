package client_test

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"berth"
	"berth/api/client"
	"berth/spec"
)

// Answers of a transport, each for one call.
var (
	answerStored  = answer(http.StatusOK, `{"id":"j"}`)
	answerProxy   = answer(http.StatusBadGateway, "<html>")
	answerFailed  = answer(http.StatusInternalServerError, `{"code":"internal","detail":"x"}`)
	answerRefused = answer(http.StatusForbidden, `{"code":"forbidden","detail":"no"}`)
	answerOften   = answer(http.StatusTooManyRequests, `{"code":"rate_limited","detail":"x"}`)
	answerNoRoom  = answer(http.StatusUnprocessableEntity, `{"code":"unsatisfiable","detail":"x"}`)
	answerOther   = answer(http.StatusUnprocessableEntity, `{"code":"idempotency_mismatch","detail":"x"}`)
	answerPortal  = answer(http.StatusOK, "<html>")
	answerMoved   = answer(http.StatusFound, "<html>")
	answerBroken  = func(r *http.Request) (*http.Response, error) {
		if t := httptrace.ContextClientTrace(r.Context()); t != nil {
			t.GetConn("")
			t.WroteHeaders()
		}
		return nil, io.ErrUnexpectedEOF
	}
	answerNoDial = func(r *http.Request) (*http.Response, error) {
		if t := httptrace.ContextClientTrace(r.Context()); t != nil {
			t.GetConn("")
		}
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	}
	// The transport sends a call with a key again if a reused connection breaks, and reports the last error.
	answerResent = func(r *http.Request) (*http.Response, error) {
		_, _ = answerBroken(r)
		return answerNoDial(r)
	}
)

// answer returns a transport with one answer.
func answer(status int, body string) func(*http.Request) (*http.Response, error) {
	return func(*http.Request) (*http.Response, error) { return answered(status, body) }
}

func answered(status int, body string) (*http.Response, error) {
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)),
		Request: &http.Request{Method: http.MethodPost, URL: &url.URL{Path: "/"}}}, nil
}

// A submission whose answer was lost goes on through the restart of the server. Unless a later try returns the job, it
// ends with the key: a refusal of a later try says nothing about the first one.
func TestALostSubmissionIsRepeatedThroughARestart(t *testing.T) {
	t.Parallel()
	type transport = func(*http.Request) (*http.Response, error)
	for _, c := range []struct {
		name    string
		first   transport
		then    transport
		away    time.Duration // then answers until this
		last    transport
		stored  bool
		lost    bool
		atLeast time.Duration
		atMost  time.Duration
	}{
		{"a restart after a broken connection", answerBroken, answerNoDial, 4 * time.Second, answerStored, true, false,
			4 * time.Second, 7 * time.Second},
		{"a restart noticed on a reused connection", answerResent, answerNoDial, 4 * time.Second, answerStored, true,
			false, 4 * time.Second, 7 * time.Second},
		{"a proxy without a server", answerProxy, answerProxy, 4 * time.Second, answerStored, true, false,
			4 * time.Second, 7 * time.Second},
		{"nobody comes back", answerBroken, answerNoDial, time.Hour, answerStored, false, true, 11 * time.Second,
			15 * time.Second},
		{"a proxy for good", answerProxy, answerProxy, time.Hour, answerStored, false, true, 11 * time.Second,
			15 * time.Second},
		{"a refusal after a restart", answerBroken, answerNoDial, 4 * time.Second, answerRefused, false, true,
			4 * time.Second, 7 * time.Second},
		{"machines that left in a restart", answerBroken, answerNoDial, 4 * time.Second, answerNoRoom, false, true,
			4 * time.Second, 7 * time.Second},
		{"a refusal after a failure", answerFailed, answerFailed, 0, answerRefused, false, true, 0, time.Second},
		{"a rate limit after a restart", answerBroken, answerOften, 4 * time.Second, answerStored, true, false,
			4 * time.Second, 7 * time.Second},
		{"a rate limit for good", answerBroken, answerOften, time.Hour, answerStored, false, true, 11 * time.Second,
			15 * time.Second},
		{"a failure", answerFailed, answerFailed, 4 * time.Second, answerStored, true, false, 4 * time.Second,
			7 * time.Second},
		{"a failure for good", answerFailed, answerFailed, time.Hour, answerStored, false, true, 11 * time.Second,
			15 * time.Second},
		{"a page in place of an answer", answerPortal, answerPortal, time.Hour, answerStored, false, true, 0, 0},
		{"another job with the key", answerBroken, answerNoDial, 4 * time.Second, answerOther, false, false,
			4 * time.Second, 7 * time.Second},
		{"a refusal at once", answerRefused, answerRefused, time.Hour, answerStored, false, false, 0, 0},
		{"another address", answerMoved, answerMoved, time.Hour, answerStored, false, false, 0, 0},
		{"nobody there", answerNoDial, answerNoDial, time.Hour, answerStored, false, false, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				begun, calls := time.Now(), 0
				server := roundTrip(func(r *http.Request) (*http.Response, error) {
					if r.Header.Get("Idempotency-Key") != "k1" {
						t.Error("a call has another key")
					}
					calls++
					switch {
					case calls == 1:
						return c.first(r)
					case time.Since(begun) < c.away:
						return c.then(r)
					}
					return c.last(r)
				})
				job, _, err := client.Over(server, "").Submit(t.Context(), spec.Job{Name: "x"}, "k1")
				if (err == nil) != c.stored || c.stored && job.ID != "j" {
					t.Errorf("job %q, %v", job.ID, err)
				}
				unknown, ok := errors.AsType[*client.LostAnswerError](err)
				if ok != c.lost || ok && unknown.Key != "k1" {
					t.Errorf("got %#v, lost %v", err, c.lost)
				}
				if took := time.Since(begun); took < c.atLeast || took > c.atMost {
					t.Errorf("%d calls took %s, want %s to %s", calls, took, c.atLeast, c.atMost)
				}
			})
		})
	}
}

// Without a key a second call could be a second job.
func TestASubmissionWithoutAKeyIsSentOnce(t *testing.T) {
	t.Parallel()
	for _, first := range []func(*http.Request) (*http.Response, error){answerBroken, answerProxy} {
		calls := 0
		transport := roundTrip(func(r *http.Request) (*http.Response, error) { calls++; return first(r) })
		_, _, err := client.Over(transport, "").Submit(t.Context(), spec.Job{Name: "x"}, "")
		if calls != 1 || !client.Unreachable(err) && berth.CodeOf(err) != berth.CodeUnavailable {
			t.Errorf("%d calls, %v", calls, err)
		}
	}
}
