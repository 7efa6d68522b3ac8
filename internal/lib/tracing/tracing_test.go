package tracing_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"berth"
	"berth/internal/lib/tracing"
	"berth/wire"
)

const job = berth.JobID("01900000-0000-7000-8000-000000000001")

func open(t *testing.T, o tracing.Options) *tracing.Tracing {
	t.Helper()
	x, err := tracing.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(x.Close)
	return x
}

func inMemory(t *testing.T, o tracing.Options) (*tracing.Tracing, func() tracetest.SpanStubs) {
	t.Helper()
	kept := tracetest.NewInMemoryExporter()
	o.Exporter = kept
	x := open(t, o)
	return x, func() tracetest.SpanStubs {
		if err := x.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		return kept.GetSpans()
	}
}

func TestTheTraceOfAJobIsItsID(t *testing.T) {
	t.Parallel()
	if got, want := tracing.JobTrace(job).String(), strings.ReplaceAll(string(job), "-", ""); got != want {
		t.Errorf("trace is %s, want %s", got, want)
	}
}

func TestWhoeverTellsASpanTellsTheSame(t *testing.T) {
	t.Parallel()
	var roots, queues []trace.SpanContext
	for range 2 { // two processes
		x, spans := inMemory(t, tracing.Options{})
		began := time.Now().Add(-time.Minute)
		x.Tell(tracing.Key{Job: job, Attempt: 1, Name: "queue"}, tracing.JobKey(job), tracing.Past{Start: began, End: began.Add(time.Second), Fault: "queue_timeout"})
		x.Tell(tracing.JobKey(job), tracing.Key{}, tracing.Past{Start: began, End: began.Add(time.Minute)})
		list := spans()
		if len(list) != 2 {
			t.Fatalf("%d spans", len(list))
		}
		queue, root := list[0], list[1]
		if root.Parent.IsValid() || queue.Parent.SpanID() != root.SpanContext.SpanID() || queue.Parent.TraceID() != tracing.JobTrace(job) {
			t.Errorf("root %v under %v, queue under %v", root.SpanContext, root.Parent, queue.Parent)
		}
		if queue.Status.Code != codes.Error || queue.Status.Description != "queue_timeout" || !queue.StartTime.Equal(began) || queue.EndTime.Sub(began) != time.Second {
			t.Errorf("queue is %+v from %s to %s", queue.Status, queue.StartTime, queue.EndTime)
		}
		roots, queues = append(roots, root.SpanContext), append(queues, queue.SpanContext)
	}
	if !roots[0].Equal(roots[1]) || !queues[0].Equal(queues[1]) {
		t.Errorf("%v and %v, %v and %v", roots[0], roots[1], queues[0], queues[1])
	}
}

// A key is for one span: those begun under it have ids of their own.
func TestSpansUnderAKeyHaveTheirOwnIDs(t *testing.T) {
	t.Parallel()
	x, spans := inMemory(t, tracing.Options{})
	ctx := x.Under(t.Context(), tracing.AttemptKey(job, 1))
	for range 2 {
		_, s := x.Start(ctx, "pull")
		s.End("")
	}
	list := spans()
	if len(list) != 2 || list[0].SpanContext.SpanID() == list[1].SpanContext.SpanID() || list[0].Parent.SpanID() != list[1].Parent.SpanID() {
		t.Errorf("spans are %+v", list)
	}
}

// Ids are version 7 UUIDs: their bits are not all random, and a sampler by parts
// must take its part of them all the same.
func TestPartsOfAllJobsAreSampled(t *testing.T) {
	t.Parallel()
	for _, ratio := range []float64{0.1, 0.5, 0.9} {
		for _, name := range []string{"parentbased_traceidratio", "traceidratio"} {
			o := tracing.Options{Sampler: name, Ratio: ratio, Exporter: tracetest.NewInMemoryExporter()}
			here, there := open(t, o), open(t, o)
			const n = 2000
			took := 0
			for range n {
				id := berth.NewJobID(time.Now())
				if here.Tells(id) != there.Tells(id) {
					t.Fatalf("two processes differ about %s", id)
				}
				if !here.Tells(id) {
					if _, s := here.Start(here.Under(t.Context(), tracing.JobKey(id)), "x"); s != nil {
						t.Errorf("a span of a trace that is not told")
					}
					continue
				}
				took++
			}
			if part := float64(took) / n; part < ratio-0.07 || part > ratio+0.07 {
				t.Errorf("%s %g took %g", name, ratio, part)
			}
		}
	}
}

// It counts allocations of the whole process, so no other test runs at the same time.
func TestTracingThatIsOffDoesNothing(t *testing.T) {
	x, err := tracing.Open(t.Context(), tracing.Options{Service: "berthd"})
	if x != nil || err != nil {
		t.Fatalf("opened %v, %v", x, err)
	}
	ctx := t.Context()
	n := testing.AllocsPerRun(100, func() {
		in := x.Under(ctx, tracing.AttemptKey(job, 1))
		in, s := x.Start(in, "pull")
		s.End("x")
		if in != ctx || s != nil || x.Tells(job) {
			t.Fatal("it does something")
		}
		x.Tell(tracing.JobKey(job), tracing.Key{}, tracing.Past{Start: time.Now()})
		x.Submitted(ctx, wire.Job{ID: job}, time.Now())
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
	x.Close()
}

func TestCallsAreLinkedWithTheJobsTheySubmit(t *testing.T) {
	t.Parallel()
	x, spans := inMemory(t, tracing.Options{})
	h := http.Header{"Traceparent": {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}
	ctx, call := x.Serve(t.Context(), h, "POST /v1/jobs")
	x.Submitted(ctx, wire.Job{ID: job, Name: "digits", Tenant: "default"}, time.Now())
	call.End("")
	list := spans()
	if len(list) != 2 {
		t.Fatalf("spans are %+v", list)
	}
	submit, server := list[0], list[1]
	if server.Parent.IsValid() || server.SpanKind != trace.SpanKindServer {
		t.Errorf("the call is %v of %v", server.SpanKind, server.Parent)
	}
	if submit.SpanContext.TraceID() != tracing.JobTrace(job) || len(submit.Links) != 1 || submit.Links[0].SpanContext.SpanID() != server.SpanContext.SpanID() {
		t.Errorf("submit is %v with %+v", submit.SpanContext, submit.Links)
	}
	if len(server.Links) != 2 || server.Links[0].SpanContext.TraceID().String() != "0af7651916cd43dd8448eb211c80319c" ||
		server.Links[1].SpanContext.TraceID() != tracing.JobTrace(job) || server.Links[1].SpanContext.SpanID() != submit.Parent.SpanID() {
		t.Errorf("the call is linked with %+v", server.Links)
	}
}

// The server alone decides about the export, against any wish of a caller.
func TestNobodyForcesACallToBeTold(t *testing.T) {
	t.Parallel()
	x, spans := inMemory(t, tracing.Options{Sampler: "parentbased_always_off"})
	h := http.Header{"Traceparent": {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}
	_, call := x.Serve(t.Context(), h, "GET /v1/jobs")
	call.End("")
	_, call = x.ServeAgent(t.Context(), h, "POST /agent/v1/claim")
	call.End("")
	if list := spans(); len(list) != 0 {
		t.Errorf("told: %+v", list)
	}
}

// No trace id is zero, and an id that is no UUID, such as a workflow's that was named by hand,
// has no trace.
func TestWhatHasNoTraceIsNotTold(t *testing.T) {
	t.Parallel()
	x, spans := inMemory(t, tracing.Options{})
	for _, id := range []berth.JobID{"00000000-0000-0000-0000-000000000000", "", "digits"} {
		x.Tell(tracing.AttemptKey(id, 1), tracing.JobKey(id), tracing.Past{Start: time.Now()})
		_, s := x.Start(x.Under(t.Context(), tracing.JobKey(id)), "pull")
		s.End("")
		if tracing.JobTrace(id).IsValid() || x.Tells(id) || len(spans()) != 0 {
			t.Errorf("%q is told as %s", id, tracing.JobTrace(id))
		}
	}
	x.Temporal(tracing.Step{Name: "RunWorkflow", Job: "digits"}).End()
	if list := spans(); len(list) != 1 || !list[0].SpanContext.IsValid() {
		t.Errorf("a workflow of such a name is told as %+v", list)
	}
}

// receiver is a collector, by HTTP and by gRPC.
type receiver struct {
	collector.UnimplementedTraceServiceServer
	mu   sync.Mutex
	got  []*tracepb.ResourceSpans
	path string
}

func (r *receiver) Export(_ context.Context, in *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got = append(r.got, in.ResourceSpans...)
	return &collector.ExportTraceServiceResponse{}, nil
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body, err := io.ReadAll(q.Body)
	in := &collector.ExportTraceServiceRequest{}
	if err == nil {
		err = proto.Unmarshal(body, in)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	r.path = q.URL.Path
	r.mu.Unlock()
	_, _ = r.Export(q.Context(), in)
}

func TestCollectorsAreToldInBothProtocols(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"", "grpc"} {
		r := &receiver{}
		endpoint := ""
		if protocol == "grpc" {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			server := grpc.NewServer()
			collector.RegisterTraceServiceServer(server, r)
			go func() { _ = server.Serve(l) }()
			t.Cleanup(server.Stop)
			endpoint = "http://" + l.Addr().String()
		} else {
			server := httptest.NewServer(r)
			t.Cleanup(server.Close)
			endpoint = server.URL
		}
		env := map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
		o, err := tracing.FromEnvironment(func(name string) (string, bool) { v, ok := env[name]; return v, ok }, "")
		if err != nil {
			t.Fatal(err)
		}
		o.Service, o.Version, o.Instance = "berthd", "1.2.3", "host/1"
		x := open(t, o)
		x.Tell(tracing.JobKey(job), tracing.Key{}, tracing.Past{Start: time.Now(), End: time.Now()})
		if err := x.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.mu.Lock()
		if len(r.got) != 1 || (protocol == "" && r.path != "/v1/traces") {
			t.Fatalf("%q: %d at %s", protocol, len(r.got), r.path)
		}
		about := map[string]string{}
		for _, a := range r.got[0].Resource.Attributes {
			about[a.Key] = a.Value.GetStringValue()
		}
		if about["service.name"] != "berthd" || about["service.version"] != "1.2.3" || about["service.instance.id"] != "host/1" {
			t.Errorf("%q: resource is %v", protocol, about)
		}
		if span := r.got[0].ScopeSpans[0].Spans[0]; fmt.Sprintf("%x", span.TraceId) != tracing.JobTrace(job).String() || span.Name != "job" {
			t.Errorf("%q: span is %v", protocol, span)
		}
		r.mu.Unlock()
	}
}

// The worst collector accepts a connection and never answers: spans beyond the queue are dropped,
// and no call waits.
func TestACollectorThatIsAwayHoldsUpNothing(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"http/protobuf", "grpc"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			x, err := tracing.Open(t.Context(), tracing.Options{Endpoint: "http://" + l.Addr().String(), Protocol: protocol, Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				ctx := x.Under(context.Background(), tracing.JobKey(job))
				for range 20_000 { // ten times the queue
					_, s := x.Start(ctx, "x")
					s.End("")
				}
				x.Close()
			}()
			select {
			case <-done:
			case <-time.After(5 * time.Minute):
				t.Fatal("spans wait for a collector")
			}
		})
	}
}

func TestTheEnvironmentSaysWhomToTell(t *testing.T) {
	t.Parallel()
	const at = "OTEL_EXPORTER_OTLP_ENDPOINT"
	for _, c := range []struct {
		says     string
		env      map[string]string
		flag     string
		endpoint string
		protocol string
		fault    string
	}{
		{says: "nothing", env: nil},
		{says: "a collector", env: map[string]string{at: "http://c:4318"}, endpoint: "http://c:4318/v1/traces", protocol: "http/protobuf"},
		{says: "a collector under a path", env: map[string]string{at: "https://c/otlp/"}, endpoint: "https://c/otlp/v1/traces", protocol: "http/protobuf"},
		{says: "one for traces, as it is", env: map[string]string{at: "http://c:4318", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t:1/x"}, endpoint: "http://t:1/x", protocol: "http/protobuf"},
		{says: "the flag wins", env: map[string]string{at: "http://c:4318"}, flag: "http://f:4318", endpoint: "http://f:4318/v1/traces", protocol: "http/protobuf"},
		{says: "gRPC", env: map[string]string{at: "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, endpoint: "http://c:4317", protocol: "grpc"},
		{says: "disabled", env: map[string]string{at: "http://c:4318", "OTEL_SDK_DISABLED": "true"}},
		{says: "no exporter", env: map[string]string{at: "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}},
		{says: "another exporter", env: map[string]string{at: "http://c:4318", "OTEL_TRACES_EXPORTER": "zipkin"}, fault: "allowed are otlp, none"},
		{says: "another protocol", env: map[string]string{at: "http://c:4318", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, fault: "http/json"},
		{says: "no URL", env: map[string]string{at: "c:4318"}, fault: at},
		{says: "a password is not shown", env: map[string]string{at: "ftp://user:hidden@c"}, fault: "user:xxxxx@c"},
		{says: "a sampler that is none", env: map[string]string{at: "http://c:4318", "OTEL_TRACES_SAMPLER": "jaeger_remote"}, fault: "jaeger_remote"},
		{says: "a ratio that is none", env: map[string]string{at: "http://c:4318", "OTEL_TRACES_SAMPLER_ARG": "2"}, fault: "0 to 1"},
	} {
		o, err := tracing.FromEnvironment(func(name string) (string, bool) { v, ok := c.env[name]; return v, ok }, c.flag)
		if c.fault != "" {
			if err == nil || !strings.Contains(err.Error(), c.fault) {
				t.Errorf("%s: %v", c.says, err)
			}
			continue
		}
		if err != nil || o.Endpoint != c.endpoint || o.Endpoint != "" && o.Protocol != c.protocol {
			t.Errorf("%s: %+v, %v", c.says, o, err)
		}
	}
	shown := tracing.Options{Endpoint: "https://user:hidden@c/?key=hidden"}.LogValue().String()
	if strings.Contains(shown, "hidden") {
		t.Errorf("the log shows %s", shown)
	}
}
