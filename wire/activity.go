package wire

import (
	"context"
	"time"

	"berth"
)

// Activity binds the name of an activity to the types of its input and its result. Workflows call
// an Activity, and workers register a Handler for the same one, so the compiler refuses a call with
// another payload than the one that is served.
//
// The name ends with a version. Work that is under way outlives a release: its calls and results
// are in queues and histories. So a changed payload is another Activity, of version 2, and version 1
// stays registered for one release. A new optional field is no change.
type Activity[In, Out any] struct {
	name string
	args func(in In) []any                // the values in the order of the payloads
	fn   func(serve Handler[In, Out]) any // a function that takes these values
}

// Handler serves an activity.
type Handler[In, Out any] func(ctx context.Context, in In) (Out, error)

// Name returns the name in histories and queues.
func (a Activity[In, Out]) Name() string { return a.name }

// Args returns the values that Temporal's SDK converts to the payloads of a call.
func (a Activity[In, Out]) Args(in In) []any { return a.args(in) }

// Func returns serve as a function of the values of Args, to be registered with Temporal's SDK.
func (a Activity[In, Out]) Func(serve Handler[In, Out]) any { return a.fn(serve) }

// None is the result of an activity that has none. It has no payload.
type None struct{}

// The activities. Those of the control queue are the steps of workflows.
var (
	ActivityReserve       = ofJob[JobView]("Reserve.v1")
	ActivityLoad          = ofJob[JobView]("Load.v1")
	ActivityRequestCancel = ofJob[JobView]("RequestCancel.v1")
	ActivityReconcile     = ofJob[ReconcileResult]("Tend.v1")
	ActivityCancelParent  = ofJob[ReconcileResult]("CancelParent.v1")
	ActivitySettle        = ofAttempt[SettleResult]("Settle.v1")
	ActivityStopAttempt   = ofAttempt[bool]("StopAttempt.v1")
	ActivityEscalate      = orderOf("Escalate.v1")
	ActivityFire          = ofFire("Fire.v1")
	ActivityMachine       = NewActivity[MachineInput, MachineStepResult]("Machine.v1")
	ActivityRun           = NewActivity[RunRequest, RunResult]("Run.v1") // on the queue of the waiters
)

// NewActivity returns an activity whose input and result are one payload each, the JSON of the
// types. Every new activity is such a one; so is version 2 of a present one.
func NewActivity[In, Out any](name string) Activity[In, Out] {
	return Activity[In, Out]{
		name: name,
		args: func(in In) []any { return []any{in} },
		fn: func(serve Handler[In, Out]) any {
			return func(ctx context.Context, in In) (Out, error) { return serve(ctx, in) }
		},
	}
}

// Steps of version 1 have a payload for each field of their input.

// ofJob returns a step about a job, with the payload id.
func ofJob[Out any](name string) Activity[StepInput, Out] {
	return Activity[StepInput, Out]{
		name: name,
		args: func(in StepInput) []any { return []any{in.Job} },
		fn: func(serve Handler[StepInput, Out]) any {
			return func(ctx context.Context, id berth.JobID) (Out, error) { return serve(ctx, StepInput{Job: id}) }
		},
	}
}

// ofAttempt returns a step about an attempt, with the payloads id and attempt.
func ofAttempt[Out any](name string) Activity[AttemptInput, Out] {
	return Activity[AttemptInput, Out]{
		name: name,
		args: func(in AttemptInput) []any { return []any{in.Job, in.Attempt} },
		fn: func(serve Handler[AttemptInput, Out]) any {
			return func(ctx context.Context, id berth.JobID, attempt int) (Out, error) {
				return serve(ctx, AttemptInput{Job: id, Attempt: attempt})
			}
		},
	}
}

// orderOf returns a step about an attempt without a result.
func orderOf(name string) Activity[AttemptInput, None] {
	a := ofAttempt[None](name)
	a.fn = func(serve Handler[AttemptInput, None]) any {
		return func(ctx context.Context, id berth.JobID, attempt int) error {
			_, err := serve(ctx, AttemptInput{Job: id, Attempt: attempt})
			return err
		}
	}
	return a
}

// ofFire returns the step about one time of a schedule, with the payloads id and time.
func ofFire(name string) Activity[FireStep, FireResult] {
	return Activity[FireStep, FireResult]{
		name: name,
		args: func(in FireStep) []any { return []any{in.Schedule, in.At} },
		fn: func(serve Handler[FireStep, FireResult]) any {
			return func(ctx context.Context, id berth.ScheduleID, at time.Time) (FireResult, error) {
				return serve(ctx, FireStep{Schedule: id, At: at})
			}
		},
	}
}
