package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"berth/api"
	"berth/db"
	"berth/db/dbtest"
	"berth/internal/control/blob"
	"berth/internal/control/cloud"
	"berth/internal/lib/golden"
	"berth/internal/lib/sealer"
	"berth/spec"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"berth":        func() { os.Exit(Main()) },
		"berth-screen": func() { os.Exit(screenMain()) },
	})
}

// Each script of testdata drives the program as a user does, against a server
// with the answers of the script (`serve`). Scripts with a name that begins
// with real_ get the whole API on a private database instead.
func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		UpdateScripts:       golden.Updating(),
		Setup: func(e *testscript.Env) error {
			e.Setenv("XDG_CONFIG_HOME", filepath.Join(e.WorkDir, "xdg"))
			e.Setenv("BERTH_URL", "http://127.0.0.1:1") // nothing listens there
			// A program under the race detector waits for a second before it exits,
			// lest a race goes unseen; here it exits hundreds of times.
			e.Setenv("GORACE", "atexit_sleep_ms=20")
			if strings.HasPrefix(filepath.Base(e.WorkDir), "script-real_") {
				url := realServer(e.T().(testing.TB), e.Defer)
				e.Setenv("BERTH_URL", url)
				e.Setenv("BERTH_TOKEN", adminToken)
			}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"serve": serve,
			"exits": exits,
		},
	})
}

const adminToken = "berth_0123456789ab_0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// realServer runs the API on a fresh database and returns its address.
func realServer(t testing.TB, cleanup func(func())) string {
	ctx, cancel := context.WithCancel(context.Background())
	store, err := db.Open(ctx, dbtest.URL(t), db.Options{})
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	_, err = store.Tokens.Ensure(ctx, adminToken, spec.NewToken{Name: "root", Tenant: "default", Role: spec.RoleAdmin},
		"start:test")
	if err != nil {
		t.Fatal(err)
	}
	blobs, err := blob.Open(ctx, "mem://")
	if err != nil {
		t.Fatal(err)
	}
	keyFile := filepath.Join(t.TempDir(), "keys")
	if err := sealer.Make(keyFile); err != nil {
		t.Fatal(err)
	}
	keys, err := sealer.Load(keyFile)
	if err != nil {
		t.Fatal(err)
	}
	server, err := api.New(api.Deps{DB: store, Vault: keys, Control: store.Jobs, Agent: api.AgentDeps{Blobs: blobs},
		Accounts: cloud.Accounts{Providers: map[string]cloud.Account{"lab": {Regions: []string{"eu-1"}}}},
		Logs:     &blob.LogReader{Store: blobs, DB: store}, Logger: slog.New(slog.DiscardHandler), Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	listener := httptest.NewServer(server.Handler())
	cleanup(func() {
		cancel()
		listener.CloseClientConnections()
		listener.Close()
		store.Close()
	})
	return listener.URL
}

// serve starts a server with the answers of a file, and points BERTH_URL at it.
// Each line is: METHOD PATH STATUS FILE. Lines of one path are used in turn; the
// last one answers all further calls. The extension of FILE determines the
// content type; `-` is an empty answer.
func serve(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: serve FILE")
	}
	script := &scripted{answers: map[string][]answer{}}
	for line := range strings.Lines(ts.ReadFile(args[0])) {
		f := strings.Fields(line)
		if len(f) == 0 || strings.HasPrefix(f[0], "#") {
			continue
		}
		if len(f) != 4 {
			ts.Fatalf("%s: want METHOD PATH STATUS FILE, got %q", args[0], line)
		}
		status, err := strconv.Atoi(f[2])
		if err != nil {
			ts.Fatalf("%s: %q is no status", args[0], f[2])
		}
		a := answer{status: status, kind: kindOf(f[3])}
		if f[3] != "-" {
			a.body = ts.ReadFile(f[3])
		}
		key := f[0] + " " + f[1]
		script.answers[key] = append(script.answers[key], a)
	}
	server := httptest.NewServer(script)
	ts.Defer(func() {
		server.CloseClientConnections()
		server.Close()
	})
	ts.Setenv("BERTH_URL", server.URL)
}

func kindOf(file string) string {
	switch filepath.Ext(file) {
	case ".problem":
		return "application/problem+json"
	case ".sse":
		return "text/event-stream"
	case ".ndjson":
		return "application/x-ndjson"
	case ".html":
		return "text/html"
	default:
		return "application/json"
	}
}

type answer struct {
	status int
	kind   string
	body   string
}

// scripted is a server that follows a script.
type scripted struct {
	holds bool // event streams without an end stay open, as for a running job

	mu      sync.Mutex
	answers map[string][]answer
}

func (s *scripted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	key := r.Method + " " + r.URL.RequestURI()
	queue, ok := s.answers[key]
	if !ok {
		key = r.Method + " " + r.URL.Path
		queue, ok = s.answers[key]
	}
	if len(queue) > 1 {
		s.answers[key] = queue[1:]
	}
	s.mu.Unlock()
	a := answer{status: http.StatusNotFound, kind: "application/problem+json", body: `{"status":404,"code":"not_found","detail":"the script has no ` + key + `"}`}
	if ok {
		a = queue[0]
	}
	w.Header().Set("Content-Type", a.kind)
	w.WriteHeader(a.status)
	_, _ = w.Write([]byte(a.body))
	if s.holds && a.kind == "text/event-stream" && !strings.Contains(a.body, "event: end\n") {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
}

// exits runs a command and compares its exit code: exits 3 berth show nothing.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND...")
	}
	err := ts.Exec(args[1], args[2:]...)
	got := 0
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		got = e.ExitCode()
	} else if err != nil {
		ts.Fatalf("%s: %v", args[1], err)
	}
	if strconv.Itoa(got) != args[0] {
		ts.Fatalf("%s exited with %d, want %s", strings.Join(args[1:], " "), got, args[0])
	}
}
