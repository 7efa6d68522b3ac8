package agent

import (
	"context"
	"errors"
	"io"
	"net/http"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"berth"
	"berth/activities/node"
)

// Metrics are the metrics of one agent process, for Prometheus: counts of its calls, and its state at
// the time of a scrape. A scrape reads memory alone: it makes no call, measures nothing and waits for
// no call that is under way. Before Run, and after its end, the state is that of an agent that has not
// joined. Metrics implements prometheus.Collector; all methods may be called concurrently, those that
// count also on nil.
type Metrics struct {
	info    prometheus.Gauge
	engine  *prometheus.CounterVec // errors of the engine, by call
	server  *prometheus.CounterVec // calls, by result
	objects *prometheus.CounterVec // bytes, by method and way
	repeats *prometheus.CounterVec // failed transfers, by direction
	logged  prometheus.Counter     // bytes of logs

	began    time.Time
	agent    atomic.Pointer[Agent]         // that runs; nil: none
	clock    atomic.Pointer[time.Duration] // offset of the server's clock; nil: not known
	sessions atomic.Int64                  // of users
}

// Values of labels. Each series exists from the start of the process, so that a rate sees the first event.
const (
	callOK      = "ok"
	callRefused = "refused"
	callFailed  = "failed"

	wayDirect = "direct"
	wayServer = "server"

	directionStore = "store"
	directionFetch = "fetch"
)

// NewMetrics returns the metrics of an agent on a machine. The caller registers them, and gives them to
// Config.Metrics.
func NewMetrics(machine berth.MachineID, version string) *Metrics {
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &Metrics{
		began: time.Now(),
		info: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "berth_agent_info", Help: "1, with the machine and the version of the agent.",
			ConstLabels: prometheus.Labels{
				"machine": string(machine), "version": version, "go_version": runtime.Version(),
			},
		}),
		engine: counters("berth_agent_engine_errors_total",
			"Calls of the container engine that failed, by call. Answers such as an image that does not exist are no "+
				"failures.", "call"),
		server: counters("berth_agent_server_calls_total",
			"Calls of the control plane by result: ok, refused (it answered with an error), failed (no answer).",
			"result"),
		objects: counters("berth_agent_object_bytes_total",
			"Bytes of objects that this machine stored (put) and read (get), straight to and from the object store "+
				"(direct) or through the control plane (server).", "method", "way"),
		repeats: counters("berth_agent_transfer_retries_total",
			"Repeats of failed calls that store results of jobs (store) or fetch their data (fetch).", "direction"),
		logged: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "berth_agent_log_bytes_total", Help: "Bytes of logs that the control plane has accepted.",
		}),
	}
	m.info.Set(1)
	for _, call := range engineCalls {
		m.engine.WithLabelValues(call)
	}
	for _, result := range []string{callOK, callRefused, callFailed} {
		m.server.WithLabelValues(result)
	}
	for _, method := range []string{"put", "get"} {
		m.objects.WithLabelValues(method, wayDirect)
		m.objects.WithLabelValues(method, wayServer)
	}
	m.repeats.WithLabelValues(directionStore)
	m.repeats.WithLabelValues(directionFetch)
	return m
}

// called counts a call of the control plane and notes the clock of the answer. A call that this agent has
// given up is not counted.
func (m *Metrics) called(ctx context.Context, answer *http.Response, err error) {
	switch {
	case m == nil || err != nil && errors.Is(ctx.Err(), context.Canceled):
		return
	case err != nil:
		m.server.WithLabelValues(callFailed).Inc()
		return
	case answer.StatusCode >= 300:
		m.server.WithLabelValues(callRefused).Inc()
	default:
		m.server.WithLabelValues(callOK).Inc()
	}
	// The header has whole seconds, cut off: the middle of the second is the best guess.
	if at, err := http.ParseTime(answer.Header.Get("Date")); err == nil {
		offset := time.Until(at.Add(time.Second / 2))
		m.clock.Store(&offset)
	}
}

// stored counts an object, or a part of one, that was stored.
func (m *Metrics) stored(way string, bytes int64) {
	if m != nil {
		m.objects.WithLabelValues("put", way).Add(float64(bytes))
	}
}

// reading counts the bytes that are read from an object.
func (m *Metrics) reading(way string, in io.ReadCloser) io.ReadCloser {
	if m == nil {
		return in
	}
	return &countedBody{in, m.objects.WithLabelValues("get", way)}
}

// countedBody is the content of an object.
type countedBody struct {
	io.ReadCloser
	bytes prometheus.Counter
}

// Read counts the bytes that it returns.
func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.bytes.Add(float64(n))
	return n, err
}

// repeated counts a failed transfer that will be repeated.
func (m *Metrics) repeated(direction string) {
	if m != nil {
		m.repeats.WithLabelValues(direction).Inc()
	}
}

// shipped counts bytes of a log.
func (m *Metrics) shipped(bytes int) {
	if m != nil {
		m.logged.Add(float64(bytes))
	}
}

// visited counts a session of a user until the returned function is called.
func (m *Metrics) visited() (done func()) {
	if m == nil {
		return func() {}
	}
	m.sessions.Add(1)
	return func() { m.sessions.Add(-1) }
}

// engineCalls are the values of the label call.
var engineCalls = []string{
	"create", "info", "inspect", "list", "probe", "pull", "remove", "signal", "start", "stop", "wait",
}

// meteredRuntime counts the failures of a container engine.
type meteredRuntime struct {
	node.Runtime
	metrics *Metrics
}

// unmetered returns the engine itself, for interfaces beyond node.Runtime.
func unmetered(r node.Runtime) node.Runtime {
	if m, ok := r.(meteredRuntime); ok {
		return m.Runtime
	}
	return r
}

// engineAnswers are errors with which an engine, or a registry, answers a question. They say nothing about
// the health of the engine.
var engineAnswers = []error{
	node.ErrImageNotFound, node.ErrImageUnavailable, node.ErrImageMismatch, node.ErrNoImage, node.ErrImageInUse,
	node.ErrNoContainer, node.ErrNoPath, node.ErrBadPath, node.ErrExists, node.ErrBadCommand, node.ErrBadImage,
	node.ErrUnmappedUser, node.ErrNetworkInUse, node.ErrNoNetwork,
}

// note counts the error of a call, unless it is an answer or the agent has given the call up.
func (r meteredRuntime) note(ctx context.Context, call string, err error) {
	if err == nil || errors.Is(ctx.Err(), context.Canceled) {
		return
	}
	for _, answer := range engineAnswers {
		if errors.Is(err, answer) {
			return
		}
	}
	r.metrics.engine.WithLabelValues(call).Inc()
}

// The calls of node.Runtime, each with a note of its error.

func (r meteredRuntime) Info(ctx context.Context) (node.RuntimeInfo, error) {
	info, err := r.Runtime.Info(ctx)
	r.note(ctx, "info", err)
	return info, err
}

func (r meteredRuntime) EnsureImage(
	ctx context.Context, ref string, auth *node.RegistryAuth, fresh bool,
) (node.Image, error) {
	image, err := r.Runtime.EnsureImage(ctx, ref, auth, fresh)
	r.note(ctx, "pull", err)
	return image, err
}

func (r meteredRuntime) Create(ctx context.Context, c node.ContainerSpec) (node.Container, error) {
	made, err := r.Runtime.Create(ctx, c)
	r.note(ctx, "create", err)
	return made, err
}

func (r meteredRuntime) Start(ctx context.Context, name string) error {
	err := r.Runtime.Start(ctx, name)
	r.note(ctx, "start", err)
	return err
}

func (r meteredRuntime) Wait(ctx context.Context, name string) (node.Container, error) {
	c, err := r.Runtime.Wait(ctx, name)
	r.note(ctx, "wait", err)
	return c, err
}

func (r meteredRuntime) Inspect(ctx context.Context, name string) (node.Container, error) {
	c, err := r.Runtime.Inspect(ctx, name)
	r.note(ctx, "inspect", err)
	return c, err
}

func (r meteredRuntime) List(ctx context.Context, labels map[string]string) ([]node.Container, error) {
	list, err := r.Runtime.List(ctx, labels)
	r.note(ctx, "list", err)
	return list, err
}

func (r meteredRuntime) Unstarted(ctx context.Context, labels map[string]string) ([]node.Container, error) {
	list, err := r.Runtime.Unstarted(ctx, labels)
	r.note(ctx, "list", err)
	return list, err
}

func (r meteredRuntime) Probe(ctx context.Context, labels map[string]string) error {
	err := r.Runtime.Probe(ctx, labels)
	r.note(ctx, "probe", err)
	return err
}

func (r meteredRuntime) Signal(ctx context.Context, name, signal string) error {
	err := r.Runtime.Signal(ctx, name, signal)
	r.note(ctx, "signal", err)
	return err
}

func (r meteredRuntime) Stop(ctx context.Context, name string, grace time.Duration) error {
	err := r.Runtime.Stop(ctx, name, grace)
	r.note(ctx, "stop", err)
	return err
}

func (r meteredRuntime) Remove(ctx context.Context, name string) error {
	err := r.Runtime.Remove(ctx, name)
	r.note(ctx, "remove", err)
	return err
}
