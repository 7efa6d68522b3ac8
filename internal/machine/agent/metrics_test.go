package agent_test

import (
	"errors"
	"io"
	"math"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"berth"
	"berth/activities/node/fakeruntime"
	"berth/api/client"
	"berth/internal/machine/agent"
)

// metered is a machine whose agent has metrics, from its next process on.
type metered struct {
	*machine
	registry *prometheus.Registry
}

func (s *site) metered(m *machine) *metered {
	s.t.Helper()
	x := &metered{m, prometheus.NewRegistry()}
	m.cfg.Metrics = agent.NewMetrics(m.id, "1.2.3")
	x.registry.MustRegister(m.cfg.Metrics)
	m.restart()
	return x
}

// value returns a series by its name and the values of its labels, separated by blanks; NaN: there is none.
func (x *metered) value(series string) float64 {
	x.s.t.Helper()
	families, err := x.registry.Gather()
	if err != nil {
		x.s.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			if name == series {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return math.NaN()
}

// is fails the test unless a series has a value.
func (x *metered) is(series string, want float64) {
	x.s.t.Helper()
	if got := x.value(series); got != want {
		x.s.t.Errorf("%s is %v, want %v", series, got, want)
	}
}

// becomes waits until a series fulfills a condition.
func (x *metered) becomes(series string, ok func(float64) bool) {
	x.s.t.Helper()
	x.until(series, func() bool { return ok(x.value(series)) })
}

func positive(v float64) bool { return v > 0 }
func zero(v float64) bool     { return v == 0 }

func TestMetricsFollowAJob(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	x := s.metered(s.machine("m1"))
	x.is("berth_agent_registered", 1)
	x.is("berth_agent_allocations running", 0)
	x.is("berth_agent_gpus healthy", 2)
	x.is("berth_agent_engine_silent_seconds", 0)
	if v := x.value("berth_agent_renewal_age_seconds"); v < 0 || v > patience.Seconds() {
		t.Errorf("the renewal is %v s old", v)
	}
	// Both clocks are the same; the header has whole seconds, and a busy host may read it late.
	if v := x.value("berth_agent_clock_offset_seconds"); !(math.Abs(v) < 60) {
		t.Errorf("the clock of the server is off by %v s", v)
	}
	if v := x.value("berth_agent_server_calls_total ok"); v < 1 {
		t.Errorf("%v calls of the server", v)
	}

	id := s.submit(nil, "do", "echo hello", "sleep 1h")
	req, w := x.run(id)
	x.running(req)
	x.becomes("berth_agent_allocations running", func(v float64) bool { return v == 1 })
	x.becomes("berth_agent_log_bytes_total", positive)

	in, hold := io.Pipe()
	user := s.user()
	done := make(chan error, 1)
	go func() {
		_, err := user.Sessions().Run(t.Context(), id, command("cat"), client.Streams{
			Stdin: in, Stdout: io.Discard, Stderr: io.Discard,
		})
		done <- err
	}()
	x.becomes("berth_agent_sessions", func(v float64) bool { return v == 1 })
	_ = hold.Close()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	x.becomes("berth_agent_sessions", zero)

	// The end is known here, and the server does not answer.
	failed := x.value("berth_agent_server_calls_total failed")
	s.gate.closed.Store(true)
	x.runtime.Exit(berth.ContainerName(id, 0, 1), 3)
	x.becomes("berth_agent_unreported_ends", func(v float64) bool { return v == 1 })
	x.becomes("berth_agent_report_overdue_seconds", positive)
	x.becomes("berth_agent_server_calls_total failed", func(v float64) bool { return v > failed })
	old := x.value("berth_agent_renewal_age_seconds")
	x.becomes("berth_agent_renewal_age_seconds", func(v float64) bool { return v > old })
	s.gate.closed.Store(false)
	if e := w.exit(); e.Code != 3 {
		t.Errorf("exit is %+v", e)
	}
	x.becomes("berth_agent_unreported_ends", zero)
	x.becomes("berth_agent_report_overdue_seconds", zero)
	s.settle(id)
	x.cleared(req)
	x.becomes("berth_agent_allocations running", zero)
	x.becomes("berth_agent_allocations sealed", zero)

	// A process that has ended has no session, and keeps its counts.
	if err := x.stop(); err != nil {
		t.Fatal(err)
	}
	x.is("berth_agent_registered", 0)
	if v := x.value("berth_agent_log_bytes_total"); !positive(v) {
		t.Errorf("%v bytes of logs", v)
	}
}

func TestErrorsOfTheEngineAreCounted(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	m.cfg.Timing.EngineProbe, m.cfg.Timing.ProbePatience = 5*time.Millisecond, patience
	x := s.metered(m)
	var silent atomic.Bool
	var starts atomic.Int64
	x.runtime.Intercept(func(c fakeruntime.Call) error {
		if c.Method == "Probe" && silent.Load() || c.Method == "Start" && starts.Add(1) <= 2 {
			return errors.New("the engine does not answer")
		}
		return nil
	})
	req, _ := x.run(s.submit(nil, "sleep", "1h"))
	x.running(req)
	x.is("berth_agent_engine_errors_total start", 2)
	// The agent has asked for a container that did not exist: an answer, and no failure.
	x.is("berth_agent_engine_errors_total inspect", 0)
	x.is("berth_agent_engine_errors_total probe", 0)
	silent.Store(true)
	x.becomes("berth_agent_engine_silent_seconds", positive)
	x.becomes("berth_agent_engine_errors_total probe", func(v float64) bool { return v >= 2 })
	silent.Store(false)
	x.becomes("berth_agent_engine_silent_seconds", zero)
}

func TestTransfersAndTheirRepeatsAreCounted(t *testing.T) {
	t.Parallel()
	s, b := newBucketSite(t)
	x := s.metered(s.machine("m1"))
	id, w := x.trains()
	content := large(t)
	var refused atomic.Int64
	refuse := func(r *http.Request) int {
		if strings.HasPrefix(r.URL.Path, "/agent/v1/objects/") && r.Method == http.MethodPut && refused.Add(1) <= 2 {
			return http.StatusBadGateway
		}
		return 0
	}
	s.gate.refuse.Store(&refuse)
	x.saves(id, 1, 5, content)
	x.saved(id, 5)
	x.restores(id, w, 5)
	// The file goes straight to the store and back; its manifest, in two tries too many, through the server.
	x.is("berth_agent_object_bytes_total put direct", float64(len(content)))
	x.is("berth_agent_object_bytes_total get direct", float64(len(content)))
	for series, n := range map[string]int64{"put server": b.throughPut.Load(), "get server": b.throughGet.Load()} {
		if got := x.value("berth_agent_object_bytes_total " + series); got <= 0 || got > float64(n) {
			t.Errorf("%s is %v; the control plane has passed %d bytes on", series, got, n)
		}
	}
	if v := x.value("berth_agent_transfer_retries_total store"); v < 2 {
		t.Errorf("%v repeats; want at least 2", v)
	}
	if v := x.value("berth_agent_server_calls_total refused"); v < 2 {
		t.Errorf("%v refused calls; want at least 2", v)
	}
	x.is("berth_agent_transfer_retries_total fetch", 0)
}
