package workers

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"

	"berth"
	"berth/activities/control"
	"berth/activities/wait"
	"berth/failure"
	"berth/internal/control/cloud"
	"berth/internal/lib/golden"
	"berth/spec"
	"berth/wire"
)

// The work whose payloads are recorded.
const (
	recordedJob      = berth.JobID("01900000-0000-7000-8000-000000000001")
	recordedSchedule = berth.ScheduleID("01900000-0000-7000-8000-000000000002")
)

var recordedAt = time.Date(2026, 1, 1, 3, 0, 0, 0, time.UTC)

// activityFile is the beginning of the names of recordings of activities.
const activityFile = "activity-"

// sample is a call with the types of the present code.
type sample struct {
	input  []any
	result any // nil: none
}

// recordedView is an attempt of two members, of which the second may have ended.
func recordedView(second berth.AllocationState) wire.JobView {
	return wire.JobView{State: berth.Running, Attempt: 2, HasParent: true, ResumeStep: 700,
		RunLimit: spec.Duration(time.Hour),
		Slots: []berth.Slot{
			{Alloc: 201, Rank: 0, Machine: "m1", GPUs: []int{0, 1}, State: berth.AllocActive},
			{Alloc: 202, Rank: 1, Machine: "m2", State: second, Sealed: second == berth.AllocExited},
		}}
}

// calls are samples by the names of their recordings.
type calls map[string]sample

// call adds a sample of an activity.
func call[In, Out any](to calls, a wire.Activity[In, Out], in In, result Out) {
	s := sample{a.Args(in), result}
	if _, none := s.result.(wire.None); none {
		s.result = nil
	}
	to[activityFile+a.Name()] = s
}

// samples returns a call of each activity, each signal and each start of a workflow.
func samples() calls {
	canceling := recordedView(berth.AllocExited)
	canceling.State, canceling.CancelSeen, canceling.StopBy = berth.Canceling, true, recordedAt.Add(3*time.Minute)
	exit := failure.Exit{Cause: failure.CauseExited, Code: 137, OOMKilled: true, Message: "killed",
		Sign: failure.SignCUDAOOM, Xid: 31, Complete: true, StartedAt: recordedAt,
		FinishedAt: recordedAt.Add(time.Minute), OverQuota: "too large"}
	step := wire.StepInput{Job: recordedJob}
	attempt := wire.AttemptInput{Job: recordedJob, Attempt: 2}
	job, schedule := wire.JobInput{Job: recordedJob}, wire.FireInput{Schedule: recordedSchedule}
	all := calls{
		"signal-" + berth.SignalPoke:         {[]any{nil}, nil},
		"signal-" + berth.SignalCancel:       {[]any{nil}, nil},
		"workflow-" + berth.WorkflowJob:      {[]any{job}, nil},
		"workflow-" + berth.WorkflowArray:    {[]any{job}, nil},
		"workflow-" + berth.WorkflowPipeline: {[]any{job}, nil},
		"workflow-" + berth.WorkflowFire:     {[]any{schedule}, nil},
		"workflow-" + wire.WorkflowMachine:   {[]any{wire.MachineInput{Machine: "gpu-1"}}, nil},
	}
	call(all, wire.ActivityReserve, step, recordedView(berth.AllocActive))
	call(all, wire.ActivityLoad, step, recordedView(berth.AllocExited))
	call(all, wire.ActivitySettle, attempt, wire.SettleResult{Next: berth.Failed, HasParent: true})
	call(all, wire.ActivityStopAttempt, attempt, true)
	call(all, wire.ActivityEscalate, attempt, wire.None{})
	call(all, wire.ActivityRequestCancel, step, canceling)
	call(all, wire.ActivityReconcile, step, wire.ReconcileResult{State: berth.Running, Tenant: "default",
		Ready: []wire.Ready{{Job: recordedJob, Kind: berth.KindJob}}})
	call(all, wire.ActivityCancelParent, step, wire.ReconcileResult{State: berth.Canceled, More: true})
	call(all, wire.ActivityFire, wire.FireStep{Schedule: recordedSchedule, At: recordedAt},
		wire.FireResult{Status: wire.FireSubmitted, Job: recordedJob})
	call(all, wire.ActivityMachine, wire.MachineInput{Machine: "gpu-1"},
		wire.MachineStepResult{State: "serving", Reason: "x", Wait: spec.Duration(time.Minute)})
	call(all, wire.ActivityRun, wire.RunRequest{Job: recordedJob, Attempt: 2, Alloc: 201},
		wire.RunResult{Phase: berth.PhaseSealed, Exit: &exit})
	return all
}

// A process of the version before reads the payloads that this one writes: a new name or type of a
// field needs a new name of the activity.
func TestTheCodeWritesTheRecordedPayloads(t *testing.T) {
	t.Parallel()
	for name, s := range samples() {
		var now recording
		for _, v := range s.input {
			now.Input = append(now.Input, payloadOf(t, v))
		}
		if s.result != nil {
			p := payloadOf(t, s.result)
			now.Result = &p
		}
		if golden.Updating() {
			record(t, name, now)
		}
		for version, all := range recordings(t) {
			then, ok := all[name]
			if !ok {
				if version == present {
					t.Errorf("%s has no recording of version %s; -update records it", name, version)
				}
				continue
			}
			same := len(now.Input) == len(then.Input) && (now.Result == nil) == (then.Result == nil)
			for i := range then.Input {
				same = same && covers(t, now.Input[i], then.Input[i])
			}
			if same && then.Result != nil {
				same = covers(t, *now.Result, *then.Result)
			}
			if !same {
				t.Errorf("%s differs from version %s: a changed payload needs a new name\nnow  %s\nthen %s",
					name, version, now, then)
			}
		}
	}
}

// String shows a recording in a failure.
func (r recording) String() string {
	text := fmt.Sprintf("%s", r.Input)
	if r.Result != nil {
		text += fmt.Sprintf(" -> %s", *r.Result)
	}
	return text
}

// rows is the store, the pokes and the fires of steps. It notes the calls and returns one result.
type rows struct {
	control.Store
	result any
	calls  []string
}

func (r *rows) note(call string, args ...any) {
	r.calls = append(r.calls, strings.TrimSpace(call+" "+fmt.Sprintln(args...)))
}

func (r *rows) Expect(berth.JobID) (<-chan struct{}, func() bool) {
	return nil, func() bool { return false }
}

func (r *rows) Poke(...berth.JobID) {}

func (r *rows) Load(_ context.Context, id berth.JobID) (wire.JobView, error) {
	r.note("load", id)
	return r.result.(wire.JobView), nil
}

func (r *rows) Settle(_ context.Context, id berth.JobID, attempt int) (wire.SettleResult, error) {
	r.note("settle", id, attempt)
	return r.result.(wire.SettleResult), nil
}

func (r *rows) RequestCancel(_ context.Context, _ berth.TenantID, id berth.JobID, _ string,
	_ *berth.Reason) (berth.State, error) {
	r.note("cancel", id)
	return berth.Canceling, nil
}

func (r *rows) StopAttempt(_ context.Context, id berth.JobID, attempt int) (bool, error) {
	r.note("stop", id, attempt)
	return r.result.(bool), nil
}

func (r *rows) Escalate(_ context.Context, id berth.JobID, attempt int) error {
	r.note("escalate", id, attempt)
	return nil
}

func (r *rows) Reconcile(_ context.Context, id berth.JobID) (wire.ReconcileResult, error) {
	r.note("tend", id)
	return r.result.(wire.ReconcileResult), nil
}

func (r *rows) Fire(_ context.Context, id berth.ScheduleID, at time.Time) (wire.FireResult, error) {
	r.note("fire", id, at.Format(time.RFC3339Nano))
	return r.result.(wire.FireResult), nil
}

func (r *rows) run(_ context.Context, in wire.RunRequest) (wire.RunResult, error) {
	r.note("run", in.Job, in.Attempt, in.Alloc)
	return r.result.(wire.RunResult), nil
}

// Current, Change, Due and Send are the launch of the recorded machine, whose next step is far away.
func (r *rows) Current(_ context.Context, id berth.MachineID) (cloud.Record, time.Time, error) {
	r.note("launch", id)
	return cloud.Record{Machine: id, State: cloud.LaunchServing, SeenAt: recordedAt}, recordedAt, nil
}

func (r *rows) Change(context.Context, cloud.Ref,
	func(cloud.Record, time.Time) (cloud.Record, error)) (cloud.Record, error) {
	return cloud.Record{}, nil
}

func (r *rows) Send(context.Context, cloud.Ref, cloud.Limits, func(time.Time) time.Time,
	func(cloud.Record, string) (cloud.Sealed, error)) (cloud.Record, cloud.Sealed, error) {
	return cloud.Record{}, cloud.Sealed{}, nil
}

func (r *rows) Trip(context.Context, cloud.Breaker, func(cloud.Breaker, time.Time) cloud.Breaker) error {
	return nil
}

func (r *rows) Due(context.Context, cloud.Record, time.Duration) error { return nil }

// registerAll registers the activities of both queues over r.
func (r *rows) registerAll(to worker.ActivityRegistry) {
	machines := control.NewMachines(control.MachineDeps{Launches: r})
	NewControl(nil, control.New(r, r, r), machines, slog.New(slog.DiscardHandler)).registerSteps(to)
	around := func(RunFunc) RunFunc { return r.run }
	deps := WaiterDeps{Client: &answers{}, Limit: newLimited1(), Hints: noHints{}, Around: around}
	NewWaiters(deps, wait.Options{}).registerRun(to)
}

// acts are the calls with which steps answer the recorded calls.
var acts = map[string][]string{
	activityFile + wire.ActivityReserve.Name():       {"load " + string(recordedJob)},
	activityFile + wire.ActivityLoad.Name():          {"load " + string(recordedJob)},
	activityFile + wire.ActivitySettle.Name():        {"settle " + string(recordedJob) + " 2"},
	activityFile + wire.ActivityStopAttempt.Name():   {"stop " + string(recordedJob) + " 2"},
	activityFile + wire.ActivityEscalate.Name():      {"escalate " + string(recordedJob) + " 2"},
	activityFile + wire.ActivityRequestCancel.Name(): {"cancel " + string(recordedJob), "load " + string(recordedJob)},
	activityFile + wire.ActivityReconcile.Name():     {"tend " + string(recordedJob)},
	activityFile + wire.ActivityCancelParent.Name():  {"cancel " + string(recordedJob), "tend " + string(recordedJob)},
	activityFile + wire.ActivityFire.Name():          {"fire " + string(recordedSchedule) + " 2026-01-01T03:00:00Z"},
	activityFile + wire.ActivityMachine.Name():       {"launch gpu-1"},
	activityFile + wire.ActivityRun.Name():           {"run " + string(recordedJob) + " 2 201"},
}

// A call may have been scheduled by the version before, and wait in its queue through the upgrade.
func TestRecordedCallsAreServed(t *testing.T) {
	t.Parallel()
	for version, all := range recordings(t) {
		for name, call := range all {
			typed, ok := strings.CutPrefix(name, activityFile)
			if !ok {
				continue
			}
			r := &rows{result: samples()[name].result}
			env := new(testsuite.WorkflowTestSuite).NewTestActivityEnvironment()
			r.registerAll(env)
			value, err := env.ExecuteActivity(typed, call.raws()...)
			if err != nil {
				t.Errorf("%s of version %s: %v", typed, version, err)
				continue
			}
			if diff := cmp.Diff(acts[name], r.calls); diff != "" {
				t.Errorf("%s of version %s (-want +got):\n%s", typed, version, diff)
			}
			if value.HasValue() != (call.Result != nil) {
				t.Errorf("%s of version %s: result %t, recorded %v", typed, version, value.HasValue(), call.Result)
			}
		}
	}
}

// registered notes the names of activities.
type registered struct {
	worker.ActivityRegistry
	names []string
}

func (r *registered) RegisterActivityWithOptions(_ any, o activity.RegisterOptions) {
	r.names = append(r.names, o.Name)
}

func TestEveryActivityIsRecorded(t *testing.T) {
	t.Parallel()
	var served registered
	(&rows{}).registerAll(&served)
	var recorded []string
	for name := range maps.Keys(samples()) {
		if typed, ok := strings.CutPrefix(name, activityFile); ok {
			recorded = append(recorded, typed)
		}
	}
	slices.Sort(served.names)
	slices.Sort(recorded)
	if diff := cmp.Diff(served.names, recorded); diff != "" {
		t.Errorf("add a sample for each activity (-registered +recorded):\n%s", diff)
	}
}
