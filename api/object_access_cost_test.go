package api_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"gocloud.dev/blob/s3blob"

	"berth"
	"berth/api"
	"berth/db"
	"berth/internal/control/blob"
	"berth/internal/machine/fetch/s3test"
	"berth/wire"
)

// objectMiB is the size of the objects of TestAServerStaysSmallWhileMachinesStoreCheckpoints. The figures of
// docs/design/performance.md are of 64.
var objectMiB = flag.Int("object-mib", 8, "MiB of each object that a machine stores in the test of costs")

// costSender is a machine with an object to store.
type costSender struct {
	*agent
	job wire.Job
}

// servedVariable makes this test program serve the API and nothing else: a process whose memory and CPU time are the
// API's alone.
const servedVariable = "BERTH_TEST_SERVES_OBJECTS"

// served is what such a process serves.
type served struct{ Database, Endpoint, Bucket string }

func TestMain(m *testing.M) {
	if text := os.Getenv(servedVariable); text != "" {
		if err := serveObjects(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// serveObjects prints its address and serves until its standard input ends.
func serveObjects(text string) error {
	var o served
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	ctx := context.Background()
	d, err := db.Open(ctx, o.Database, db.Options{})
	if err != nil {
		return err
	}
	store, err := blob.NewS3(ctx, s3test.ClientAt(o.Endpoint), o.Bucket, s3blob.Options{})
	if err != nil {
		return err
	}
	server, err := api.New(api.Deps{
		DB: d, Control: d.Jobs, Logger: slog.New(slog.DiscardHandler), Rate: 1e6, Burst: 1e6,
		Agent: api.AgentDeps{Blobs: store, Direct: true},
	})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println("http://" + l.Addr().String())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	return server.HTTP().Serve(l)
}

// usage is what a process has used so far.
type usage struct {
	cpu  float64 // seconds
	peak int64   // MiB of memory
}

// usageOf reads the usage of a process from the kernel.
func usageOf(t *testing.T, pid int) (u usage) {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	for _, i := range []int{11, 12} { // utime and stime, in hundredths of a second
		ticks, err := strconv.ParseFloat(fields[i], 64)
		if err != nil {
			t.Fatal(err)
		}
		u.cpu += ticks / 100
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	u.peak = kib >> 10
	return u
}

// costOf runs a server of its own while all machines store an object at once, and returns its use of CPU and memory.
func costOf(t *testing.T, o served, agents []costSender, step int64, store func(a costSender, key string, content []byte) error) usage {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), servedVariable+"="+string(text))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close(); _ = cmd.Wait() }()
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	content := make([]byte, *objectMiB<<20)
	if _, err := rand.Read(content); err != nil {
		t.Fatal(err)
	}
	for _, a := range agents {
		copied := *a.site
		copied.url = strings.TrimSpace(address)
		a.agent.site = &copied
	}
	// The first object warms the connections up, and the proof of the store.
	first := berth.CheckpointKey(agents[0].job.Tenant, agents[0].job.ID, 1, 0, step) + "/file-000001"
	if err := store(agents[0], first, content[:1<<20]); err != nil {
		t.Fatal(err)
	}
	before := usageOf(t, cmd.Process.Pid)
	faults := make([]error, len(agents))
	var all sync.WaitGroup
	for i, a := range agents {
		key := berth.CheckpointKey(a.job.Tenant, a.job.ID, 1, 0, step) + "/file-000000"
		all.Go(func() { faults[i] = store(a, key, content) })
	}
	all.Wait()
	if err := errors.Join(faults...); err != nil {
		t.Fatal(err)
	}
	after := usageOf(t, cmd.Process.Pid)
	return usage{after.cpu - before.cpu, after.peak - before.peak}
}

// sendObject sends one request with a body and expects a success.
func sendObject(ctx context.Context, method, address string, header http.Header, content []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, address, bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	req.Header = header
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode >= 300 {
		err = fmt.Errorf("%s: %s", r.Status, b)
	}
	return b, err
}

// TestAServerStaysSmallWhileMachinesStoreCheckpoints lets 16 machines store an object at once, through a server and by
// its signed addresses, and compares the servers' CPU time and the growth of their memory.
func TestAServerStaysSmallWhileMachinesStoreCheckpoints(t *testing.T) {
	t.Parallel()
	const machines = 16
	s, bucket := onBucket(t)
	o := served{Database: s.db.Pool().Config().ConnString(), Endpoint: bucket.URL, Bucket: bucket.Bucket}
	agents := make([]costSender, machines)
	for i := range agents {
		agents[i] = costSender{s.joinMachine(berth.MachineID(fmt.Sprintf("m%d", i))), s.submit("alice", keeps)}
		agents[i].take(agents[i].job.ID)
	}
	header := func(a costSender) http.Header {
		return http.Header{"Authorization": {"Bearer " + a.tokens[string(a.machine)]},
			wire.HeaderAgentBoot: {a.boot}, wire.HeaderEpoch: {strconv.FormatInt(a.epoch, 10)}}
	}
	server := costOf(t, o, agents, 1, func(a costSender, key string, content []byte) error {
		_, err := sendObject(t.Context(), http.MethodPut, a.url+"/agent/v1/objects/"+key, header(a), content)
		return err
	})
	signed := costOf(t, o, agents, 2, func(a costSender, key string, content []byte) error {
		body, err := json.Marshal(a.put(key, string(content)))
		if err != nil {
			return err
		}
		h := header(a)
		h.Set("Content-Type", "application/json")
		answer, err := sendObject(t.Context(), http.MethodPost, a.url+"/agent/v1/object-access", h, body)
		if err != nil {
			return err
		}
		var address wire.ObjectAddress
		if err := json.Unmarshal(answer, &address); err != nil || address.URL == "" {
			return fmt.Errorf("no address: %s, %w", answer, err)
		}
		_, err = sendObject(t.Context(), http.MethodPut, string(address.URL), address.Header, content)
		return err
	})
	t.Logf("%d machines, %d MiB each: through the server %.2f s of CPU and %d MiB more memory; by signed addresses %.2f s and %d MiB",
		machines, *objectMiB, server.cpu, server.peak, signed.cpu, signed.peak)
	if signed.cpu > server.cpu/2 || signed.peak > server.peak/2 {
		t.Error("signed addresses cost the server more than half of what the objects themselves cost it")
	}
}
