package agent_test

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"berth"
	"berth/failure"
	"berth/internal/lib/publicnet"
	"berth/internal/machine/fetch/azuretest"
	"berth/internal/machine/fetch/gstest"
	"berth/spec"
	"berth/wire"
)

// left runs a job that leaves a file as its output.
func (s *site) left(m *machine, content string) berth.JobID {
	s.t.Helper()
	id := s.submit(leaving("/workspace/model.pt"), "write-file", "/workspace/model.pt", content)
	req, w := m.run(id)
	w.exit()
	if j := s.settle(id); j.Status != berth.Succeeded {
		s.t.Fatalf("job is %s, %+v", j.Status, j.Reason)
	}
	m.cleared(req) // else a restarted agent would take no work before it was
	return id
}

func from(inputs ...string) func(*spec.Job) {
	return func(j *spec.Job) {
		for i, f := range inputs {
			j.Inputs = append(j.Inputs, spec.Input{From: f, To: []string{"/data", "/more"}[i]})
		}
	}
}

// wantLog runs a job to its end and fails unless it prints this.
func (m *machine) wantLog(id berth.JobID, want ...string) {
	m.s.t.Helper()
	req, w := m.run(id)
	if x := w.exit(); x.Code != 0 {
		m.s.t.Fatalf("exit is %+v; log %q", x, m.s.log(id, 1))
	}
	if got := m.s.log(id, 1); !slices.Equal(got, want) {
		m.s.t.Errorf("it prints %q, want %q", got, want)
	}
	m.s.settle(id)
	m.cleared(req)
}

func TestOutputsOfAJobAreInputsOfOthers(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	source := s.left(m, "weights")
	fetched := s.uploadsFetched()
	in := from("job:" + string(source) + "/model")
	for _, how := range []string{"fetched", "reused cached "} {
		id := s.submit(in, "read-file", "/data/model.pt")
		m.wantLog(id, "weights")
		if !s.hasEvent(id, wire.EventFetched, how) {
			t.Errorf("events %+v", s.events(id))
		}
	}
	if n := fetched.Load(); n != 1 {
		t.Errorf("it was fetched %d times", n)
	}
	id := s.submit(in, "write-file", "/data/model.pt", "mine")
	_, w := m.run(id)
	if x := w.exit(); x.Code == 0 {
		t.Error("a container writes to what others share")
	}
	s.settle(id)
	m.wantLog(s.submit(in, "read-file", "/data/model.pt"), "weights")
}

// The cache's limit is zero: any fetched content is removed as soon as it is in place, and again
// when the agent is a new process.
func TestWhatAContainerReadsStaysWhenTheCacheIsFull(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	source := s.left(m, "weights")
	m.cfg.CacheBytes = -1
	m.restart()
	id := s.submit(from("job:"+string(source)+"/model"), "do", "trap-term 0", "read-file /data/model.pt")
	req, _ := m.run(id)
	s.until("the program listens", func() bool { return slices.Contains(s.log(id, 1), "ready") })
	if kept, err := filepath.Glob(filepath.Join(m.cfg.StateDir, "cache", "*", "*")); err != nil || len(kept) > 0 {
		t.Errorf("the cache keeps %v, %v", kept, err)
	}
	m.restart()
	if err := m.cfg.Runtime.Signal(t.Context(), berth.ContainerName(id, 0, 1), "SIGTERM"); err != nil {
		t.Fatal(err)
	}
	if x := m.wait(req).exit(); x.Code != 0 || !slices.Contains(s.log(id, 1), "weights") {
		t.Errorf("exit is %+v, log %q", x, s.log(id, 1))
	}
}

// A crash of the host may cut files short whose entry says that they are whole.
func TestDamagedContentIsFetchedAgain(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	a := s.upload(map[string]string{"main.txt": "hello"})
	run := func() { m.wantLog(s.submit(coded(a), "read-file", "/workspace/main.txt"), "hello") }
	run()
	kept, err := filepath.Glob(filepath.Join(m.cfg.StateDir, "cache", "*", "*", "tree", "main.txt"))
	if err != nil || len(kept) != 1 {
		t.Fatalf("the cache has %v, %v", kept, err)
	}
	if err := os.Truncate(kept[0], 2); err != nil {
		t.Fatal(err)
	}
	run()
	if err := os.Remove(kept[0]); err != nil {
		t.Fatal(err)
	}
	run()
	if left, err := filepath.Glob(filepath.Join(m.cfg.StateDir, "cache", ".*")); err != nil || len(left) > 0 {
		t.Errorf("the cache is left with %v, %v", left, err)
	}
}

// fileServer serves one file by https, and a machine may fetch from it.
type fileServer struct {
	*httptest.Server
	asked  atomic.Int64
	status atomic.Int64
	login  atomic.Value
}

const served = "data of a server"

func newFileServer(t *testing.T, m *machine) *fileServer {
	t.Helper()
	f := &fileServer{}
	f.status.Store(http.StatusOK)
	f.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.asked.Add(1)
		f.login.Store(r.Header.Get("Authorization"))
		if status := int(f.status.Load()); status != http.StatusOK {
			w.WriteHeader(status)
			return
		}
		if r.URL.Path == "/versioned" {
			w.Header().Set("ETag", `"1"`)
		}
		_, _ = w.Write([]byte(served))
	}))
	t.Cleanup(f.Close)
	m.cfg.InputNetworks = publicnet.Policy{}.Allow(netip.MustParsePrefix("127.0.0.0/8"))
	m.cfg.InputRoots = x509.NewCertPool()
	m.cfg.InputRoots.AddCert(f.Certificate())
	m.restart()
	return f
}

func TestFilesOfAServerAreInputs(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	f := newFileServer(t, m)
	s.secret("TOKEN", canary)
	sum := sha256.Sum256([]byte(served))
	for path, row := range map[string]struct {
		sum   string
		asked int64 // by two jobs
		how   string
	}{
		"/hashed":    {hex.EncodeToString(sum[:]), 1, "reused cached "},
		"/versioned": {"", 3, "reused cached "}, // each looks for it, one reads it
		"/neither":   {"", 4, ": fetched "},
	} {
		f.asked.Store(0)
		for run := range 2 {
			id := s.submit(func(j *spec.Job) {
				j.Inputs = []spec.Input{{From: f.URL + path, To: "/data/file.bin", SHA256: row.sum, Secret: "TOKEN"}}
			}, "read-file", "/data/file.bin")
			m.wantLog(id, served)
			if run == 1 && !s.hasEvent(id, wire.EventFetched, row.how) {
				t.Errorf("%s: events %+v", path, s.events(id))
			}
		}
		if n := f.asked.Load(); n != row.asked {
			t.Errorf("%s was asked for %d times", path, n)
		}
	}
	if f.login.Load() != "Bearer "+canary {
		t.Errorf("it was asked with %q", f.login.Load())
	}
	if found := append(holds(t, m.cfg.StateDir), holds(t, s.blobDir)...); len(found) > 0 || strings.Contains(m.logs.text(), canary) {
		t.Errorf("the login lies in %v, or a log", found)
	}
	if kept, err := filepath.Glob(filepath.Join(m.cfg.StateDir, "cache", "*", "*")); err != nil || len(kept) != 2 {
		t.Errorf("the cache keeps %v, %v", kept, err)
	}
}

func TestObjectsOfOtherCloudsAreInputs(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	m.cfg.InputNetworks = publicnet.Policy{}.Allow(netip.MustParsePrefix("127.0.0.0/8"))
	m.restart()
	google, azure := gstest.Start(t), azuretest.Start(t)
	google.Put("set/a.txt", "of Google")
	azure.Put("model.bin", "of Azure")
	s.secret("GS", string(google.Account.Login))
	s.secret("AZURE", string(azure.Login))
	in := func(j *spec.Job) {
		j.Inputs = []spec.Input{google.Input("set/", "/data", "GS"), azure.Input("model.bin", "/more/model.bin", "AZURE")}
	}
	for _, how := range []string{"fetched", "reused cached "} {
		id := s.submit(in, "do", "read-file /data/a.txt", "read-file /more/model.bin")
		m.wantLog(id, "of Google", "of Azure")
		if !s.hasEvent(id, wire.EventFetched, "inputs[0] ") || !s.hasEvent(id, wire.EventFetched, how) {
			t.Errorf("events %+v", s.events(id))
		}
	}
}

func TestAnInputThatDoesNotComeIsToldApart(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	f := newFileServer(t, m)
	m.impatient()
	for status, want := range map[int64]struct {
		state berth.State
		code  berth.ReasonCode
	}{
		http.StatusNotFound:           {berth.Failed, berth.ReasonInputInvalid},
		http.StatusForbidden:          {berth.Failed, berth.ReasonInputInvalid},
		http.StatusServiceUnavailable: {berth.Retrying, berth.ReasonInputUnavailable},
	} {
		f.status.Store(status)
		id := s.submit(from(f.URL+"/x"), "exit", "0")
		_, w := m.run(id)
		w.exit()
		j := s.settle(id)
		if j.Status != want.state || j.Reason.Code != want.code || !strings.Contains(j.Reason.Message, fmt.Sprintf("inputs[0]: %s/x: %d %s", f.URL, status, http.StatusText(int(status)))) {
			t.Errorf("%d: job is %s, %+v", status, j.Status, j.Reason)
		}
	}
	f.status.Store(http.StatusOK)
	f.asked.Store(0)
	m.cfg.InputNetworks = publicnet.Policy{}
	m.restart()
	id := s.submit(from(f.URL+"/x"), "exit", "0")
	_, w := m.run(id)
	w.exit()
	if j := s.settle(id); j.Status != berth.Failed || !strings.Contains(j.Reason.Message, "127.0.0.1 is not an address that may be dialed") || f.asked.Load() != 0 {
		t.Errorf("an address within: job is %s, %+v, asked %d times", j.Status, j.Reason, f.asked.Load())
	}
}

func TestDockerMountsInputsOfOthersReadOnly(t *testing.T) {
	t.Parallel()
	s, m := dockerMachine(t)
	f := newFileServer(t, m)
	if err := os.WriteFile(filepath.Join(m.shares(), "a.txt"), []byte("of the machine"), 0o600); err != nil {
		t.Fatal(err)
	}
	source := s.left(m, "weights")
	in := func(j *spec.Job) {
		j.Inputs = []spec.Input{{From: "job:" + string(source) + "/model", To: "/data"}, {From: f.URL + "/versioned", To: "/more/file.bin"}, {From: "file:///datasets/", To: "/set"}}
	}
	m.wantLog(s.submit(in, "do", "read-file /data/model.pt", "read-file /more/file.bin", "read-file /set/a.txt"), "weights", served, "of the machine")
	for _, path := range []string{"/data/model.pt", "/data/new", "/more/file.bin", "/set/a.txt"} {
		id := s.submit(in, "write-file", path, "mine")
		_, w := m.run(id)
		if x := w.exit(); x.Code == 0 {
			t.Errorf("a container writes to %s", path)
		}
		s.settle(id)
	}
	m.wantLog(s.submit(in, "do", "read-file /data/model.pt", "read-file /more/file.bin", "read-file /set/a.txt"), "weights", served, "of the machine")
}

// An input of a kind that only newer agents know may work on another machine: the job is not to
// blame for its placement.
func TestAnInputThatThisAgentDoesNotKnowIsTriedElsewhere(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(from("moon://crater/rocks"), "exit", "0")
	_, w := m.run(id)
	if x := w.exit(); x.Cause != failure.CauseInputUnavailable || !strings.Contains(x.Message, "moon://") {
		t.Errorf("exit is %+v", x)
	}
	if j := s.settle(id); j.Status != berth.Retrying || j.Failures != 0 || j.Losses != 1 {
		t.Errorf("job is %s with %d failures and %d losses, %+v", j.Status, j.Failures, j.Losses, j.Reason)
	}
}

// A file without versions is identified by a hash of its content, so that each fetch of the same
// content counts as the same file.
func TestAnAttemptTellsThatItsDataHasChanged(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	f := newFileServer(t, m)
	google := gstest.Start(t)
	s.secret("GS", string(google.Account.Login))
	id := s.submit(func(j *spec.Job) {
		j.Inputs = []spec.Input{google.Input("set/", "/data", "GS"), {From: f.URL + "/neither", To: "/more/file.bin"}}
		j.Retry.MaxAttempts = 9
	}, "exit", "1")
	for attempt, content := range []string{"first", "", "second"} {
		if content != "" {
			google.Put("set/a.txt", content)
		}
		req, w := m.run(id)
		w.exit()
		if j := s.settle(id); j.Status != berth.Retrying {
			t.Fatalf("attempt %d: %s, %+v", attempt+1, j.Status, j.Reason)
		}
		m.cleared(req)
		s.eligible(id)
	}
	var warnings []string
	for _, e := range s.events(id) {
		if e.Kind == wire.EventWarning {
			warnings = append(warnings, fmt.Sprintf("%d: %s", e.Attempt, e.Detail))
		}
	}
	if len(warnings) != 1 || !strings.HasPrefix(warnings[0], "3: inputs[0] (gs://bucket/set/) has changed since attempt 2: member 0 reads sha256:") {
		t.Errorf("warnings are %q", warnings)
	}
}
