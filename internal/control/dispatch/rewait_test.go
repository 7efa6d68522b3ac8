package dispatch_test

import (
	"slices"
	"testing"
	"time"

	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	workflowpb "go.temporal.io/api/workflow/v1"
	"google.golang.org/protobuf/types/known/timestamppb"

	"berth"
	"berth/internal/control/dispatch"
	"berth/wire"
)

func TestOnlyWaitersThatNoWorkerCanStillHoldAreRepeated(t *testing.T) {
	t.Parallel()
	const started, scheduled = enumspb.PENDING_ACTIVITY_STATE_STARTED, enumspb.PENDING_ACTIVITY_STATE_SCHEDULED
	activity := func(id, name string, state enumspb.PendingActivityState, attempt int32, age time.Duration, beats bool) *workflowpb.PendingActivityInfo {
		a := &workflowpb.PendingActivityInfo{
			ActivityId: id, ActivityType: &commonpb.ActivityType{Name: name}, State: state, Attempt: attempt, LastStartedTime: timestamppb.New(time.Now().Add(-age)),
		}
		if beats {
			a.LastHeartbeatTime = timestamppb.Now()
		}
		return a
	}
	for name, row := range map[string]struct {
		pending []*workflowpb.PendingActivityInfo
		want    []string
	}{
		"lost":                      {[]*workflowpb.PendingActivityInfo{activity("1", wire.ActivityRun.Name(), started, 1, time.Minute, false)}, []string{"1"}},
		"lost with its replica":     {[]*workflowpb.PendingActivityInfo{activity("1", wire.ActivityRun.Name(), started, 1, time.Hour, true)}, []string{"1"}},
		"not dispatched":            {[]*workflowpb.PendingActivityInfo{activity("1", wire.ActivityRun.Name(), scheduled, 1, time.Minute, false)}, nil},
		"just started":              {[]*workflowpb.PendingActivityInfo{activity("1", wire.ActivityRun.Name(), started, 1, time.Second, false)}, nil},
		"held back by a worker":     {[]*workflowpb.PendingActivityInfo{activity("1", wire.ActivityRun.Name(), started, 2, time.Minute, false)}, nil},
		"a second try that is lost": {[]*workflowpb.PendingActivityInfo{activity("1", wire.ActivityRun.Name(), started, 2, 2*time.Minute, false)}, []string{"1"}},
		"none":                      {nil, nil},
		"another activity":          {[]*workflowpb.PendingActivityInfo{activity("1", wire.ActivitySettle.Name(), started, 1, time.Minute, false)}, nil},
		"one of a gang": {[]*workflowpb.PendingActivityInfo{
			activity("1", wire.ActivityRun.Name(), started, 1, time.Minute, true), activity("2", wire.ActivityRun.Name(), started, 1, time.Minute, false),
		}, []string{"2"}},
	} {
		s := newServer()
		id := berth.NewJobID(time.Now())
		s.status[berth.JobWorkflowID(id)], s.pending = enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING, row.pending
		n, idle, err := dispatch.NewOver(s, newMemory(), dispatch.Options{}).Rewait(t.Context(), id, 25*time.Second)
		if err != nil || n != len(row.want) || !slices.Equal(s.repeated, row.want) {
			t.Errorf("%s: %d, %v were repeated (%v), want %v", name, n, s.repeated, err, row.want)
		}
		if unaware := len(row.pending) == 0 || name == "another activity"; idle != unaware {
			t.Errorf("%s: the workflow waits for no member: %t, want %t", name, idle, unaware)
		}
	}
	n, idle, err := dispatch.NewOver(newServer(), newMemory(), dispatch.Options{}).Rewait(t.Context(), berth.NewJobID(time.Now()), 0)
	if n != 0 || idle || err != nil {
		t.Errorf("without a workflow: %d, %t, %v", n, idle, err)
	}
}
