package local_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"berth"
	"berth/api"
	"berth/db"
	"berth/db/dbtest"
	"berth/e2e/commands"
	"berth/internal/control/blob"
	"berth/internal/control/cloud"
	"berth/internal/control/cloud/local"
	"berth/internal/lib/subprocess"
	"berth/spec"
	"berth/wire"
)

// site is the API over a database of the test's own, with the number of joins that it has admitted.
type site struct {
	db    *db.DB
	url   string
	joins atomic.Int64
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{db: dbtest.DB(t, db.Options{})}
	store, err := blob.Open(t.Context(), "file://"+t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	server, err := api.New(api.Deps{
		DB: s.db, Control: s.db.Jobs, Logs: &blob.LogReader{Store: store, DB: s.db}, Agent: api.AgentDeps{Blobs: store},
		Logger: slog.New(slog.DiscardHandler), Version: "test",
	})
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/join") {
			s.joins.Add(1)
		}
		server.Handler().ServeHTTP(w, r)
	}))
	t.Cleanup(func() { server.Close(); web.CloseClientConnections(); web.Close() })
	s.url = web.URL
	return s
}

// machine returns the machine as the API's database has it, or its zero value.
func (s *site) machine(ctx context.Context, id berth.MachineID) wire.Machine {
	m, err := s.db.Machines.Get(ctx, "", id)
	if err != nil {
		return wire.Machine{}
	}
	return m
}

// An instance is a real agent: it joins a real control plane with the join token of its launch, and is ready with the
// shape of its offer. When the instance boots a second time, its join token is used up, and the agent continues with
// the credential that it has stored.
func TestTheAgentOfAnInstanceJoinsOnceAndOutlivesABoot(t *testing.T) {
	t.Parallel()
	ctx, s, bin := t.Context(), newSite(t), t.TempDir()
	if err := commands.Build(bin, commands.Shipped, "berth-agent"); err != nil {
		t.Fatal(err)
	}
	join, err := s.db.JoinTokens.Create(ctx, spec.NewJoinToken{Machines: "burst-1"}, "operator:test")
	if err != nil {
		t.Fatal(err)
	}
	dir, agent := filepath.Join(t.TempDir(), "machines"), filepath.Join(bin, "berth-agent")
	p, err := local.New(local.Options{Dir: dir, Program: agent, Most: 1,
		Args:   []string{"--runtime=fake", "--no-gpus", "--egress=off"},
		Offers: []cloud.Offer{{Offering: small, CPUs: 2, MemoryMiB: 768}}})
	if err != nil {
		t.Fatal(err)
	}
	l := launch("burst-1")
	l.Pool, l.Bootstrap.URL, l.Bootstrap.JoinToken = spec.DefaultPool, s.url, join.Secret
	i, err := p.Create(ctx, l)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Terminate(context.Background(), i); err != nil {
			t.Errorf("the instance lives on: %v", err)
		}
		if log, err := os.ReadFile(filepath.Join(dir, l.Token, "log")); t.Failed() {
			t.Logf("log of the agent, %v:\n%s", err, log)
		}
	})
	await(t, "the machine", func() bool { return s.machine(ctx, l.Machine).State == berth.MachineReady })
	first := s.machine(ctx, l.Machine)
	if c := first.Capacity; c.CPUMilli != 2000 || c.MemoryMiB > 768 || c.MemoryMiB < 384 || first.Site != "cloud" ||
		first.Region != small.Region || s.joins.Load() != 1 {
		t.Errorf("after %d joins the machine is %+v", s.joins.Load(), first)
	}
	if found, err := p.Find(ctx, l); err != nil || found.State != cloud.Running {
		t.Errorf("the instance is %+v, %v", found, err)
	}
	if err := p.Terminate(ctx, i); err != nil { // the host goes down
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, l.Token, "instance.json"))
	if err != nil {
		t.Fatal(err)
	}
	var record struct{ Program []string }
	if err := json.Unmarshal(text, &record); err != nil {
		t.Fatal(err)
	}
	boot, cancel := context.WithCancel(ctx)
	again := exec.CommandContext(boot, agent, append(record.Program, "--host-boot=second")...)
	again.Env = append(subprocess.BaseEnv(), "BERTH_JOIN_TOKEN="+join.Secret, "BERTH_SETTINGS_FILE=")
	if err := again.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); _ = again.Wait() })
	await(t, "the second boot", func() bool {
		m := s.machine(ctx, l.Machine)
		return m.Epoch > first.Epoch && m.State == berth.MachineReady
	})
	if n := s.joins.Load(); n != 1 {
		t.Errorf("the agent joined %d times", n)
	}
}
