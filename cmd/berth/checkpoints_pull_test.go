package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"berth"
	"berth/wire"
)

// savedFile describes a file of a checkpoint with this content.
func savedFile(name, content string) wire.SavedFile {
	sum := sha256.Sum256([]byte(content))
	return wire.SavedFile{Path: name, Bytes: int64(len(content)), SHA256: hex.EncodeToString(sum[:]), Mode: 0o640}
}

// checkpointServer serves step 40 of a gang of two, of which each member saved the same files,
// with the given contents. The first cut transfers break off.
func checkpointServer(t *testing.T, files []wire.SavedFile, contents []string, cut int64) string {
	t.Helper()
	id := berth.NewJobID(time.Now())
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, v any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v)
	}
	mux.HandleFunc("GET /v1/jobs/{id}", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, wire.Job{ID: id, Name: "digits"})
	})
	mux.HandleFunc("GET /v1/jobs/{id}/checkpoints", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, wire.Page[berth.Checkpoint]{Items: []berth.Checkpoint{{Step: 50, State: berth.CheckpointBad},
			{Step: 45, State: berth.CheckpointVerified, PassedOver: true, Detail: "no answer"},
			{Step: 40, State: berth.CheckpointVerified}}})
	})
	mux.HandleFunc("GET /v1/jobs/{id}/checkpoints/40/members/{member}", func(w http.ResponseWriter, r *http.Request) {
		member, _ := strconv.Atoi(r.PathValue("member"))
		answer(w, wire.CheckpointFiles{Step: 40, Attempt: 3, Member: member, Members: 2, Files: files})
	})
	var left atomic.Int64
	left.Store(cut)
	const file = "GET /v1/jobs/{id}/checkpoints/40/members/{member}/files/{file}"
	mux.HandleFunc(file, func(w http.ResponseWriter, r *http.Request) {
		file, _ := strconv.Atoi(r.PathValue("file"))
		if r.URL.Query().Get("attempt") != "3" {
			http.Error(w, "another attempt", http.StatusConflict)
			return
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(contents[file])))
		if left.Add(-1) >= 0 {
			_, _ = io.WriteString(w, contents[file][:1])
			panic(http.ErrAbortHandler)
		}
		_, _ = io.WriteString(w, contents[file])
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

func checkpoints(t *testing.T, url string, term screen, args ...string) (code int, out, errs string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	a := &app{config: config{URL: url}, in: strings.NewReader(""), out: &stdout, err: &stderr, errTerm: term,
		now: time.Now}
	code = run(t.Context(), a, append([]string{"checkpoints"}, args...))
	return code, stdout.String(), stderr.String()
}

func TestTheListShowsWhichStepWasPassedOver(t *testing.T) {
	t.Parallel()
	url := checkpointServer(t, nil, nil, 0)
	code, out, errs := checkpoints(t, url, screen{}, "list", string(berth.NewJobID(time.Now())))
	if code != 0 || strings.Count(out, "passed over") != 1 || !strings.Contains(out, "passed over: no answer") {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
}

func TestACheckpointIsPulledWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	job := string(berth.NewJobID(time.Now()))
	files := []wire.SavedFile{savedFile("model/weights", "12345"), savedFile("DONE", "ok")}
	to := t.TempDir()
	url := checkpointServer(t, files, []string{"12345", "ok"}, 2)
	code, out, errs := checkpoints(t, url, screen{terminal: true, width: 80}, "pull", job, "--dir", to)
	place := filepath.Join(to, "step-40")
	if code != 0 || out != place+"\n" || !strings.Contains(errs, "4 files, 14 bytes") ||
		!strings.Contains(errs, "░░") {
		t.Errorf("exit %d, %q, %q", code, out, errs)
	}
	for _, member := range []string{"member-0", "member-1"} {
		b, err := os.ReadFile(filepath.Join(place, member, "model", "weights"))
		if err != nil || string(b) != "12345" {
			t.Errorf("%s has %q, %v", member, b, err)
		}
	}
	code, _, errs = checkpoints(t, url, screen{}, "pull", job, "40", "--dir", to)
	if code != 2 || !strings.Contains(errs, "already exists") {
		t.Errorf("again: exit %d, %q", code, errs)
	}
	code, out, errs = checkpoints(t, url, screen{}, "verify", job)
	if code != 0 || !strings.Contains(out, "is intact: 4 files, 14 bytes") {
		t.Errorf("verify: exit %d, %q, %q", code, out, errs)
	}
	for what, c := range map[string]struct {
		files    []wire.SavedFile
		contents []string
		cut      int64
		code     int
		says     string
	}{
		"flipped":      {files, []string{"12346", "ok"}, 0, 4, "is damaged: model/weights"},
		"shorter":      {files, []string{"1234", "ok"}, 0, 4, "is damaged: model/weights"},
		"cut for good": {files, []string{"12345", "ok"}, 99, 7, ""},
		"outside":      {[]wire.SavedFile{savedFile("../x", "12345")}, []string{"12345"}, 0, 4, "outside of its"},
		"absolute":     {[]wire.SavedFile{savedFile("/etc/x", "12345")}, []string{"12345"}, 0, 4, "outside of its"},
	} {
		to := t.TempDir()
		url := checkpointServer(t, c.files, c.contents, c.cut)
		for _, verb := range [][]string{{"pull", job, "--dir", to}, {"verify", job}} {
			code, out, errs := checkpoints(t, url, screen{}, verb...)
			if code != c.code || out != "" || !strings.Contains(errs, c.says) {
				t.Errorf("%s, %s: exit %d, %q, %q", what, verb[0], code, out, errs)
			}
		}
		if left, err := os.ReadDir(to); err != nil || len(left) > 0 {
			t.Errorf("%s: left %v, %v", what, left, err)
		}
	}
}
