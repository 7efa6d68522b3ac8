package agent_test

import (
	"archive/tar"
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/klauspost/compress/zstd"

	"berth"
	"berth/failure"
	"berth/internal/lib/archive"
	"berth/spec"
	"berth/wire"
)

// upload stores a folder of these files as the command line would.
func (s *site) upload(files map[string]string) berth.Address {
	s.t.Helper()
	dir := s.t.TempDir()
	for name, content := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			s.t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			s.t.Fatal(err)
		}
	}
	var text bytes.Buffer
	sum, err := archive.Pack(s.t.Context(), &text, dir, archive.Default)
	if err != nil {
		s.t.Fatal(err)
	}
	s.store("default", sum, text.Bytes())
	return sum.Address
}

func (s *site) store(tenant berth.TenantID, sum archive.Summary, text []byte) (object string) {
	s.t.Helper()
	folder, err := s.db.Uploads.Begin(s.t.Context(), tenant, sum.Address)
	if err != nil {
		s.t.Fatal(err)
	}
	object = folder + "/" + berth.ArchiveName
	if _, err := s.blobs.Put(s.t.Context(), object, bytes.NewReader(text), int64(len(text))); err != nil {
		s.t.Fatal(err)
	}
	if _, _, err := s.db.Uploads.End(s.t.Context(), tenant, wire.Upload{Address: sum.Address, Files: sum.Files, Bytes: sum.Bytes}, folder); err != nil {
		s.t.Fatal(err)
	}
	return object
}

func coded(a berth.Address) func(*spec.Job) {
	return func(j *spec.Job) { j.Workdir = string(a) }
}

// uploadsFetched counts the archives that the machines have asked for.
func (s *site) uploadsFetched() *atomic.Int64 {
	var n atomic.Int64
	count := func(r *http.Request) int {
		if strings.Contains(r.URL.Path, "/agent/v1/uploads/") {
			n.Add(1)
		}
		return 0
	}
	s.gate.refuse.Store(&count)
	return &n
}

func TestAWorkdirIsInPlaceAndOnesOwn(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	fetched := s.uploadsFetched()
	m := s.machine("m1")
	a := s.upload(map[string]string{"main.txt": "hello", "lib/x.txt": "deep"})
	for run, how := range []string{"fetched", "reused cached "} {
		id := s.submit(coded(a), "do", "cwd", "read-file /workspace/main.txt", "read-file /workspace/lib/x.txt",
			"write-file /workspace/main.txt changed", "write-file /workspace/lib/new.txt new")
		req, w := m.run(id)
		if x := w.exit(); x.Code != 0 {
			t.Fatalf("exit is %+v; log %q", x, s.log(id, 1))
		}
		if got := s.log(id, 1); !slices.Equal(got, []string{"/workspace", "hello", "deep"}) {
			t.Errorf("run %d prints %q", run, got)
		}
		if !s.hasEvent(id, wire.EventFetched, how) {
			t.Errorf("run %d has events %+v", run, s.events(id))
		}
		s.settle(id)
		m.cleared(req)
	}
	if n := fetched.Load(); n != 1 {
		t.Errorf("it was fetched %d times", n)
	}
}

func TestClaimsOfTheSameContentFetchItOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	fetched := s.uploadsFetched()
	m := s.machine("m1")
	a := s.upload(map[string]string{"main.txt": "hello"})
	one, two := s.submit(coded(a), "read-file", "/workspace/main.txt"), s.submit(coded(a), "read-file", "/workspace/main.txt")
	_, w := m.runOn(0, one)
	_, v := m.runOn(1, two)
	if w.exit().Code != 0 || v.exit().Code != 0 {
		t.Errorf("logs are %q and %q", s.log(one, 1), s.log(two, 1))
	}
	if n := fetched.Load(); n != 1 {
		t.Errorf("it was fetched %d times", n)
	}
}

// The server has judged it already; a machine trusts no server's store.
func TestAMachineRefusesWhatTheServerShouldHave(t *testing.T) {
	t.Parallel()
	var plain, text bytes.Buffer
	w := tar.NewWriter(&plain)
	if err := w.WriteHeader(&tar.Header{Name: "../../../canary", Typeflag: tar.TypeReg, Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	z, err := zstd.NewWriter(&text)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := z.Write(plain.Bytes()); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	s := newSite(t)
	m := s.machine("m1")
	evil := archive.Summary{Address: berth.AddressOf(bytes.Repeat([]byte{1}, 32))}
	s.store("default", evil, text.Bytes())
	good := s.upload(map[string]string{"a": "1"})
	if err := s.db.Pool().QueryRow(t.Context(), `UPDATE uploads SET folder = (SELECT folder FROM uploads WHERE address = $1) WHERE address = $2 RETURNING folder`,
		s.upload(map[string]string{"a": "2"}), good).Scan(new(string)); err != nil {
		t.Fatal(err)
	}
	gone := s.upload(map[string]string{"a": "3"})
	for _, c := range []struct {
		a    berth.Address
		says string
	}{{evil.Address, "leads out of the folder"}, {good, "has the address"}, {gone, "no such content"}} {
		id := s.submit(coded(c.a), "exit", "0")
		if c.a == gone {
			if _, err := s.db.Pool().Exec(t.Context(), `DELETE FROM uploads WHERE address = $1`, gone); err != nil {
				t.Fatal(err)
			}
		}
		req, w := m.run(id)
		if x := w.exit(); x.Cause != failure.CauseInputInvalid || !strings.Contains(x.Message, c.says) {
			t.Errorf("exit is %+v, want %q", x, c.says)
		}
		if j := s.settle(id); j.Status != berth.Failed || j.Reason.Code != berth.ReasonInputInvalid {
			t.Errorf("job is %s, %+v", j.Status, j.Reason)
		}
		m.cleared(req)
	}
	left, err := filepath.Glob(filepath.Join(m.cfg.StateDir, "cache", ".new-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
	if _, err := os.Stat(filepath.Join(m.cfg.StateDir, "..", "canary")); err == nil {
		t.Error("it wrote outside")
	}
}

// The least recently used entry goes; content larger than the cache is used all the same.
func TestTheCacheKeepsToItsLimit(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	m.cfg.CacheBytes = 2500
	half := filepath.Join(m.cfg.StateDir, "cache", ".new-1")
	if err := os.MkdirAll(half, 0o700); err != nil {
		t.Fatal(err)
	}
	m.start()
	if _, err := os.Stat(half); err == nil {
		t.Error("what a killed process left half made is still there")
	}
	var all []berth.Address
	for _, c := range []string{"a", "b", "c"} {
		all = append(all, s.upload(map[string]string{"x": strings.Repeat(c, 1000)}))
	}
	big := s.upload(map[string]string{"x": strings.Repeat("d", 5000)})
	cached := func(a berth.Address) bool {
		_, err := os.Stat(filepath.Join(m.cfg.StateDir, "cache", "default", a.Hex(), "entry.json"))
		return err == nil
	}
	run := func(a berth.Address) {
		t.Helper()
		id := s.submit(coded(a), "read-file", "/workspace/x")
		_, w := m.run(id)
		if x := w.exit(); x.Code != 0 {
			t.Fatalf("exit is %+v", x)
		}
		s.settle(id)
	}
	run(all[0])
	run(all[1])
	run(all[0]) // used last
	run(all[2])
	if !cached(all[0]) || cached(all[1]) || !cached(all[2]) {
		t.Errorf("cached are %v %v %v", cached(all[0]), cached(all[1]), cached(all[2]))
	}
	run(big)
	if cached(big) {
		t.Error("what is larger than the cache stayed in it")
	}
}

func TestDockerRunsCodeFromItsWorkdir(t *testing.T) {
	t.Parallel()
	s, m := dockerMachine(t)
	a := s.upload(map[string]string{"main.txt": "hello"})
	id := s.submit(coded(a), "do", "cwd", "read-file main.txt", "write-file main.txt mine", "read-file main.txt")
	_, w := m.run(id)
	if x := w.exit(); x.Code != 0 {
		t.Errorf("exit is %+v", x)
	}
	if got := s.log(id, 1); !slices.Equal(got, []string{"/workspace", "hello", "mine"}) {
		t.Errorf("it prints %q", got)
	}
}
