package main

import (
	"cmp"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
)

// A submit whose first answer was lost is a submit and no repeat. If no later answer has the job, the message names the
// key of a safe repeat, also if that answer is a refusal.
func TestSubmitAfterALostAnswer(t *testing.T) {
	t.Parallel()
	const job = `{"id":"0193a1b2-c3d4-7000-8000-000000000001","name":"busybox","status":"queued"}`
	const repeat = "--idempotency-key cli-"
	for name, c := range map[string]struct {
		status int // of the answers after the first; 0: none
		body   string
		code   int
		says   string
	}{
		"the server is back": {200, job, 0, "submitted busybox; follow it with: berth logs -f 0193a1b2-c3d4-7000\n"},
		"it stays away":      {0, "", 7, repeat},
		"it refuses":         {403, `{"code":"forbidden","detail":"x"}`, 6, repeat},
		"it finds faults": {400, `{"code":"invalid_spec","detail":"x","errors":[{"field":"image","detail":"no"}]}`, 2,
			repeat},
		"a page": {200, "<html>", 7, repeat},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				calls, key := 0, ""
				server := inProcess(func(w http.ResponseWriter, r *http.Request) {
					if r.Method != http.MethodPost {
						_, _ = io.WriteString(w, job)
						return
					}
					calls++
					if key = cmp.Or(key, r.Header.Get("Idempotency-Key")); key != r.Header.Get("Idempotency-Key") {
						t.Error("the repeat has another key")
					}
					if calls == 1 || c.status == 0 {
						panic(http.ErrAbortHandler)
					}
					w.WriteHeader(c.status)
					_, _ = io.WriteString(w, c.body)
				})
				file := filepath.Join(t.TempDir(), "job.yaml")
				if err := os.WriteFile(file, []byte("name: busybox\nimage: busybox\n"), 0o600); err != nil {
					t.Fatal(err)
				}
				a, b := onTerminal(80, false)
				a.URL, a.transport = "http://berth.test", server
				code := run(t.Context(), a, []string{"submit", file})
				if code != c.code || !strings.Contains(b.String(), c.says) {
					t.Errorf("exit code %d after %d calls:\n%s\nwant %d with %q", code, calls, b, c.code, c.says)
				}
				if said := strings.Contains(b.String(), "--idempotency-key "+key+"\n"); said == (c.code == 0) {
					t.Errorf("the key is said: %v\n%s", said, b)
				}
				if strings.Contains(b.String(), "before") {
					t.Errorf("the repeat is reported as an earlier submit:\n%s", b)
				}
			})
		})
	}
}
