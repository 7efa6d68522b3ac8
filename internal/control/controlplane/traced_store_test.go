package controlplane

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"berth"
	"berth/db"
	"berth/db/dbtest"
	"berth/internal/lib/tracing"
	"berth/spec"
	"berth/wire"
)

// telling returns a tracedStore over a database, and its exported spans after its stop.
func telling(t *testing.T, o tracing.Options) (*tracedStore, func() tracetest.SpanStubs) {
	t.Helper()
	d, err := db.Open(t.Context(), dbtest.URL(t), db.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	kept := tracetest.NewInMemoryExporter()
	o.Exporter = kept
	x, err := tracing.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(x.Close)
	told := newTracedStore(d, x, slog.New(slog.DiscardHandler))
	told.last = time.Minute // however busy the machine is
	return told, func() tracetest.SpanStubs {
		t.Helper()
		ctx, stop := context.WithCancel(t.Context())
		stop()
		_ = told.run(ctx) // it exports the waiting verdicts, and ends
		if err := x.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		return kept.GetSpans()
	}
}

func submitted(t *testing.T, d *db.DB) wire.Job {
	t.Helper()
	job, _, err := d.Jobs.Submit(t.Context(), db.Submission{Tenant: "default", Spec: spec.Job{Name: "digits", Image: "busybox"}.WithDefaults(), Actor: "user:test"})
	if err != nil {
		t.Fatal(err)
	}
	return job
}

// No other process sees the end: there is no workflow yet.
func TestAJobThatIsCanceledInTheQueueIsTold(t *testing.T) {
	t.Parallel()
	told, spans := telling(t, tracing.Options{})
	job := submitted(t, told.db)
	for range 3 { // repeated requests export nothing more
		if state, err := told.RequestCancel(t.Context(), "", job.ID, "user:test", nil); err != nil || state != berth.Canceled {
			t.Fatal(state, err)
		}
		if _, err := told.Load(t.Context(), job.ID); err != nil {
			t.Fatal(err)
		}
	}
	list := spans()
	if len(list) != 2 {
		t.Fatalf("told: %+v", list)
	}
	queue, root := list[0], list[1]
	if root.Name != "job" || queue.Name != "queue" || root.Parent.IsValid() || queue.Parent.SpanID() != root.SpanContext.SpanID() {
		t.Errorf("%s under %v, %s under %v", root.Name, root.Parent, queue.Name, queue.Parent)
	}
	if root.SpanContext.TraceID() != tracing.JobTrace(job.ID) || root.Status.Code == codes.Error || !root.StartTime.Equal(job.SubmittedAt) {
		t.Errorf("the job is told as %v from %s, %+v", root.SpanContext, root.StartTime, root.Status)
	}
	about := map[string]string{}
	for _, a := range root.Attributes {
		about[string(a.Key)] = a.Value.String()
	}
	if about["berth.status"] != "canceled" || about["berth.reason"] != string(berth.ReasonCanceledByUser) || about["berth.attempts"] != "0" {
		t.Errorf("the job is told as %v", about)
	}
}

// A verdict that could not be read is exported at the next request. The verdicts that
// wait at the end of the process share one time limit.
func TestAVerdictThatCouldNotBeReadIsNotTakenForTold(t *testing.T) {
	t.Parallel()
	told, spans := telling(t, tracing.Options{})
	job := submitted(t, told.db)
	if _, err := told.RequestCancel(t.Context(), "", job.ID, "user:test", nil); err != nil {
		t.Fatal(err)
	}
	over, end := context.WithCancel(t.Context())
	end()
	told.export(over, <-told.queue)
	if list := spans(); len(list) != 0 {
		t.Fatalf("read after the time was over: %+v", list)
	}
	if _, err := told.Load(t.Context(), job.ID); err != nil {
		t.Fatal(err)
	}
	if list := spans(); len(list) != 2 {
		t.Errorf("asked for again it is told as %+v", list)
	}
}

func TestWhatIsNotSampledIsNotRead(t *testing.T) {
	t.Parallel()
	told, spans := telling(t, tracing.Options{Sampler: "always_off"})
	job := submitted(t, told.db)
	if _, err := told.RequestCancel(t.Context(), "", job.ID, "user:test", nil); err != nil {
		t.Fatal(err)
	}
	if n := len(told.queue); n != 0 {
		t.Errorf("%d verdicts wait to be told", n)
	}
	if list := spans(); len(list) != 0 {
		t.Errorf("told: %+v", list)
	}
}

// Steps never wait for the export, even if no exporter runs.
func TestStepsDoNotWaitForTheTeller(t *testing.T) {
	t.Parallel()
	told, _ := telling(t, tracing.Options{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 2 * verdictsKept {
			told.note(verdict{job: berth.NewJobID(time.Now())})
		}
	}()
	select {
	case <-done:
	case <-time.After(5 * time.Minute):
		t.Fatal("a step waits")
	}
}

func TestWithoutTracesThereIsNothingToTell(t *testing.T) {
	t.Parallel()
	told := newTracedStore(nil, nil, nil)
	told.note(verdict{job: berth.NewJobID(time.Now())})
	if told.queue != nil || told.exported.list != nil {
		t.Error("a tracedStore without traces keeps something")
	}
}
