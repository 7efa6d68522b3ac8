package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// A submit whose first answer was lost is a submit and no repeat; one without an answer names the key of a safe repeat.
func TestSubmitAfterALostAnswer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		alive bool
		code  int
		says  string
	}{
		"the server is back": {true, 0, "submitted busybox; follow it with: berth logs -f 0193a1b2-c3d4-7000\n"},
		"it stays away":      {false, 7, "--idempotency-key cli-"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int32
			var keys atomic.Value
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPost {
					keys.CompareAndSwap(nil, r.Header.Get("Idempotency-Key"))
					if keys.Load() != r.Header.Get("Idempotency-Key") {
						t.Error("the repeat has another key")
					}
					if calls.Add(1) == 1 || !c.alive {
						panic(http.ErrAbortHandler)
					}
				}
				const job = `{"id":"0193a1b2-c3d4-7000-8000-000000000001","name":"busybox","status":"queued"}`
				_, _ = w.Write([]byte(job))
			}))
			defer server.Close()
			a, b := onTerminal(80, false)
			a.URL = server.URL
			code := run(t.Context(), a, []string{"run", "-d", "--image", "busybox"})
			if code != c.code || !strings.Contains(b.String(), c.says) {
				t.Errorf("exit code %d after %d calls:\n%s\nwant %d with %q", code, calls.Load(), b, c.code, c.says)
			}
			key, _ := keys.Load().(string)
			if said := strings.Contains(b.String(), "--idempotency-key "+key+"\n"); said == c.alive {
				t.Errorf("the key is said: %v\n%s", said, b)
			}
			if strings.Contains(b.String(), "before") {
				t.Errorf("the repeat is reported as an earlier submit:\n%s", b)
			}
		})
	}
}
