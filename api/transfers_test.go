package api_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"berth"
	"berth/api"
	"berth/internal/lib/poll"
	"berth/spec"
	"berth/wire"
)

// fill stores a log of pieces of 256 KiB with lines of 4 KiB, as a machine
// would, and returns its last line.
func (s *site) fill(job wire.Job, pieces int) string {
	s.t.Helper()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	last := ""
	for p := range pieces {
		lines := make([]string, 64)
		for i := range lines {
			last = fmt.Sprintf("%d-%d %s", p, i, strings.Repeat("x", 4000))
			lines[i] = last
		}
		s.write(job, 1, at.Add(time.Duration(p)*time.Hour), lines...)
	}
	return last
}

// heap is the present size of the process's heap, in bytes.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse)
}

// open sends a request by a connection of its own, with a small receive buffer (a smaller one would drain too slowly),
// and reads nothing of the answer.
func (s *site) open(name, method, path, header string) net.Conn {
	s.t.Helper()
	return s.openAs(s.t, s.tokens[name], method, path, header)
}

func (s *site) openAs(t *testing.T, token, method, path, header string) net.Conn {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.(*net.TCPConn).SetReadBuffer(64 << 10)
	if _, err := fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: berth\r\nAuthorization: Bearer %s\r\n%s\r\n", method, path, token, header); err != nil {
		t.Fatal(err)
	}
	return conn
}

// waitLimit bounds each wait for a condition. It is far above the needs of a slow machine:
// only a test that fails waits so long.
const waitLimit = 5 * time.Minute

// eventually waits until is holds.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	if !poll.Until(waitLimit, 50*time.Millisecond, is) {
		t.Fatalf("%s did not happen", what)
	}
}

// It measures this process's memory, so no other test may run meanwhile.
func TestALongTailIsNotHeldInMemory(t *testing.T) {
	s := newSite(t, nil)
	s.machine("m1", 8, 8192, 0)
	job := s.submit("alice", nil)
	s.run(job.ID, "m1")
	last := s.fill(job, 128) // 32 MiB
	before := heap()
	// Readers that take a little and then stop: the memory held for them is measured.
	for range 4 {
		conn := s.open("alice", "GET", "/v1/jobs/"+string(job.ID)+"/logs?tail=1000000", "")
		if _, err := io.ReadFull(conn, make([]byte, 1024)); err != nil {
			t.Fatal(err)
		}
	}
	if grown := heap() - before; grown > 16<<20 {
		t.Errorf("four tails of a log of 32 MiB hold %d MiB, want at most 16", grown>>20)
	}
	a := s.call("alice", "GET", "/v1/jobs/"+string(job.ID)+"/logs?tail=2", "")
	if lines := strings.Split(strings.TrimSuffix(a.body, "\n"), "\n"); len(lines) != 2 || lines[1] != last {
		t.Errorf("tail=2: %d lines of %d bytes", len(lines), len(a.body))
	}
}

// It measures this process's memory, so no other test may run meanwhile.
func TestAThousandFollowersOfOneLogShareWhatTheyRead(t *testing.T) {
	var reader countedLogs
	s := newSite(t, func(d *api.Deps) {
		d.Transfers = api.TransferLimits{FollowsPerToken: 1000, FollowsPerTenant: 1000}
		reader.LogReader, d.Logs = d.Logs, &reader
	})
	s.machine("m1", 8, 8192, 0)
	job := s.submit("alice", nil)
	s.run(job.ID, "m1")
	s.write(job, 1, time.Now(), "first")
	before := heap()
	const followers = 300 // the process has both ends of each connection, and the race detector's share
	var conns []net.Conn
	for range followers {
		conn := s.open("alice", "GET", "/v1/jobs/"+string(job.ID)+"/logs?follow=true", "")
		readUntil(t, conn, `"text":"first"`)
		conns = append(conns, conn)
	}
	if grown := heap() - before; grown > followers*150<<10 {
		t.Errorf("%d followers hold %d KiB each, want at most 150", followers, grown>>10/followers)
	}
	reads := reader.n.Load()
	s.write(job, 1, time.Now(), "second")
	for _, conn := range conns {
		readUntil(t, conn, `"text":"second"`)
	}
	if n := reader.n.Load() - reads; n > followers/3 {
		t.Errorf("a line was looked for %d times for %d followers", n, followers)
	}
}

// Clients that begin to follow a log at the same time share its beginning too, and
// each of them gets all of it.
func TestFollowersThatBeginAtOnceShareWhatTheyRead(t *testing.T) {
	t.Parallel()
	reader := countedLogs{takes: time.Second}
	s := newSite(t, func(d *api.Deps) { reader.LogReader, d.Logs = d.Logs, &reader })
	s.machine("m1", 8, 8192, 0)
	follow := func(job wire.Job, followers int, until string) (reads int64) {
		t.Helper()
		before := reader.n.Load()
		var conns []net.Conn
		for range followers {
			conns = append(conns, s.open("alice", "GET", "/v1/jobs/"+string(job.ID)+"/logs?follow=true", ""))
		}
		for _, conn := range conns {
			readUntil(t, conn, until)
		}
		return reader.n.Load() - before
	}
	short, long := s.submit("alice", nil), s.submit("alice", nil)
	s.run(short.ID, "m1")
	s.write(short, 1, time.Now(), "first")
	const followers = 60
	if n := follow(short, followers, `"text":"first"`); n > followers/3 {
		t.Errorf("the log was opened %d times for %d followers", n, followers)
	}
	s.run(long.ID, "m1")
	follow(long, 3, s.fill(long, 1)) // several blocks
}

// countedLogs counts how often a log is opened, which takes a time.
type countedLogs struct {
	api.LogReader
	n     atomic.Int64
	takes time.Duration
}

func (c *countedLogs) OpenLog(ctx context.Context, log berth.LogRef, offset int64) (io.ReadCloser, error) {
	c.n.Add(1)
	time.Sleep(c.takes)
	return c.LogReader.OpenLog(ctx, log, offset)
}

// readUntil reads from conn until text has come.
func readUntil(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(waitLimit))
	var got []byte
	b := make([]byte, 512)
	for !bytes.Contains(got, []byte(text)) {
		n, err := conn.Read(b)
		if got = append(got, b[:n]...); err != nil {
			t.Fatalf("%v before %s; got %s", err, text, got)
		}
	}
}

func TestFollowersAreCappedByTokenAndTenant(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(d *api.Deps) { d.Transfers = api.TransferLimits{FollowsPerToken: 2, FollowsPerTenant: 3} })
	job := s.submit("alice", nil)
	other := s.submit("bob", nil)
	path := "/v1/jobs/" + string(job.ID) + "/events"
	first, second := s.stream("alice", path), s.stream("alice", path)
	first.ids(t, 1)
	second.ids(t, 1)
	refused := func(name, who string) {
		t.Helper()
		a := s.call(name, "GET", "/v1/jobs/"+string(job.ID)+"/logs?follow=true", "")
		if a.status != http.StatusTooManyRequests || a.problem.Code != "too_many_transfers" || a.header.Get("Retry-After") == "" ||
			!strings.Contains(a.problem.Detail, who) || !strings.Contains(a.problem.Detail, "at most") {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	refused("alice", "token alice has 2 followed logs and histories open; at most 2")
	// It is refused before anything is looked up: not even that no such job exists.
	if a := s.call("alice", "GET", "/v1/jobs/"+string(berth.NewJobID(time.Now()))+"/logs?follow=true", ""); a.status != http.StatusTooManyRequests {
		t.Errorf("a further follow of no job: %d %s", a.status, a.body)
	}
	third := s.stream("viewer", path)
	third.ids(t, 1)
	refused("viewer", "tenant a has 3 followed logs and histories open; at most 3")
	s.stream("bob", "/v1/jobs/"+string(other.ID)+"/events").ids(t, 1)
	first.cancel()
	eventually(t, "room for another follower", func() bool {
		e := s.stream("alice", path)
		if e.status == http.StatusOK {
			e.ids(t, 1)
		}
		return e.status == http.StatusOK
	})
}

// slowSite has an output of 16 MiB and a log of as much.
func slowSite(t *testing.T, limits api.TransferLimits) (s *site, output, logs string) {
	s = newSite(t, func(d *api.Deps) { d.Transfers = limits })
	s.machine("m1", 8, 8192, 0)
	job := s.submit("alice", nil)
	s.run(job.ID, "m1")
	s.fill(job, 64)
	key := berth.OutputKey(job.Tenant, job.ID, 1, 0, "model")
	if _, err := s.blobs.Put(t.Context(), key, bytes.NewReader(make([]byte, 16<<20)), 16<<20); err != nil {
		t.Fatal(err)
	}
	s.exec(`INSERT INTO outputs (job, attempt, rank, name, address, files, bytes, stored_bytes, sha256, object) VALUES ($1, 1, 0, 'model', $2, 1, 1, 1, '', $3)`, job.ID, none64, key)
	at := "/v1/jobs/" + string(job.ID)
	return s, at + "/outputs/model", at + "/logs"
}

func TestReadersThatReadNothingAreCutOff(t *testing.T) {
	t.Parallel()
	s, output, logs := slowSite(t, api.TransferLimits{Stall: 250 * time.Millisecond})
	for _, path := range []string{output, logs, logs + "?follow=true"} {
		conn := s.open("alice", "GET", path, "")
		_ = conn.SetReadDeadline(time.Now().Add(2 * waitLimit))
		if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil { // the transfer has begun
			t.Fatal(err)
		}
		eventually(t, "the end of "+path, func() bool { return s.server.OpenTransfers() == 0 })
		if n, err := io.Copy(io.Discard, conn); n >= 16<<20 {
			t.Errorf("%s: the whole answer came (%d bytes, %v) after a stall", path, n, err)
		}
	}
}

func TestARevokedTokenEndsItsBacklogDownloadAndUpload(t *testing.T) {
	t.Parallel()
	// Nothing but the revocation ends these calls.
	s, output, logs := slowSite(t, api.TransferLimits{Stall: time.Hour, UploadWindow: time.Hour})
	address, _ := archived(t, "print(1)")
	for _, c := range []struct{ name, method, path, header string }{
		{"download", "GET", output, ""},
		{"log", "GET", logs, ""},
		{"backlog of a followed log", "GET", logs + "?follow=true", ""},
		{"upload", "POST", "/v1/uploads?address=" + string(address), "Content-Length: 1073741824\r\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			made, err := s.db.Tokens.Create(t.Context(), spec.NewToken{Name: "eve", Tenant: "a", Role: spec.RoleUser},
				"operator:test")
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			conn := s.openAs(t, made.Secret, c.method, c.path, c.header)
			stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
			defer stop()
			eventually(t, "the call", func() bool { return s.server.TransfersOf(made.ID) == 1 })
			ended := make(chan struct{})
			go func() { // goes on until the server ends the call
				defer close(ended)
				// A frame of a GiB that readers of zstd skip.
				b := binary.LittleEndian.AppendUint64(nil, 1<<30<<32|0x184d2a50)
				for {
					var err error
					if c.method == "POST" {
						_, err = conn.Write(b)
						b = make([]byte, 4096)
					} else {
						_, err = io.CopyN(io.Discard, conn, 2048)
					}
					if err != nil {
						return
					}
					time.Sleep(2 * time.Millisecond)
				}
			}()
			if err := s.db.Tokens.Revoke(t.Context(), made.ID, "operator:test"); err != nil { // by another replica
				t.Fatal(err)
			}
			begun := time.Now()
			eventually(t, "the end of the call", func() bool { return s.server.TransfersOf(made.ID) == 0 })
			if took := time.Since(begun); took > 5*time.Second {
				t.Logf("ended %s after the revocation; 5 s on a machine that is not busy", took)
			}
			select {
			case <-ended:
			case <-time.After(waitLimit):
				t.Error("the connection stays open")
			}
		})
	}
}

func TestAnUploadThatTricklesIsCutOffAndItsSlotFreed(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(d *api.Deps) {
		d.Transfers = api.TransferLimits{UploadsPerTenant: 1, UploadRate: 4096, UploadWindow: time.Second}
	})
	// uploads repeats a whole upload that a slow machine did not send in time.
	uploads := func(name, text string) (a answer) {
		for range 20 {
			if _, a = s.upload(name, text); a.problem.Code != "too_slow" {
				break
			}
		}
		return a
	}
	noise := make([]byte, 100_000) // it does not compress
	_, _ = rand.Read(noise)
	address, text := archived(t, string(noise))
	conn := s.open("alice", "POST", "/v1/uploads?address="+string(address), fmt.Sprintf("Content-Length: %d\r\n", len(text)))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { // a byte at a time, as long as the server takes them
		for i := 0; i < len(text) && ctx.Err() == nil; i++ {
			if _, err := conn.Write([]byte(text[i : i+1])); err != nil {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
	eventually(t, "the upload", func() bool { return s.server.OpenTransfers() == 1 })
	if other := uploads("bob", "print(2)"); other.status != http.StatusCreated {
		t.Errorf("another tenant's upload beside it: %d %s", other.status, other.body)
	}
	readUntil(t, conn, "at least 4096 are required")
	eventually(t, "the end of the upload", func() bool { return s.server.OpenTransfers() == 0 })
	if again := uploads("alice", "print(1)"); again.status != http.StatusCreated {
		t.Errorf("an upload after it: %d %s", again.status, again.body)
	}
}

func TestAnUploadThatIsSilentIsCutOff(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(d *api.Deps) { d.Transfers = api.TransferLimits{UploadWindow: 300 * time.Millisecond} })
	address, _ := archived(t, "print(1)")
	conn := s.open("alice", "POST", "/v1/uploads?address="+string(address), "Content-Length: 1000000\r\n")
	readUntil(t, conn, `"too_slow"`)
	eventually(t, "the end of the upload", func() bool { return s.server.OpenTransfers() == 0 })
}

func TestUploadsOfATenantTakeItsOwnSlotsOnly(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	address, _ := archived(t, "print(1)")
	for range 4 {
		s.open("alice", "POST", "/v1/uploads?address="+string(address), "Content-Length: 1000000\r\n")
	}
	eventually(t, "four uploads", func() bool { return s.server.OpenTransfers() == 4 })
	_, fifth := s.upload("alice", "print(1)")
	if fifth.status != http.StatusTooManyRequests || !strings.Contains(fifth.problem.Detail, "has 4 uploads open; at most 4") {
		t.Errorf("a fifth: %d %s", fifth.status, fifth.body)
	}
	if _, other := s.upload("bob", "print(1)"); other.status != http.StatusCreated {
		t.Errorf("another tenant's: %d %s", other.status, other.body)
	}
}
