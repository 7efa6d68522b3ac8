package siege_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
// calls, each with a right token, in a process of its own.
type goodCaller struct {
	stack *rig.Stack
	plan  rig.ProbePlan
	*rig.Probe
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
	secret := token(t, s, tenant, spec.RoleUser)
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "train.py"), []byte("print('hello')\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	sum, err := archive.Pack(t.Context(), &packed, folder, archive.Default)
	if err != nil {
		t.Fatal(err)
	}
	caller := rig.NewCaller(s.URL, secret, goodAddress)
	defer caller.Close()
	a := caller.Call(t.Context(), http.MethodPost, "/v1/jobs", nil, mustJSON(t, jobSpec("looked-at", "lines", "5", "0s")))
	var job wire.Job
	if err := json.Unmarshal(a.Body, &job); err != nil || !a.Good() {
		t.Fatalf("submit the good caller's job: status %d, %v", a.Status, a.Err)
	}
	if err := rig.Await(t.Context(), rig.Patience, func(ctx context.Context) error {
		j, err := s.API.Job(ctx, job.ID)
		if err == nil && j.Status != berth.Succeeded {
			err = fmt.Errorf("it is %s", j.Status)
		}
		return err
	}); err != nil {
		t.Fatalf("the good caller's job: %v", err)
	}
	return &goodCaller{stack: s, plan: rig.ProbePlan{
		URL: s.URL, Token: secret, From: goodAddress, Rate: goodRate, Tenant: tenant,
		Round: goodRound(job.ID, sum.Address, packed.Bytes(), mustJSON(t, jobSpec("good", "exit", "0")),
			mustJSON(t, jobSpec("plan", "exit", "0"))),
	}}
}

// goodRound returns a round of twenty calls: the calls of a person, a script and a dashboard.
func goodRound(job berth.JobID, address berth.Address, packed, submit, plan []byte) []rig.ProbeCall {
	round := make([]rig.ProbeCall, 20)
	for i := range round {
		c := rig.ProbeCall{Kind: "show", Method: http.MethodGet, Path: "/v1/jobs/" + string(job)}
		switch i {
		case 0, 10:
			c = rig.ProbeCall{Kind: "submit", Method: http.MethodPost, Path: "/v1/jobs", Body: submit, Keyed: true}
		case 5:
			c = rig.ProbeCall{Kind: "plan", Method: http.MethodPost, Path: "/v1/plans", Body: plan}
		case 15:
			c = rig.ProbeCall{Kind: "upload", Method: http.MethodPost, Path: "/v1/uploads?address=" + string(address),
				Header: http.Header{"Content-Type": {"application/zstd"}}, Body: packed}
		case 3, 13:
			c.Kind, c.Path = "log", c.Path+"/logs"
		case 8:
			c.Kind, c.Path = "readyz", "/readyz"
		case 1, 4, 6, 9, 12, 16, 18:
			c.Kind, c.Path = "list", "/v1/jobs?limit=20"
		}
		c.NewConn = i%10 == 9 // also over a connection that is new
		round[i] = c
	}
	return round
}

// start makes calls until stop.
func (g *goodCaller) start(t testing.TB) {
	t.Helper()
	var err error
	if g.Probe, err = g.stack.StartProbe(g.plan); err != nil {
		t.Fatal(err)
	}
}

// stop ends the calls and waits for the calls that are open.
func (g *goodCaller) stop(t testing.TB) {
	t.Helper()
	if err := g.Stop(); err != nil {
		t.Errorf("the good caller: %v", err)
	}
}

// sum is the result of a set of calls: how long each took, and how many were bad.
func sum(calls []rig.Probed) (took []time.Duration, bad int, first string) {
	for _, c := range calls {
		took = append(took, c.Took)
		if c.Fault != "" {
			bad++
			if first == "" {
				first = c.Fault
			}
		}
	}
	return took, bad, first
}

// byKind describes the p50, the p99 and the number of the calls of each kind. The p99 of few calls is the slowest of
// them.
func byKind(calls []rig.Probed) string {
	kinds := map[string][]time.Duration{}
	for _, c := range calls {
		kinds[c.Kind] = append(kinds[c.Kind], c.Took)
	}
	var parts []string
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		took := kinds[kind]
		parts = append(parts, fmt.Sprintf("%s %.0f, %.0f ms of %d", kind, rig.MS(rig.Quantile(took, 0.5)),
			rig.MS(rig.Quantile(took, 0.99)), len(took)))
	}
	return strings.Join(parts, "; ")
}
