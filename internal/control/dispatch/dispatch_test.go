package dispatch_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"berth"
	"berth/db"
	"berth/db/dbtest"
	"berth/internal/control/dispatch"
	"berth/spec"
	"berth/wire"
)

// server is a Temporal with only the calls that the dispatcher makes.
type server struct {
	mu      sync.Mutex
	away    bool
	status  map[string]enumspb.WorkflowExecutionStatus
	starts  []client.StartWorkflowOptions
	inputs  []wire.JobInput // of the starts
	lacks   bool            // the namespace has no search attribute JobName
	signals []string
	changed chan struct{}

	pending  []*workflowpb.PendingActivityInfo   // of every workflow
	task     *workflowpb.PendingWorkflowTaskInfo // of every workflow
	repeated []string                            // activities whose try was failed
}

func newServer() *server {
	return &server{status: map[string]enumspb.WorkflowExecutionStatus{}, changed: make(chan struct{}, 1)}
}

func (s *server) change(f func()) {
	s.mu.Lock()
	f()
	s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func (s *server) reach() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return serviceerror.NewUnavailable("connection refused")
	}
	return nil
}

func (s *server) ExecuteWorkflow(_ context.Context, o client.StartWorkflowOptions, _ any,
	args ...any) (client.WorkflowRun, error) {
	if err := s.reach(); err != nil {
		return nil, err
	}
	var err error
	s.change(func() {
		if o.TypedSearchAttributes.ContainsKey(nameKey) && s.lacks {
			err = serviceerror.NewInvalidArgument(
				"Namespace default has no mapping defined for search attribute JobName")
			return
		}
		status, known := s.status[o.ID]
		failed := status != enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING && status != enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED
		anew := o.WorkflowIDReusePolicy == enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE && status == enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED
		if known && !failed && !anew {
			err = serviceerror.NewWorkflowExecutionAlreadyStarted("already", "", "")
			return
		}
		s.status[o.ID] = enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING
		s.starts = append(s.starts, o)
		if in, ok := args[0].(wire.JobInput); ok {
			s.inputs = append(s.inputs, in)
		}
	})
	return nil, err
}

func (s *server) SignalWorkflow(_ context.Context, id, _, signal string, _ any) error {
	if err := s.reach(); err != nil {
		return err
	}
	var err error
	s.change(func() {
		if s.status[id] != enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING {
			err = serviceerror.NewNotFound("no such workflow")
		}
		s.signals = append(s.signals, id+" "+signal)
	})
	return err
}

func (s *server) TerminateWorkflow(_ context.Context, id, _, _ string, _ ...any) error {
	if err := s.reach(); err != nil {
		return err
	}
	s.change(func() { s.status[id] = enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED })
	return nil
}

func (s *server) DescribeWorkflowExecution(_ context.Context, id, _ string) (*workflowservice.DescribeWorkflowExecutionResponse, error) {
	if err := s.reach(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	status, ok := s.status[id]
	if !ok {
		return nil, serviceerror.NewNotFound("no such workflow")
	}
	return &workflowservice.DescribeWorkflowExecutionResponse{
		WorkflowExecutionInfo: &workflowpb.WorkflowExecutionInfo{Status: status},
		PendingActivities:     s.pending,
		PendingWorkflowTask:   s.task,
	}, nil
}

func (s *server) CompleteActivityByID(_ context.Context, namespace, id, _, activity string, _ any, err error) error {
	if err == nil || namespace == "" || s.status[id] != enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING {
		return serviceerror.NewInvalidArgument("not a failure of an open workflow's activity")
	}
	s.change(func() { s.repeated = append(s.repeated, activity) })
	return nil
}

// ScheduleClient is proved against a real server, in package e2e.
func (s *server) ScheduleClient() client.ScheduleClient { return nil }

// ListWorkflow answers two workflows a page.
func (s *server) ListWorkflow(_ context.Context, r *workflowservice.ListWorkflowExecutionsRequest) (*workflowservice.ListWorkflowExecutionsResponse, error) {
	if err := s.reach(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var open []string
	for id, status := range s.status {
		if status == enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING {
			open = append(open, id)
		}
	}
	slices.Sort(open)
	from := 0
	if t := r.GetNextPageToken(); t != nil {
		_, _ = fmt.Sscan(string(t), &from)
	}
	page := &workflowservice.ListWorkflowExecutionsResponse{}
	for _, id := range open[from:min(from+2, len(open))] {
		page.Executions = append(page.Executions, &workflowpb.WorkflowExecutionInfo{Execution: &commonpb.WorkflowExecution{WorkflowId: id}})
	}
	if from+2 < len(open) {
		page.NextPageToken = []byte(fmt.Sprint(from + 2))
	}
	return page, nil
}

// until waits for a condition that the server's next changes bring about.
func (s *server) until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	limit := time.After(3 * time.Minute)
	for {
		s.mu.Lock()
		done := ok()
		s.mu.Unlock()
		if done {
			return
		}
		select {
		case <-s.changed:
		case <-limit:
			s.mu.Lock()
			defer s.mu.Unlock()
			t.Fatalf("%s: not so; %d starts, signals %v", what, len(s.starts), s.signals)
		}
	}
}

func open(t *testing.T, url string) *db.DB {
	t.Helper()
	d, err := db.Open(t.Context(), url, db.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// run runs the dispatcher, and the hints of its database, for the test's time.
func run(t *testing.T, x *dispatch.Dispatcher, d *db.DB) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { _ = d.Hub().Run(ctx) })
	all.Go(func() { _ = x.Run(ctx) })
	t.Cleanup(func() { cancel(); all.Wait() })
	ready(t, x)
}

// ready waits until the dispatcher knows of its server.
func ready(t *testing.T, x *dispatch.Dispatcher) {
	t.Helper()
	if err := x.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func submit(t *testing.T, d *db.DB, name string) berth.JobID {
	t.Helper()
	jobSpec := spec.Job{Name: name, Image: "busybox"}.WithDefaults()
	job, _, err := d.Jobs.Submit(t.Context(), db.Submission{Tenant: "default", Spec: jobSpec, Actor: "user:test"})
	if err != nil {
		t.Fatal(err)
	}
	return job.ID
}

var never = dispatch.Options{Starts: true, SweepEvery: time.Hour, Moment: time.Hour}

func TestASubmittedJobIsStartedAtOnce(t *testing.T) {
	t.Parallel()
	d, s := dbtest.DB(t, db.Options{}), newServer()
	options := never
	options.API = "https://berth.test/"
	run(t, dispatch.New(s, d, options), d)
	id := submit(t, d, "train")
	s.until(t, "started", func() bool { return len(s.starts) == 1 })
	o := s.starts[0]
	tenant, _ := o.TypedSearchAttributes.GetKeyword(tenantKey)
	name, _ := o.TypedSearchAttributes.GetKeyword(nameKey)
	user, _ := o.TypedSearchAttributes.GetKeyword(userKey)
	if name != "train" || user != "test" {
		t.Errorf("JobName is %q, User %q", name, user)
	}
	memo := map[string]any{"name": "train", "image": "busybox", "tenant": "default",
		"link": "https://berth.test/v1/jobs/" + string(id)}
	if diff := cmp.Diff(memo, o.Memo); diff != "" {
		t.Errorf("the memo (-want +got):\n%s", diff)
	}
	if in := s.inputs[0]; !in.Outcome || in.Job != id || in.API != "" {
		t.Errorf("the input is %+v", in)
	}
	if o.ID != "job/"+string(id) || o.TaskQueue != "control" || o.StaticSummary != "train" || tenant != "default" ||
		o.WorkflowIDReusePolicy != enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE_FAILED_ONLY {
		t.Errorf("options are %+v", o)
	}
}

// A namespace without the newer attributes, and without the right to add them, costs the
// attributes and no start.
func TestWorkflowsStartWithoutAttributesThatTheNamespaceLacks(t *testing.T) {
	t.Parallel()
	d, s := dbtest.DB(t, db.Options{}), newServer()
	s.lacks = true
	run(t, dispatch.New(s, d, never), d)
	submit(t, d, "train")
	submit(t, d, "test")
	s.until(t, "both started", func() bool { return len(s.starts) == 2 })
	for i, o := range s.starts {
		if tenant, _ := o.TypedSearchAttributes.GetKeyword(tenantKey); tenant != "default" || s.inputs[i].Outcome {
			t.Errorf("start %d: tenant %q, input %+v", i, tenant, s.inputs[i])
		}
	}
}

func TestAnotherProcessStartsWhatIsLeftAfterAMoment(t *testing.T) {
	t.Parallel()
	url := dbtest.URL(t)
	here, there, s := open(t, url), open(t, url), newServer()
	o := never
	o.Moment = time.Millisecond
	run(t, dispatch.New(s, here, o), here)
	ctx, cancel := context.WithCancel(t.Context())
	var hub sync.WaitGroup
	hub.Go(func() { _ = there.Hub().Run(ctx) })
	defer hub.Wait()
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond) // until the first process listens
	defer tick.Stop()
	for {
		submit(t, there, "theirs")
		select {
		case <-s.changed:
			return
		case <-tick.C:
		case <-time.After(3 * time.Minute):
			t.Fatal("not started")
		}
	}
}

func TestTheSweepStartsWhatNobodyHeardOf(t *testing.T) {
	t.Parallel()
	d, s := dbtest.DB(t, db.Options{}), newServer()
	for i := range 50 { // before anybody listens
		submit(t, d, fmt.Sprintf("job-%d", i))
	}
	o := never
	o.SweepEvery = 10 * time.Millisecond
	run(t, dispatch.New(s, d, o), d)
	s.until(t, "all started", func() bool { return len(s.starts) == 50 })
}

func TestStartsGoOnWhenTemporalIsBack(t *testing.T) {
	t.Parallel()
	d, s := dbtest.DB(t, db.Options{}), newServer()
	x := dispatch.New(s, d, never)
	run(t, x, d)
	s.change(func() { s.away = true })
	if err := x.Check(t.Context()); err == nil {
		t.Error("temporal seems to answer")
	}
	if !x.Healthy() {
		t.Error("unhealthy at the first failure")
	}
	submit(t, d, "train") // accepted all the same
	s.change(func() { s.away = false })
	s.until(t, "started", func() bool { return len(s.starts) == 1 })
}

func TestUnhealthyUntilTemporalHasAnswered(t *testing.T) {
	t.Parallel()
	d, s := dbtest.DB(t, db.Options{}), newServer()
	s.away = true
	x := dispatch.New(s, d, never)
	if x.Healthy() {
		t.Error("healthy before any call")
	}
	if err := x.Check(t.Context()); err == nil || x.Healthy() {
		t.Errorf("healthy although away: %v", err)
	}
	s.away = false
	if err := x.Check(t.Context()); err != nil || !x.Healthy() {
		t.Errorf("unhealthy although there: %v", err)
	}
}
