package api_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
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
	"time"

	"gocloud.dev/blob/s3blob"

	"berth"
	"berth/api"
	"berth/db"
	"berth/internal/control/blob"
	"berth/internal/machine/fetch/s3test"
	"berth/wire"
)

// objectMiB is the size of the objects of TestAServerStaysSmallWhileMachinesStoreCheckpoints. The figures of
// docs/design/performance.md are of 1024.
var objectMiB = flag.Int("object-mib", 12, "MiB of each object that a machine stores in the test of costs")

// mostThroughServer is the greatest size, in MiB, that the test sends through a server.
const mostThroughServer = 64

// costSender is a machine with an object to store.
type costSender struct {
	*agent
	job wire.Job
}

// servedVariable makes this test program serve the API and nothing else: a process whose memory and CPU time are the
// API's alone.
const servedVariable = "BERTH_TEST_SERVES_OBJECTS"

// served is what such a process serves.
type served struct {
	Database, Endpoint, Bucket string
	Parts                      api.PartSizes
}

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
		Agent: api.AgentDeps{Blobs: store, Direct: true, ProofLimit: 10 * time.Minute, Parts: o.Parts},
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

// sentObject is content with its hashes, which machines compute themselves.
type sentObject struct {
	content []byte
	sum     string
	part    int64
	parts   []string
	all     string // hash of the concatenated hashes of parts
}

func newSentObject(content []byte, part int64) sentObject {
	sum := sha256.Sum256(content)
	o := sentObject{content: content, sum: hex.EncodeToString(sum[:]), part: part}
	all := sha256.New()
	for at := int64(0); at < int64(len(content)); at += part {
		sum := sha256.Sum256(content[at:min(at+part, int64(len(content)))])
		all.Write(sum[:])
		o.parts = append(o.parts, hex.EncodeToString(sum[:]))
	}
	o.all = hex.EncodeToString(all.Sum(nil))
	return o
}

// costOf runs a server of its own while all machines store an object at once, and returns its use of CPU and memory.
func costOf(
	t *testing.T, o served, agents []costSender, step int64, object sentObject,
	store func(a costSender, key string, o sentObject) error,
) usage {
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
	for _, a := range agents {
		copied := *a.site
		copied.url = strings.TrimSpace(address)
		a.agent.site = &copied
	}
	// The first object warms the connections up, and the proof of the store.
	first := berth.CheckpointKey(agents[0].job.Tenant, agents[0].job.ID, 1, 0, step) + "/file-000001"
	if err := store(agents[0], first, newSentObject(object.content[:1<<20], o.Parts.Bytes)); err != nil {
		t.Fatal(err)
	}
	before := usageOf(t, cmd.Process.Pid)
	faults := make([]error, len(agents))
	var all sync.WaitGroup
	for i, a := range agents {
		key := berth.CheckpointKey(a.job.Tenant, a.job.ID, 1, 0, step) + "/file-000000"
		all.Go(func() { faults[i] = store(a, key, object) })
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

func (a costSender) header() http.Header {
	return http.Header{"Authorization": {"Bearer " + a.tokens[string(a.machine)]},
		wire.HeaderAgentBoot: {a.boot}, wire.HeaderEpoch: {strconv.FormatInt(a.epoch, 10)}}
}

// asks asks for an address.
func (a costSender) asks(r wire.AddressRequest) (address wire.ObjectAddress, err error) {
	body, err := json.Marshal(r)
	if err != nil {
		return address, err
	}
	h := a.header()
	h.Set("Content-Type", "application/json")
	answer, err := sendObject(a.t.Context(), http.MethodPost, a.url+"/agent/v1/object-access", h, body)
	if err != nil {
		return address, err
	}
	return address, json.Unmarshal(answer, &address)
}

func (a costSender) request(key string, o sentObject) wire.AddressRequest {
	return wire.AddressRequest{AgentBoot: a.boot, Epoch: a.epoch, Key: key, Method: "PUT", SHA256: o.sum,
		Bytes: int64(len(o.content))}
}

// throughServer stores an object through the server.
func throughServer(a costSender, key string, o sentObject) error {
	_, err := sendObject(a.t.Context(), http.MethodPut, a.url+"/agent/v1/objects/"+key, a.header(), o.content)
	return err
}

// byAddress stores an object by a signed address.
func byAddress(a costSender, key string, o sentObject) error {
	address, err := a.asks(a.request(key, o))
	if err != nil || address.URL == "" {
		return fmt.Errorf("no address: %w", err)
	}
	_, err = sendObject(a.t.Context(), http.MethodPut, string(address.URL), address.Header, o.content)
	return err
}

// byParts stores an object by parts, one after the other.
func byParts(a costSender, key string, o sentObject) error {
	r := a.request(key, o)
	r.SHA256, r.PartBytes = o.all, o.part
	begun, err := a.asks(r)
	if err != nil || begun.Upload == "" {
		return fmt.Errorf("no upload: %w", err)
	}
	r.Upload = begun.Upload
	for i, sum := range o.parts {
		q := r
		q.Part, q.PartSHA256 = i+1, sum
		address, err := a.asks(q)
		if err != nil || address.URL == "" {
			return fmt.Errorf("no address: %w", err)
		}
		at := int64(i) * o.part
		part := o.content[at:min(at+o.part, int64(len(o.content)))]
		if _, err := sendObject(a.t.Context(), http.MethodPut, string(address.URL), address.Header, part); err != nil {
			return err
		}
	}
	done, err := a.asks(r)
	if err != nil || !done.Stored {
		return fmt.Errorf("not completed: %w", err)
	}
	return nil
}

// TestAServerStaysSmallWhileMachinesStoreCheckpoints lets 16 machines store an object each at once: a small one by
// signed addresses, a large one by signed addresses and by parts, and one through a server. It compares the servers'
// CPU time and the growth of their memory.
func TestAServerStaysSmallWhileMachinesStoreCheckpoints(t *testing.T) {
	t.Parallel()
	const machines = 16
	s, bucket := onBucket(t)
	part := int64(min(blob.PartBytes, max(*objectMiB<<20/2, blob.LeastPart)))
	o := served{Database: s.db.Pool().Config().ConnString(), Endpoint: bucket.URL, Bucket: bucket.Bucket,
		Parts: api.PartSizes{Above: 1<<20 - 1, Bytes: part}}
	agents := make([]costSender, machines)
	for i := range agents {
		agents[i] = costSender{s.joinMachine(berth.MachineID(fmt.Sprintf("m%d", i))), s.submit("alice", keeps)}
		agents[i].take(agents[i].job.ID)
	}
	content := make([]byte, *objectMiB<<20)
	if _, err := rand.Read(content); err != nil {
		t.Fatal(err)
	}
	passed := newSentObject(content[:min(*objectMiB, mostThroughServer)<<20], part)
	large, small := newSentObject(content, part), newSentObject(content[:1<<20], part)
	step := int64(0)
	round := func(name string, object sentObject, store func(costSender, string, sentObject) error) usage {
		step++
		u := costOf(t, o, agents, step, object, store)
		t.Logf("%d machines, %d MiB each, %s: %.2f s of CPU and %d MiB more memory", machines, len(object.content)>>20,
			name, u.cpu, u.peak)
		for _, a := range agents { // the disk of the test has no room for all rounds
			folder := berth.CheckpointKey(a.job.Tenant, a.job.ID, 1, 0, step)
			if err := bucket.DeleteFolder(t.Context(), folder); err != nil {
				t.Fatal(err)
			}
		}
		return u
	}
	server := round("through the server", passed, throughServer)
	base := round("by signed addresses", small, byAddress)
	signed := round("by signed addresses", large, byAddress)
	parts := round("by parts", large, byParts)
	scale := float64(len(large.content)) / float64(len(passed.content))
	t.Logf("of the CPU through the server, scaled to the same bytes: signed addresses 1/%.0f, parts 1/%.0f; of 1 MiB "+
		"each by signed addresses: %.1f and %.1f times", server.cpu*scale/signed.cpu, server.cpu*scale/parts.cpu,
		signed.cpu/base.cpu, parts.cpu/base.cpu)
	if signed.cpu > server.cpu/2 || signed.peak > server.peak/2 {
		t.Error("signed addresses cost the server more than half of what the objects themselves cost it")
	}
	if parts.cpu > server.cpu*scale/2 || parts.peak > server.peak/2 {
		t.Error("parts cost the server more than half of what the objects themselves cost it")
	}
}
