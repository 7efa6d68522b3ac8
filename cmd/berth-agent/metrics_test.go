package main

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"berth"
	"berth/api"
	"berth/db"
	"berth/db/dbtest"
	"berth/internal/lib/golden"
	"berth/internal/lib/metricsdoc"
	"berth/internal/machine/agent"
	"berth/spec"
)

func TestMetricsAreForThisMachineUnlessAllowed(t *testing.T) {
	t.Parallel()
	for address, says := range map[string]string{
		"": "", "127.0.0.1:7079": "", "localhost:7079": "", "[::1]:7079": "", "127.0.0.1:0": "",
		"0.0.0.0:7079": "other machines can reach it", ":7079": "other machines can reach it",
		"10.0.0.5:7079": "other machines can reach it", "agent.internal:7079": "other machines can reach it",
		"7079": "write HOST:PORT", "127.0.0.1": "write HOST:PORT", "127.0.0.1:": "write HOST:PORT",
		"127.0.0.1:99999": "write HOST:PORT", "127.0.0.1:x y": "write HOST:PORT",
	} {
		s := settings{metrics: address}
		err := s.checkMetrics()
		if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", address, err)
		}
	}
	s := settings{metrics: "10.0.0.5:7079", plaintext: true}
	if err := s.checkMetrics(); err != nil {
		t.Errorf("allowed: %v", err)
	}
}

// absentAtStart are the metrics without a series before the first answer of the control plane.
var absentAtStart = map[string]string{"berth_agent_clock_offset_seconds": "gauge"}

// docs/reference/agent-metrics.md is generated from the metrics.
func TestTheReferenceOfMetrics(t *testing.T) {
	t.Parallel()
	list := metricsdoc.List(t, newRegistry(agent.NewMetrics("m1", "1.2.3")))
	golden.Check(t, "../../docs/reference/agent-metrics.md", "# Metrics of agents\n\n"+
		"Generated from the code by `go test ./cmd/berth-agent -run Reference -update`.\n"+
		"[../operate/metrics.md](../operate/metrics.md#agents) explains access. The standard metrics `go_*` and "+
		"`process_*` are served too.\n\n"+
		"All series of a metric exist from the start of a process, as 0 before the first event; an exception is\n"+
		"`berth_agent_clock_offset_seconds`, which the first answer of the control plane brings.\n\n"+
		metricsdoc.Table(t, list, absentAtStart))
}

// lockedBuffer is a log that a test reads while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// until waits for a condition.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for limit := time.After(2 * time.Minute); !ok(); {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("never: %s", what)
		}
	}
}

// answered makes a call; status 0: nothing listens.
func answered(t *testing.T, method, address, path string) (status int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, ""
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

// scraped returns the metrics at an address; "" while none are served.
func scraped(t *testing.T, address string) string {
	t.Helper()
	status, text := answered(t, http.MethodGet, address, "/metrics")
	if status != 0 && status != http.StatusOK {
		t.Fatalf("%d: %s", status, text)
	}
	return text
}

// An address in use ends no agent; the metrics follow once it is free. After the end nothing listens.
func TestMetricsWaitForTheirAddress(t *testing.T) {
	t.Parallel()
	first, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	address, log := first.Addr().String(), &lockedBuffer{}
	m := metricsServer{address: address, pause: 5 * time.Millisecond, log: slog.New(slog.NewTextHandler(log, nil))}
	stop := m.start(t.Context(), newRegistry(agent.NewMetrics("m1", "1.2.3")))
	defer stop()
	until(t, "the refusal is logged", func() bool { return strings.Contains(log.String(), "metrics are not served") })
	_ = first.Close()
	until(t, "the metrics are served", func() bool {
		text := scraped(t, address)
		return strings.Contains(text, `machine="m1"`) && strings.Contains(text, "\nprocess_resident_memory_bytes ") &&
			strings.Contains(text, "\ngo_goroutines ")
	})
	for call, want := range map[string]int{
		"GET /": http.StatusNotFound, "GET /debug/pprof/": http.StatusNotFound,
		"POST /metrics": http.StatusMethodNotAllowed,
	} {
		method, path, _ := strings.Cut(call, " ")
		if got, _ := answered(t, method, address, path); got != want {
			t.Errorf("%s: %d, want %d", call, got, want)
		}
	}
	stop()
	if status, _ := answered(t, http.MethodGet, address, "/metrics"); status != 0 {
		t.Errorf("%d after the end", status)
	}
}

// A real agent, which joins a real API, is scraped from its start to its end.
func TestAnAgentServesItsMetrics(t *testing.T) {
	d := dbtest.DB(t, db.Options{})
	server, err := api.New(api.Deps{DB: d, Control: d.Jobs, Logger: slog.New(slog.DiscardHandler), Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	listening := httptest.NewServer(server.Handler())
	t.Cleanup(func() { server.Close(); listening.CloseClientConnections(); listening.Close() })
	join, err := d.JoinTokens.Create(t.Context(), spec.NewJoinToken{}, "operator:test")
	if err != nil {
		t.Fatal(err)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	_ = free.Close()
	cmd := command(func(name string) (string, bool) {
		if name == "BERTH_JOIN_TOKEN" {
			return join.Secret, true
		}
		return "", false
	})
	cmd.SetArgs([]string{
		"--server", listening.URL, "--machine", "m1", "--state-dir", filepath.Join(t.TempDir(), "state"),
		"--runtime", "fake", "--no-gpus", "--cpus", "4", "--memory", "4GiB", "--disk", "4GiB",
		"--egress", "off", "--host-boot", "boot-1", "--settings-file", "",
		"--metrics-listen", address, "--log-level", "warn",
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(ctx) }()
	value := func(series string) string {
		m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(series) + ` (\S+)$`).FindStringSubmatch(scraped(t, address))
		if m == nil {
			return ""
		}
		return m[1]
	}
	until(t, "the agent is registered", func() bool {
		select {
		case err := <-ended:
			t.Fatalf("the agent ended: %v", err)
		default:
		}
		return value("berth_agent_registered") == "1"
	})
	if m, err := d.Machines.Get(t.Context(), "", "m1"); err != nil || m.State != berth.MachineReady {
		t.Errorf("the machine is %+v, %v", m, err)
	}
	for series, want := range map[string]string{
		`berth_agent_allocations{phase="running"}`: "0", `berth_agent_engine_errors_total{call="probe"}`: "0",
		"berth_agent_unreported_ends": "0", "berth_agent_sessions": "0", "berth_agent_engine_silent_seconds": "0",
	} {
		if got := value(series); got != want {
			t.Errorf("%s is %q, want %s", series, got, want)
		}
	}
	listening.CloseClientConnections()
	listening.Close()
	until(t, "calls fail", func() bool {
		return value(`berth_agent_server_calls_total{result="failed"}`) > "0"
	})
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("the agent ended with %v", err)
	}
	if scraped(t, address) != "" {
		t.Error("the metrics outlive the agent")
	}
}
