package workers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"

	"berth"
	"berth/activities/wait"
	"berth/failure"
	"berth/wire"
)

func TestOnlyErrorsThatMayPassAreRetried(t *testing.T) {
	t.Parallel()
	for code, retried := range map[berth.Code]bool{
		berth.CodeInvalid: false, berth.CodeNotFound: false, berth.CodeConflict: false,
		berth.CodeUnauthorized: true, berth.CodeForbidden: true, berth.CodeCapacity: true, berth.CodeUnavailable: true, berth.CodeInternal: true,
	} {
		err := applicationError(fmt.Errorf("claim: %w", berth.Errorf(code, "no")))
		app, ok := errors.AsType[*temporal.ApplicationError](err)
		if !ok || app.NonRetryable() == retried || app.Type() != string(code) || !strings.Contains(app.Message(), "claim: no") {
			t.Errorf("%s: %#v", code, err)
		}
	}
	plain := errors.New("connection reset")
	if applicationError(plain) != plain {
		t.Error("an error that is not ours was changed")
	}
}

func TestPayloadsAreSmall(t *testing.T) {
	t.Parallel()
	c := limited{converter.GetDefaultDataConverter()}
	if _, err := c.ToPayloads(wire.JobInput{Job: "x"}, strings.Repeat("x", maxPayload)); err == nil || !strings.Contains(err.Error(), "argument 1") {
		t.Errorf("a spec may enter a history: %v", err)
	}
	gang := wire.JobView{State: berth.Running, Slots: make([]berth.Slot, 512)}
	for i := range gang.Slots {
		gang.Slots[i] = berth.Slot{
			Alloc: 1 << 50, Rank: i, Machine: berth.MachineID(strings.Repeat("m", 63)),
			GPUs: []int{0, 1, 2, 3, 4, 5, 6, 7}, State: berth.AllocReserved, Sealed: true,
		}
	}
	payloads, err := c.ToPayloads(gang)
	if err != nil {
		t.Fatalf("the largest gang does not fit: %v", err)
	}
	var back wire.JobView
	if err := c.FromPayloads(payloads, &back); err != nil || len(back.Slots) != 512 {
		t.Errorf("read back %d slots, %v", len(back.Slots), err)
	}
	if empty, err := c.ToPayloads(); empty != nil || err != nil {
		t.Errorf("no values make %v, %v", empty, err)
	}
}

func TestLongWordsOfAnEngineAreClipped(t *testing.T) {
	t.Parallel()
	result := shortened(wire.RunResult{Exit: &failure.Exit{Message: strings.Repeat("x", 10*maxMessage), Unstored: []string{strings.Repeat("x", maxPayload)}}})
	if len(result.Exit.Message) != maxMessage {
		t.Errorf("message has %d bytes", len(result.Exit.Message))
	}
	if _, err := (limited{converter.GetDefaultDataConverter()}).ToPayload(result); err != nil {
		t.Error(err)
	}
}

func TestErrorsOfActivitiesAreMapped(t *testing.T) {
	t.Parallel()
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestActivityEnvironment()
	env.SetWorkerOptions(worker.Options{Interceptors: []interceptor.WorkerInterceptor{&activities{log: slog.New(slog.DiscardHandler)}}})
	claim := func(context.Context) error { return berth.ErrStaleEpoch("attempt 1 is over") }
	env.RegisterActivity(claim)
	_, err := env.ExecuteActivity(claim)
	app, ok := errors.AsType[*temporal.ApplicationError](err)
	if !ok || app.Type() != string(berth.CodeConflict) || !app.NonRetryable() {
		t.Errorf("got %#v", err)
	}
}

// noHints has no hints.
type noHints struct{}

func (noHints) News() <-chan struct{}              { return nil }
func (noHints) Take() ([]berth.AllocationID, bool) { return nil, false }

func TestAWorkerWaitsForTemporalAndEndsWhenAsked(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0") // a port at which nobody speaks gRPC
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close()
	c, err := Dial(ClientOptions{Address: address})
	if err != nil {
		t.Fatalf("a client needs no server to come into being: %v", err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	began := time.Now()
	err = NewWaiters(WaiterDeps{Client: c, Hints: noHints{}}, wait.Options{}).Run(ctx)
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > time.Minute {
		t.Errorf("ended after %s with %v", time.Since(began), err)
	}
}

// The next task of a workflow whose worker is lost waits so long for that worker.
func TestATaskLeavesTheQueueOfALostWorkerSoon(t *testing.T) {
	t.Parallel()
	if d := ControlOptions(worker.Options{}).StickyScheduleToStartTimeout; d <= 0 || d > 2*time.Second {
		t.Errorf("it waits for %s", d)
	}
}
