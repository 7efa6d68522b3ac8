package workers

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"berth"
	"berth/wire"
)

// resumed runs a workflow of the present code on payloads of a version: its activities return the
// recorded results, and its signals carry the recorded payloads.
type resumed struct {
	t   *testing.T
	env *testsuite.TestWorkflowEnvironment
	all map[string]recording
	// away makes local steps fail, as while the database is away. So the steps run as activities,
	// and the test reads their input from payloads.
	away  bool
	child func(workflow.Context, wire.JobInput) error // in place of the workflow Job; nil: that one

	mu    sync.Mutex
	calls []string             // in order, without Run
	input map[string][]payload // of the last call; of Run: of the recorded member
	token []byte               // of that Run
}

func resume(t *testing.T, all map[string]recording, away bool) *resumed {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(log.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	r := &resumed{t: t, env: suite.NewTestWorkflowEnvironment(), all: all, away: away, input: map[string][]payload{}}
	var served registered
	(&rows{}).registerAll(&served)
	for _, name := range served.names {
		var f any = func(ctx context.Context, a any) (any, error) { return r.answer(ctx, a) }
		if len(all[activityFile+name].Input) == 2 {
			f = func(ctx context.Context, a, b any) (any, error) { return r.answer(ctx, a, b) }
		}
		r.env.RegisterActivityWithOptions(f, activity.RegisterOptions{Name: name})
	}
	r.env.SetStartTime(recordedAt)
	r.env.SetTestTimeout(5 * time.Minute) // of the real clock
	return r
}

// answer serves an activity with its recorded result.
func (r *resumed) answer(ctx context.Context, args ...any) (any, error) {
	info := activity.GetInfo(ctx)
	if r.away && info.IsLocalActivity {
		return nil, errors.New("connection refused")
	}
	name := info.ActivityType.Name
	r.mu.Lock()
	defer r.mu.Unlock()
	input := make([]payload, 0, len(args))
	for _, v := range args {
		input = append(input, payloadOf(r.t, v))
	}
	if name == wire.ActivityRun.Name() {
		// Of the waiters of all members, in any order, the test ends the recorded one.
		if covers(r.t, input[0], r.all[activityFile+name].Input[0]) {
			r.token, r.input[name] = info.TaskToken, input
		}
		return nil, activity.ErrResultPending
	}
	r.input[name] = input
	r.calls = append(r.calls, name)
	if result := r.all[activityFile+name].Result; result != nil {
		return result.raw(), nil
	}
	return nil, nil
}

// signal sends the recorded payload of a signal at a time after the start.
func (r *resumed) signal(after time.Duration, name string) {
	r.env.RegisterDelayedCallback(func() { r.env.SignalWorkflow(name, r.all["signal-"+name].raws()[0]) }, after)
}

// workflowsBut registers a child in place of the workflow Job.
type workflowsBut struct {
	*testsuite.TestWorkflowEnvironment
	child func(workflow.Context, wire.JobInput) error
}

func (w workflowsBut) RegisterWorkflowWithOptions(f any, o workflow.RegisterOptions) {
	if o.Name == berth.WorkflowJob && w.child != nil {
		f = w.child
	}
	w.TestWorkflowEnvironment.RegisterWorkflowWithOptions(f, o)
}

// execute starts the workflow with its recorded input and checks its calls.
func (r *resumed) execute(name string, want ...string) {
	r.t.Helper()
	registerWorkflows(workflowsBut{r.env, r.child})
	r.env.ExecuteWorkflow(name, r.all["workflow-"+name].raws()...)
	if err := r.env.GetWorkflowError(); !r.env.IsWorkflowCompleted() || err != nil {
		r.t.Fatalf("%s: completed %t, %v; calls %v", name, r.env.IsWorkflowCompleted(), err, r.calls)
	}
	if diff := cmp.Diff(want, r.calls); diff != "" {
		r.t.Errorf("%s (-want +got):\n%s", name, diff)
	}
	for activity, input := range r.input {
		recorded := r.all[activityFile+activity].Input
		if !slices.EqualFunc(input, recorded, func(g, w payload) bool { return covers(r.t, g, w) }) {
			r.t.Errorf("%s calls %s with %s, recorded %s", name, activity, input, recorded)
		}
	}
}

// eachVersion runs a test on the recordings of each version, with the database there and away.
func eachVersion(t *testing.T, test func(r *resumed)) {
	t.Helper()
	for version, all := range recordings(t) {
		for name, away := range map[string]bool{"local steps": false, "durable steps": true} {
			t.Run(version+", "+name, func(t *testing.T) {
				t.Parallel()
				test(resume(t, all, away))
			})
		}
	}
}

func TestAJobUnderWayGoesOnWithRecordedPayloads(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(r *resumed) {
		r.signal(time.Minute, berth.SignalPoke)
		r.signal(2*time.Minute, berth.SignalCancel)
		r.env.RegisterDelayedCallback(func() {
			r.mu.Lock()
			token := r.token
			r.mu.Unlock()
			end := r.all[activityFile+wire.ActivityRun.Name()].Result.raw()
			if err := r.env.CompleteActivity(token, end, nil); err != nil {
				r.t.Error(err)
			}
		}, 5*time.Minute)
		r.execute(berth.WorkflowJob, wire.ActivityReserve.Name(), wire.ActivityLoad.Name(),
			wire.ActivityStopAttempt.Name(), wire.ActivityRequestCancel.Name(), wire.ActivityEscalate.Name(),
			wire.ActivityLoad.Name(), wire.ActivitySettle.Name())
	})
}

func TestAnArrayUnderWayGoesOnWithRecordedPayloads(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(r *resumed) {
		r.signal(time.Minute, berth.SignalPoke)
		r.signal(2*time.Minute, berth.SignalCancel)
		look := wire.ActivityReconcile.Name()
		r.execute(berth.WorkflowArray, look, look, wire.ActivityCancelParent.Name())
	})
}

func TestAPipelineUnderWayGoesOnWithRecordedPayloads(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(r *resumed) {
		var started []wire.JobInput
		r.child = func(_ workflow.Context, in wire.JobInput) error {
			started = append(started, in)
			return nil
		}
		r.signal(time.Minute, berth.SignalPoke)
		r.signal(2*time.Minute, berth.SignalCancel)
		// The first step returns a ready child, whose start is followed by another look.
		look := wire.ActivityReconcile.Name()
		r.execute(berth.WorkflowPipeline, look, look, look, wire.ActivityCancelParent.Name())
		recorded := r.all["workflow-"+berth.WorkflowJob].Input[0]
		if len(started) != 1 || !covers(r.t, payloadOf(r.t, started[0]), recorded) {
			r.t.Errorf("started %+v", started)
		}
	})
}

func TestAFireUnderWayGoesOnWithRecordedPayloads(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(r *resumed) {
		scheduled := temporal.NewSearchAttributeKeyTime(berth.AttributeScheduled)
		attributes := temporal.NewSearchAttributes(scheduled.ValueSet(recordedAt))
		if err := r.env.SetTypedSearchAttributesOnStart(attributes); err != nil {
			r.t.Fatal(err)
		}
		r.execute(berth.WorkflowFire, wire.ActivityFire.Name())
	})
}
