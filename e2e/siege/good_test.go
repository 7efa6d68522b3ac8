package siege_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"berth"
	"berth/e2e/rig"
	"berth/internal/lib/archive"
	"berth/spec"
	"berth/wire"
)

// Addresses on loopback. Agents dial without choosing one, so the kernel gives
// them the first.
const (
	agentsAddress = "127.0.0.1"
	goodAddress   = "127.0.0.2"
)

// goodRate is how many calls a second the good caller makes.
const goodRate = 20

// goodCaller is a user who does nothing wrong: an open loop of all kinds of
// calls, each with a right token.
type goodCaller struct {
	caller  *rig.Caller
	url     string
	token   string
	job     berth.JobID // that it looks at
	submit  []byte
	plan    []byte
	archive []byte
	address berth.Address

	cancel context.CancelFunc
	done   sync.WaitGroup
	mu     sync.Mutex
	calls  []goodCall
}

// goodCall is one call of the good caller.
type goodCall struct {
	what string
	due  time.Time
	took time.Duration // from when it was due to its answer
	bad  string        // why it was no success
}

// spec is a small job.
func jobSpec(name string, command ...string) spec.Job {
	cpus, memory, grace := spec.MilliCPU(100), spec.MiB(64), spec.Duration(time.Second)
	return spec.Job{
		Name: name, Image: "testprog", Command: command, StopGrace: &grace,
		Resources: spec.Resources{CPUs: &cpus, Memory: &memory},
	}
}

func mustJSON(t testing.TB, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// token creates a token of a tenant.
func token(t testing.TB, s *rig.Stack, tenant berth.TenantID, role spec.Role) string {
	t.Helper()
	made, err := s.API.CreateToken(t.Context(), spec.NewToken{Name: string(tenant), Tenant: tenant, Role: role})
	if err != nil {
		t.Fatal(err)
	}
	return made.Secret
}

func newGoodCaller(t testing.TB, s *rig.Stack) *goodCaller {
	t.Helper()
	const tenant berth.TenantID = "good"
	g := &goodCaller{url: s.URL, token: token(t, s, tenant, spec.RoleUser)}
	g.caller = rig.NewCaller(s.URL, g.token, goodAddress)
	g.submit, g.plan = mustJSON(t, jobSpec("good", "exit", "0")), mustJSON(t, jobSpec("plan", "exit", "0"))
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "train.py"), []byte("print('hello')\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	sum, err := archive.Pack(t.Context(), &packed, folder, archive.Default)
	if err != nil {
		t.Fatal(err)
	}
	g.archive, g.address = packed.Bytes(), sum.Address
	a := g.caller.Call(t.Context(), http.MethodPost, "/v1/jobs", nil, mustJSON(t, jobSpec("looked-at", "lines", "5", "0s")))
	var job wire.Job
	if err := json.Unmarshal(a.Body, &job); err != nil || !a.Good() {
		t.Fatalf("submit the good caller's job: status %d, %v", a.Status, a.Err)
	}
	g.job = job.ID
	if err := rig.Await(t.Context(), rig.Patience, func(ctx context.Context) error {
		j, err := s.API.Job(ctx, g.job)
		if err == nil && j.Status != berth.Succeeded {
			err = fmt.Errorf("it is %s", j.Status)
		}
		return err
	}); err != nil {
		t.Fatalf("the good caller's job: %v", err)
	}
	t.Cleanup(g.caller.Close)
	return g
}

// start makes calls until stop.
func (g *goodCaller) start() {
	ctx, cancel := context.WithCancel(context.Background())
	g.cancel = cancel
	g.done.Go(func() {
		began := time.Now()
		for i := 0; ; i++ {
			due := began.Add(time.Duration(i) * time.Second / goodRate)
			if !sleepUntil(ctx, due) {
				return
			}
			g.done.Go(func() { g.call(i, due) })
		}
	})
}

// stop ends the calls and waits for those under way.
func (g *goodCaller) stop() {
	g.cancel()
	g.done.Wait()
}

// call makes one call of a round of twenty: the calls of a person, a script and a dashboard.
func (g *goodCaller) call(i int, due time.Time) {
	ctx, c := context.Background(), g.caller
	if i%10 == 9 { // also over a connection that is new
		c = rig.NewCaller(g.url, g.token, goodAddress)
		defer c.Close()
	}
	var what string
	var a rig.Answer
	switch i % 20 {
	case 0, 10:
		what, a = "submit", c.Call(ctx, http.MethodPost, "/v1/jobs", http.Header{"Idempotency-Key": {berth.NewSecret()}}, g.submit)
	case 5:
		what, a = "plan", c.Call(ctx, http.MethodPost, "/v1/plans", nil, g.plan)
	case 15:
		what, a = "upload", c.Call(ctx, http.MethodPost, "/v1/uploads?address="+string(g.address), http.Header{"Content-Type": {"application/zstd"}}, g.archive)
	case 3, 13:
		what, a = "log", c.Call(ctx, http.MethodGet, "/v1/jobs/"+string(g.job)+"/logs", nil, nil)
	case 8:
		what, a = "readyz", c.Call(ctx, http.MethodGet, "/readyz", nil, nil)
	case 1, 4, 6, 9, 12, 16, 18:
		what, a = "list", c.Call(ctx, http.MethodGet, "/v1/jobs?limit=20", nil, nil)
	default:
		what, a = "show", c.Call(ctx, http.MethodGet, "/v1/jobs/"+string(g.job), nil, nil)
	}
	call := goodCall{what: what, due: due, took: time.Since(due)}
	if !a.Good() {
		call.bad = fmt.Sprintf("%s: status %d, %v, %.120s", what, a.Status, a.Err, a.Body)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.calls = append(g.calls, call)
}

// between returns the calls that were due in a span of time.
func (g *goodCaller) between(from, to time.Time) []goodCall {
	g.mu.Lock()
	defer g.mu.Unlock()
	var list []goodCall
	for _, c := range g.calls {
		if !c.due.Before(from) && c.due.Before(to) {
			list = append(list, c)
		}
	}
	return list
}

// sum is the result of a set of calls: how long the good ones took, and how many were bad.
func sum(calls []goodCall) (took []time.Duration, bad int, first string) {
	for _, c := range calls {
		took = append(took, c.took)
		if c.bad != "" {
			bad++
			if first == "" {
				first = c.bad
			}
		}
	}
	return took, bad, first
}
