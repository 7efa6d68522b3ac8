package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/internal/lib/archive"
	"berth/wire"
)

// outputServer serves one job with one output, whose archive is text.
func outputServer(t *testing.T, o wire.StoredOutput, text []byte) string {
	t.Helper()
	id := berth.NewJobID(time.Now())
	mux := http.NewServeMux()
	answer := func(v any) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(v) }
	}
	mux.HandleFunc("GET /v1/jobs/{id}", answer(wire.Job{ID: id, Name: "digits"}))
	mux.HandleFunc("GET /v1/jobs/{id}/outputs", answer(wire.Page[wire.StoredOutput]{Items: []wire.StoredOutput{o, {Name: "old", Attempt: 1}}}))
	mux.HandleFunc("GET /v1/jobs/{id}/outputs/model", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(text) })
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

func pull(t *testing.T, url string, to string, term screen) (code int, out, errs string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	a := &app{config: config{URL: url}, in: strings.NewReader(""), out: &stdout, err: &stderr, errTerm: term, now: time.Now}
	code = run(t.Context(), a, []string{"outputs", "pull", string(berth.NewJobID(time.Now())), "--dir", to})
	return code, stdout.String(), stderr.String()
}

func TestPullFetchesAnOutputWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	from := t.TempDir()
	if err := os.WriteFile(filepath.Join(from, "weights"), []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	sum, err := archive.Pack(t.Context(), &text, from, archive.Default)
	if err != nil {
		t.Fatal(err)
	}
	good := wire.StoredOutput{Name: "model", Attempt: 2, Address: sum.Address, Files: 1, Bytes: 5, Stored: int64(text.Len())}
	to := t.TempDir()
	url := outputServer(t, good, text.Bytes())
	code, out, errs := pull(t, url, to, screen{terminal: true, width: 80})
	if code != 0 || out != filepath.Join(to, "model")+"\n" || !strings.Contains(errs, "model: 1 entry, 5 bytes") || !strings.Contains(errs, "░░") {
		t.Errorf("exit %d, %q, %q", code, out, errs)
	}
	if b, err := os.ReadFile(filepath.Join(to, "model", "weights")); err != nil || string(b) != "12345" {
		t.Errorf("it holds %q, %v", b, err)
	}
	if code, _, errs := pull(t, url, to, screen{}); code != 2 || !strings.Contains(errs, "already exists") {
		t.Errorf("again: exit %d, %q", code, errs)
	}
	other := good
	other.Address = berth.AddressOf(make([]byte, 32))
	for what, c := range map[string]struct {
		o    wire.StoredOutput
		text []byte
		says string
	}{
		"another content": {other, text.Bytes(), "is damaged"},
		"cut off":         {good, text.Bytes()[:text.Len()/2], "archive"},
		"no archive":      {good, []byte("hello"), "archive"},
	} {
		to := t.TempDir()
		code, out, errs := pull(t, outputServer(t, c.o, c.text), to, screen{})
		left, err := os.ReadDir(to)
		if code == 0 || out != "" || !strings.Contains(errs, c.says) || err != nil || len(left) > 0 {
			t.Errorf("%s: exit %d, %q, %q; left %v, %v", what, code, out, errs, left, err)
		}
	}
}
