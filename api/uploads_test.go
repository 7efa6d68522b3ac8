package api_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"berth"
	"berth/api"
	"berth/db"
	"berth/internal/control/blob"
	"berth/internal/lib/archive"
	"berth/spec"
	"berth/wire"
)

// archived returns an archive of one file, or of the entries of the headers.
func archived(t *testing.T, content string, headers ...tar.Header) (berth.Address, string) {
	t.Helper()
	var plain, packed bytes.Buffer
	w := tar.NewWriter(&plain)
	if len(headers) == 0 {
		headers = []tar.Header{{Name: "main.py", Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content))}}
	}
	for _, h := range headers {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Size == int64(len(content)) {
			if _, err := w.Write([]byte(content)); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = w.Close() // of a file that was announced and does not come: as it is meant
	z, err := zstd.NewWriter(&packed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := z.Write(plain.Bytes()); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(plain.Bytes())
	return berth.AddressOf(sum[:]), packed.String()
}

func (s *site) upload(name, content string) (berth.Address, answer) {
	s.t.Helper()
	address, text := archived(s.t, content)
	return address, s.call(name, "POST", "/v1/uploads?address="+string(address), text, "Content-Type", "application/zstd")
}

// stored counts the files of a store in a folder, and the objects to be removed.
func (s *site) stored(dir string) (files, doomed int) {
	s.t.Helper()
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files++
		}
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.db.Pool().QueryRow(s.t.Context(), `SELECT count(*) FROM doomed_objects WHERE since <= clock_timestamp()`).Scan(&doomed); err != nil {
		s.t.Fatal(err)
	}
	return files, doomed
}

// uploading is a site whose store is a folder that the test can look into.
func uploading(t *testing.T, l archive.Limits) (*site, string) {
	t.Helper()
	dir := t.TempDir()
	store, err := blob.Open(t.Context(), "file://"+dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return newSite(t, func(d *api.Deps) { d.Agent.Blobs, d.Limits = store, l }), dir
}

func TestAnUploadIsStoredOnceAndNamedByItsContent(t *testing.T) {
	t.Parallel()
	s, dir := uploading(t, archive.Limits{})
	address, first := s.upload("alice", "print(1)")
	var u wire.Upload
	if err := json.Unmarshal([]byte(first.body), &u); err != nil || first.status != http.StatusCreated || u.Address != address || u.Files != 1 || u.Bytes != 8 {
		t.Fatalf("%d %s", first.status, first.body)
	}
	if _, again := s.upload("alice", "print(1)"); again.status != http.StatusOK {
		t.Errorf("again: %d %s", again.status, again.body)
	}
	if files, doomed := s.stored(dir); files != 2 || doomed != 1 {
		t.Errorf("%d objects, %d of them doomed", files, doomed)
	}
	if got := s.call("alice", "GET", "/v1/uploads/"+string(address), ""); got.status != http.StatusOK || !strings.Contains(got.body, string(address)) {
		t.Errorf("asked for: %d %s", got.status, got.body)
	}
	if got := s.call("bob", "GET", "/v1/uploads/"+string(address), ""); got.status != http.StatusNotFound {
		t.Errorf("another tenant asks for it: %d %s", got.status, got.body)
	}
	job := s.submit("alice", func(j *spec.Job) { j.Workdir = string(address) })
	if job.Spec.Workdir != string(address) {
		t.Errorf("job is %+v", job.Spec)
	}
	if retried := s.call("alice", "POST", "/v1/jobs", `{"name":"digits","image":"busybox","workdir":"`+string(address)+`"}`); retried.status != http.StatusCreated {
		t.Errorf("a second job: %d %s", retried.status, retried.body)
	}
}

func TestUploadsThatAreNotAllowedLeaveNothing(t *testing.T) {
	t.Parallel()
	s, dir := uploading(t, archive.Limits{Bytes: 1 << 20, Files: 10})
	for _, c := range []struct {
		name    string
		headers []tar.Header
		says    string
	}{
		{"two dots", []tar.Header{{Name: "../x", Typeflag: tar.TypeReg}}, "leads out"},
		{"an absolute path", []tar.Header{{Name: "/etc/x", Typeflag: tar.TypeReg}}, "absolute"},
		{"chained links", []tar.Header{{Name: "a/b/top", Linkname: "../..", Typeflag: tar.TypeSymlink}, {Name: "out", Linkname: "a/b/top/../..", Typeflag: tar.TypeSymlink}}, "leads out"},
		{"a hard link", []tar.Header{{Name: "x", Linkname: "/etc/passwd", Typeflag: tar.TypeLink}}, "hard link"},
		{"a device", []tar.Header{{Name: "x", Typeflag: tar.TypeBlock}}, "device"},
		{"setuid", []tar.Header{{Name: "x", Typeflag: tar.TypeReg, Mode: 0o4755}}, "setuid"},
		{"10 GiB", []tar.Header{{Name: "x", Typeflag: tar.TypeReg, Size: 10 << 30}}, "more than 1.0 MiB"},
		{"too many", make([]tar.Header, 11), "more than 10 entries"},
	} {
		for i := range c.headers {
			if c.headers[i].Name == "" {
				c.headers[i] = tar.Header{Name: fmt.Sprint("f", i), Typeflag: tar.TypeReg, Mode: 0o644}
			}
		}
		address, text := archived(t, "", c.headers...)
		got := s.call("alice", "POST", "/v1/uploads?address="+string(address), text)
		if got.status != http.StatusUnprocessableEntity || got.problem.Code != "invalid_archive" || !strings.Contains(got.problem.Detail, c.says) {
			t.Errorf("%s: %d %s", c.name, got.status, got.body)
		}
	}
	address, text := archived(t, "print(1)")
	for name, c := range map[string]struct {
		query, body string
		status      int
	}{
		"another address":   {"?address=" + none64, text, 422},
		"no address":        {"", text, 400},
		"no archive":        {"?address=" + string(address), "hello", 422},
		"half an archive":   {"?address=" + string(address), text[:len(text)/2], 422},
		"an empty body":     {"?address=" + string(address), "", 422},
		"upper case":        {"?address=" + strings.ToUpper(string(address)), text, 400},
		"a path as address": {"?address=../../x", text, 400},
	} {
		if got := s.call("alice", "POST", "/v1/uploads"+c.query, c.body); got.status != c.status {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
	}
	if files, _ := s.stored(dir); files != 0 {
		t.Errorf("%d objects were left", files)
	}
	if got := s.call("alice", "GET", "/v1/uploads/"+string(address), ""); got.status != http.StatusNotFound {
		t.Errorf("asked for: %d %s", got.status, got.body)
	}
}

func TestAWorkdirByHTTPIsAnAddressOfOnesOwn(t *testing.T) {
	t.Parallel()
	s, _ := uploading(t, archive.Limits{})
	address, _ := s.upload("alice", "print(1)")
	for _, c := range []struct{ who, workdir, says string }{
		{"alice", "./src", "POST /v1/uploads"},
		{"alice", "/etc", "POST /v1/uploads"},
		{"alice", none64, "upload sha256"},
		{"bob", string(address), "upload sha256"},
	} {
		got := s.call(c.who, "POST", "/v1/jobs", fmt.Sprintf(`{"name":"a","image":"b","workdir":%q}`, c.workdir))
		if got.status != http.StatusUnprocessableEntity || got.problem.Code != "invalid_spec" || len(got.problem.Errors) != 1 || got.problem.Errors[0].Field != "workdir" || !strings.Contains(got.body, c.says) {
			t.Errorf("%s submits %s: %d %s", c.who, c.workdir, got.status, got.body)
		}
	}
}

func TestMachinesGetTheUploadsOfWorkTheyHold(t *testing.T) {
	t.Parallel()
	s, _ := uploading(t, archive.Limits{})
	address, _ := s.upload("alice", "print(1)")
	other, _ := s.upload("alice", "print(2)")
	_, text := archived(t, "print(1)")
	a, b := s.joinMachine("m1"), s.joinMachine("m2")
	a.take(s.submit("alice", func(j *spec.Job) { j.Workdir = string(address) }).ID)
	path := fmt.Sprintf("/agent/v1/uploads/%d/%s", a.run.Alloc, address)
	if got := s.call("m1", "GET", path, ""); got.status != http.StatusOK || got.body != text {
		t.Errorf("its own: %d, %d bytes", got.status, len(got.body))
	}
	if got := s.call("m1", "GET", fmt.Sprintf("/agent/v1/uploads/%d/%s", a.run.Alloc, other), ""); got.status != http.StatusNotFound {
		t.Errorf("an upload that the job does not name: %d %s", got.status, got.body)
	}
	if got := s.call("m2", "GET", path, ""); got.status != http.StatusConflict {
		t.Errorf("another machine: %d %s", got.status, got.body)
	}
	s.sessions["m1"] = db.Session{AgentBoot: "an older process", Epoch: a.epoch}
	if got := s.call("m1", "GET", path, ""); got.status != http.StatusConflict || got.problem.Code != "stale_epoch" {
		t.Errorf("an older session: %d %s", got.status, got.body)
	}
	s.sessions["m1"] = db.Session{AgentBoot: a.boot, Epoch: a.epoch}
	s.exec(`UPDATE allocations SET state = 'exited' WHERE id = $1`, int64(a.run.Alloc))
	if got := s.call("m1", "GET", path, ""); got.status != http.StatusConflict {
		t.Errorf("after its end: %d %s", got.status, got.body)
	}
	_ = b
}
