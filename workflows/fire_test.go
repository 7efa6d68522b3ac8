package workflows_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"berth"
	"berth/wire"
	"berth/workflows"
)

// fires runs the workflow of a fire, whose step is f, as started for a time;
// the zero time: by nobody's schedule.
func fires(t *testing.T, at time.Time, f func(berth.ScheduleID, time.Time) (wire.FireResult, error)) error {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestWorkflowEnvironment()
	env.RegisterWorkflowWithOptions(workflows.Fire, workflow.RegisterOptions{Name: berth.WorkflowFire})
	register(env, wire.ActivityFire, func(_ context.Context, in wire.FireStep) (wire.FireResult, error) {
		return f(in.Schedule, in.At)
	})
	if !at.IsZero() {
		scheduled := temporal.NewSearchAttributeKeyTime(berth.AttributeScheduled)
		if err := env.SetTypedSearchAttributesOnStart(temporal.NewSearchAttributes(scheduled.ValueSet(at))); err != nil {
			t.Fatal(err)
		}
	}
	env.ExecuteWorkflow(berth.WorkflowFire, wire.FireInput{Schedule: berth.ScheduleID(id)})
	return env.GetWorkflowError()
}

func TestAFireStandsForTheTimeOfItsStart(t *testing.T) {
	t.Parallel()
	want := time.Date(2026, 1, 1, 3, 0, 0, 0, time.UTC)
	tries := 0
	err := fires(t, want, func(schedule berth.ScheduleID, at time.Time) (wire.FireResult, error) {
		if tries++; tries < 6 { // the database is away for longer than a local step is repeated
			return wire.FireResult{}, errors.New("connection refused")
		}
		if schedule != berth.ScheduleID(id) || !at.Equal(want) {
			t.Errorf("fired %s at %s", schedule, at)
		}
		return wire.FireResult{Status: wire.FireSubmitted, Job: id}, nil
	})
	if err != nil || tries != 6 {
		t.Errorf("after %d tries %v", tries, err)
	}
}

func TestAFireOfADeletedScheduleEnds(t *testing.T) {
	t.Parallel()
	err := fires(t, start, func(berth.ScheduleID, time.Time) (wire.FireResult, error) { return wire.FireResult{}, nil })
	if err != nil {
		t.Error(err)
	}
}

func TestAFireThatStandsForNoTimeSubmitsNothing(t *testing.T) {
	t.Parallel()
	err := fires(t, time.Time{}, func(berth.ScheduleID, time.Time) (wire.FireResult, error) {
		t.Error("fired")
		return wire.FireResult{}, nil
	})
	if err == nil {
		t.Error("it completes")
	}
}
