package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// fullDisk is a standard output that takes nothing.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

// A command whose output does not arrive fails, in each format. The end of a job without success comes first.
func TestLostOutputIsAFailure(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]int{
		"list": 2, "list -o name": 2, "list -o json": 2, "cancel -o name 0193a1b2": 2, "run --image busybox -d": 2,
		"run --image busybox": 2, "wait -o name 0193a1b2": 2, "wait 0193a1b2": 0, "run --image busybox --name fails": 1,
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			status := "succeeded"
			if strings.Contains(args, "fails") {
				status = "failed"
			}
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				job := `{"id":"0193a1b2-c3d4-7000-8000-000000000001","name":"work","attempt":1,` +
					`"status":"` + status + `"}`
				switch {
				case strings.HasSuffix(r.URL.Path, "/logs"):
					fmt.Fprint(w, "id: 1-9\nevent: log\ndata: {\"text\":\"line\"}\n\nevent: end\ndata: {}\n\n")
				case r.URL.Path == "/v1/jobs" && r.Method == http.MethodGet:
					fmt.Fprint(w, `{"items":[`+job+`]}`)
				default:
					_, _ = io.WriteString(w, job)
				}
			}))
			defer server.Close()
			var errs bytes.Buffer
			a, _ := onTerminal(80, false)
			a.URL, a.out, a.outTerm, a.err, a.errTerm = server.URL, fullDisk{}, screen{}, &errs, screen{}
			code := run(t.Context(), a, strings.Fields(args))
			if code != want || want == 2 && !strings.Contains(errs.String(), "no space left on device") {
				t.Errorf("exit code %d, want %d:\n%s", code, want, &errs)
			}
		})
	}
}

// Each failure of a cancel of several elements is reported, and the last one decides the exit code.
func TestEachFailureOfACancelIsReported(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := "0193a1b2-c3d4-7000-8000-00000000000a"
		if strings.Contains(r.URL.Path, "0193ffff") {
			id = "0193ffff-c3d4-7000-8000-00000000000b"
		}
		switch {
		case r.Method == http.MethodGet:
			fmt.Fprintf(w, `{"id":%q,"name":"sweep","kind":"array","status":"running"}`, id)
		case strings.Contains(id, "0193ffff"):
			w.WriteHeader(http.StatusConflict)
			_, _ = io.WriteString(w, `{"code":"conflict","detail":"the array has ended"}`)
		default:
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"code":"invalid","detail":"x",`+
				`"errors":[{"field":"index","detail":"9 is too large"}]}`)
		}
	}))
	defer server.Close()
	a, b := onTerminal(80, false)
	a.URL = server.URL
	code := run(t.Context(), a, []string{"cancel", "0193a1b2[9]", "0193ffff[1]"})
	if code != int(exitConflict) || !strings.Contains(b.String(), "9 is too large") ||
		!strings.Contains(b.String(), "the array has ended") {
		t.Errorf("exit code %d:\n%s", code, b)
	}
}

// The retry of a job that was retried before creates no job, and the message does not say so.
func TestARepeatedRetryNamesTheFirstOne(t *testing.T) {
	t.Parallel()
	const first = "0193a1b2-c3d4-7000-8000-00000000000b"
	for name, c := range map[string]struct{ before, after, says string }{
		"first": {"", "", "submitted " + first + " as a retry of digits (0193a1b2-c3d4-7000)\n"},
		"repeated": {`,"retried_by":"` + first + `"`, "",
			"digits (0193a1b2-c3d4-7000) was retried before, 5m0s ago, as " + first + "\n"},
		"again": {`,"retried_by":"0193a1b2-c3d4-7000-8000-00000000000c"`, "", "submitted " + first + " as a retry of"},
		"image": {"", `,"image_digest":"sha256:` + strings.Repeat("1", 64) + `","image_digest_by":"retry"`,
			"image sha256:111111111111 of the old job's submit; --fresh-image runs what the tag names now\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPost {
					fmt.Fprintf(w, `{"id":%q,"name":"digits","status":"queued","submitted_at":%q%s}`, first,
						noon.Add(-5*time.Minute).Format(time.RFC3339), c.after)
					return
				}
				_, _ = io.WriteString(w, `{"id":"0193a1b2-c3d4-7000-8000-00000000000a","name":"digits",`+
					`"status":"failed"`+c.before+`}`)
			}))
			defer server.Close()
			a, b := onTerminal(80, false)
			a.URL = server.URL
			code := run(t.Context(), a, []string{"retry", "0193a1b2"})
			if code != 0 || !strings.Contains(b.String(), c.says) || !strings.Contains(b.String(), first+"\n") {
				t.Errorf("exit code %d:\n%s", code, b)
			}
		})
	}
}
