package client_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"berth"
	"berth/api/client"
	"berth/spec"
	"berth/wire"
)

func serve(t *testing.T, h http.HandlerFunc) *client.Client {
	t.Helper()
	web := httptest.NewServer(h)
	t.Cleanup(web.Close)
	c := client.New(web.URL+"/", "berth_x_y")
	t.Cleanup(c.Close)
	return c
}

func TestASubmissionWhoseAnswerIsLostIsSentAgain(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	keys := make(chan string, 10)
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		keys <- r.Header.Get("Idempotency-Key")
		if calls.Add(1) == 1 {
			panic(http.ErrAbortHandler) // the job is stored, the answer is not sent
		}
		_ = json.NewEncoder(w).Encode(wire.Job{ID: "j"})
	})
	job, created, err := c.Submit(t.Context(), spec.Job{Name: "x"}, "k1")
	if err != nil || created || job.ID != "j" || calls.Load() != 2 || <-keys != "k1" || <-keys != "k1" {
		t.Errorf("submit: %+v, created %v, %v, %d calls", job, created, err, calls.Load())
	}
	calls.Store(0)
	if _, _, err := c.Submit(t.Context(), spec.Job{Name: "x"}, ""); !client.Unreachable(err) || calls.Load() != 1 {
		t.Errorf("without a key: %v after %d calls, want one call and its error", err, calls.Load())
	}
}

func TestACallIsRepeatedWhenTheServerAsks(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name   string
		status int
		again  string
		call   func(c *client.Client) error
		calls  int32
	}{
		{"a read while the database is away", 503, "1", func(c *client.Client) error { _, err := c.Job(t.Context(), "x"); return err }, 2},
		{"a submission with a key", 503, "1", func(c *client.Client) error { _, _, err := c.Submit(t.Context(), spec.Job{}, "k"); return err }, 2},
		{"a submission without one", 503, "1", func(c *client.Client) error { _, _, err := c.Submit(t.Context(), spec.Job{}, ""); return err }, 1},
		{"too many calls", 429, "1", func(c *client.Client) error { _, _, err := c.Submit(t.Context(), spec.Job{}, ""); return err }, 2},
		{"nothing asked", 503, "", func(c *client.Client) error { _, err := c.Job(t.Context(), "x"); return err }, 1},
		{"later than anybody waits", 503, "3600", func(c *client.Client) error { _, err := c.Job(t.Context(), "x"); return err }, 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int32
			c := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if calls.Add(1) == 1 {
					w.Header().Set("Retry-After", row.again)
					w.WriteHeader(row.status)
				}
				_ = json.NewEncoder(w).Encode(wire.Job{ID: "j"})
			})
			told := 0
			c.OnRepeat = func(answer error) {
				if told++; answer == nil {
					t.Error("told of a repetition without what was answered")
				}
			}
			if err := row.call(c); (err == nil) != (row.calls > 1) || calls.Load() != row.calls || told != int(row.calls)-1 {
				t.Errorf("%v after %d calls, want %d; told %d times", err, calls.Load(), row.calls, told)
			}
		})
	}
}

func TestAnswersThatAreNotBerthsAreErrorsOfTheirStatus(t *testing.T) {
	t.Parallel()
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusBadGateway)
		_, _ = w.Write([]byte("<html>proxy</html>"))
	})
	_, err := c.Job(t.Context(), "x")
	if berth.CodeOf(err) != berth.CodeUnavailable || !strings.Contains(err.Error(), "502") || client.Unreachable(err) {
		t.Errorf("got %v", err)
	}
}

func TestProblemsBecomeErrors(t *testing.T) {
	t.Parallel()
	var status atomic.Int32
	var code atomic.Value
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer berth_x_y" {
			t.Errorf("the token is sent as %q", r.Header.Get("Authorization"))
		}
		w.WriteHeader(int(status.Load()))
		_ = json.NewEncoder(w).Encode(map[string]any{"code": code.Load(), "detail": "words", "errors": []berth.FieldError{{Field: "f"}}})
	})
	for _, row := range []struct {
		status int
		stable string
		want   berth.Code
	}{
		{400, "invalid", berth.CodeInvalid}, {401, "unauthorized", berth.CodeUnauthorized}, {403, "forbidden", berth.CodeForbidden},
		{404, "not_found", berth.CodeNotFound}, {409, "conflict", berth.CodeConflict}, {409, "stale_epoch", berth.CodeConflict},
		{422, "invalid_spec", berth.CodeInvalid}, {422, "unsatisfiable", berth.CodeCapacity}, {422, "idempotency_mismatch", berth.CodeConflict},
		{429, "rate_limited", berth.CodeCapacity}, {503, "unavailable", berth.CodeUnavailable}, {500, "internal", berth.CodeInternal},
	} {
		status.Store(int32(row.status))
		code.Store(row.stable)
		_, err := c.Machine(t.Context(), "m")
		if berth.CodeOf(err) != row.want || !berth.IsSlug(err, row.stable) || err.Error() != "words" || len(err.(*berth.Error).Fields) != 1 {
			t.Errorf("%d %s: got %#v", row.status, row.stable, err)
		}
	}
}

func TestNobodyThereIsUnreachable(t *testing.T) {
	t.Parallel()
	web := httptest.NewServer(http.NotFoundHandler())
	web.Close()
	c := client.New(web.URL, "")
	if _, err := c.Job(t.Context(), "x"); !client.Unreachable(err) {
		t.Errorf("got %v", err)
	}
	if _, _, err := c.Submit(t.Context(), spec.Job{}, "k"); !client.Unreachable(err) {
		t.Errorf("submit: got %v", err)
	}
}
