package dispatch_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"berth"
	"berth/db"
	"berth/internal/control/dispatch"
)

// memory are the rows of submitted jobs, in simulated time.
type memory struct {
	hub      db.Hub
	mu       sync.Mutex
	rows     map[berth.JobID]time.Time // submitted, and since when
	tenants  map[berth.JobID]berth.TenantID
	pressure db.Pressure
	turns    chan struct{} // of the database; nil: there is always one
	awaiting int           // starts that wait for a turn
}

// crowd makes starts wait for turns until the returned channel is closed.
func (m *memory) crowd() chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.turns = make(chan struct{})
	return m.turns
}

func newMemory() *memory {
	return &memory{rows: map[berth.JobID]time.Time{}, tenants: map[berth.JobID]berth.TenantID{}}
}

func (m *memory) Hub() *db.Hub { return &m.hub }

func (m *memory) submit(n int) (ids []berth.JobID) { return m.submitOf("default", n) }

func (m *memory) submitOf(tenant berth.TenantID, n int) (ids []berth.JobID) {
	m.mu.Lock()
	keys := make([]string, n)
	for i := range n {
		id := berth.NewJobID(time.Now())
		m.rows[id], m.tenants[id], keys[i] = time.Now(), tenant, string(id)
		ids = append(ids, id)
	}
	m.mu.Unlock()
	m.hub.Publish(db.TopicSubmit, keys...)
	return ids
}

// started is the first step of a workflow.
func (m *memory) started(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	job, _ := berth.JobOfWorkflow(id)
	delete(m.rows, job)
}

func (m *memory) waits(id berth.JobID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, waits := m.rows[id]
	return waits
}

func (m *memory) left() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.rows)
}

func (m *memory) press(p db.Pressure) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pressure = p
}

func (m *memory) list(keep func(id berth.JobID, since time.Time) bool, limit int) (list []db.Dispatch, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, since := range m.rows {
		if keep(id, since) {
			list = append(list, db.Dispatch{Job: id, Tenant: m.tenants[id], Kind: "job", Name: "x"})
		}
	}
	slices.SortFunc(list, func(a, b db.Dispatch) int { return m.rows[a.Job].Compare(m.rows[b.Job]) })
	return list[:min(limit, len(list))], nil
}

func (m *memory) Submitted(_ context.Context, ids []berth.JobID) ([]db.Dispatch, error) {
	return m.list(func(id berth.JobID, _ time.Time) bool { return slices.Contains(ids, id) }, len(ids))
}

func (m *memory) Live(ctx context.Context, ids []berth.JobID) ([]db.Dispatch, error) {
	return m.Submitted(ctx, ids)
}

func (m *memory) SubmittedBefore(_ context.Context, age time.Duration, limit int) ([]db.Dispatch, error) {
	return m.list(func(_ berth.JobID, since time.Time) bool { return time.Since(since) > age }, limit)
}

func (m *memory) Pressure(context.Context, time.Duration, time.Duration) (db.Pressure, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pressure, nil
}

// AwaitTurn waits for one of the turns.
func (m *memory) AwaitTurn(ctx context.Context) error {
	m.mu.Lock()
	turns := m.turns
	if turns == nil {
		m.mu.Unlock()
		return nil
	}
	m.awaiting++
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		m.awaiting--
		m.mu.Unlock()
	}()
	select {
	case <-turns:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// awaits is the number of starts that wait for a turn.
func (m *memory) awaits() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.awaiting
}

// Unheard: nothing runs here, so nothing ends.
func (m *memory) Unheard(context.Context, []berth.AllocationID) ([]berth.JobID, error) {
	return nil, nil
}

// crowd is a Temporal that gets slower with concurrent calls: n calls together get
// capacity/(1+(n/knee)²) per second. A call that its caller has given up has used
// its share of the capacity, and changes nothing.
type crowd struct {
	knee float64

	mu       sync.Mutex
	capacity float64
	inside   map[*visit]struct{}
	status   map[string]enumspb.WorkflowExecutionStatus
	arrived  int      // calls that came
	log      []string // calls in order
	fail     func(string) (before, after error)
	starts   map[string]int // calls to start each workflow
	began    func(id string)
}

type visit struct {
	left float64
	done chan struct{}
}

func newCrowd(capacity, knee float64) *crowd {
	return &crowd{capacity: capacity, knee: knee, inside: map[*visit]struct{}{}, status: map[string]enumspb.WorkflowExecutionStatus{}, starts: map[string]int{}}
}

const step = 5 * time.Millisecond

// run does the work until ctx ends.
func (c *crowd) run(ctx context.Context) {
	tick := time.NewTicker(step)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		c.mu.Lock()
		if n := float64(len(c.inside)); n > 0 {
			each := c.capacity / (1 + (n/c.knee)*(n/c.knee)) * step.Seconds() / n
			for v := range c.inside {
				if v.left -= each; v.left <= 0 {
					close(v.done)
					delete(c.inside, v)
				}
			}
		}
		c.mu.Unlock()
	}
}

// serve makes a call of so much work and then does f, unless the caller has gone.
func (c *crowd) serve(ctx context.Context, what string, work float64, f func() error) error {
	c.mu.Lock()
	c.arrived++
	var before, after error
	if c.fail != nil {
		before, after = c.fail(what)
	}
	v := &visit{left: work, done: make(chan struct{})}
	c.inside[v] = struct{}{}
	c.mu.Unlock()
	select {
	case <-v.done:
	case <-ctx.Done():
		c.mu.Lock()
		delete(c.inside, v)
		c.mu.Unlock()
		return serviceerror.NewDeadlineExceeded("context deadline exceeded")
	}
	if before != nil {
		return before
	}
	c.mu.Lock()
	c.log = append(c.log, what)
	err := f()
	c.mu.Unlock()
	if err == nil {
		err = after
	}
	return err
}

func (c *crowd) ExecuteWorkflow(ctx context.Context, o client.StartWorkflowOptions, _ any, _ ...any) (client.WorkflowRun, error) {
	return nil, c.serve(ctx, "start", 1, func() error {
		c.starts[o.ID]++
		if _, ok := c.status[o.ID]; ok {
			return serviceerror.NewWorkflowExecutionAlreadyStarted("already", "", "")
		}
		c.status[o.ID] = running
		if c.began != nil {
			c.began(o.ID)
		}
		return nil
	})
}

func (c *crowd) SignalWorkflow(ctx context.Context, id, _, _ string, _ any) error {
	return c.serve(ctx, "poke", 0.5, func() error { return nil })
}

func (c *crowd) TerminateWorkflow(ctx context.Context, id, _, _ string, _ ...any) error {
	return c.serve(ctx, "terminate", 1, func() error { return nil })
}

func (c *crowd) CompleteActivityByID(ctx context.Context, _, _, _, _ string, _ any, _ error) error {
	return c.serve(ctx, "repeat", 1, func() error { return nil })
}

func (c *crowd) DescribeWorkflowExecution(ctx context.Context, id, _ string) (*workflowservice.DescribeWorkflowExecutionResponse, error) {
	var answer *workflowservice.DescribeWorkflowExecutionResponse
	err := c.serve(ctx, "look", 0.1, func() error {
		status, ok := c.status[id]
		if !ok {
			return serviceerror.NewNotFound("no such workflow")
		}
		answer = &workflowservice.DescribeWorkflowExecutionResponse{WorkflowExecutionInfo: &workflowpb.WorkflowExecutionInfo{Status: status}}
		return nil
	})
	return answer, err
}

func (c *crowd) ListWorkflow(context.Context, *workflowservice.ListWorkflowExecutionsRequest) (*workflowservice.ListWorkflowExecutionsResponse, error) {
	return &workflowservice.ListWorkflowExecutionsResponse{}, nil
}

func (c *crowd) ScheduleClient() client.ScheduleClient { return nil }

func (c *crowd) set(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

// simulate runs a dispatcher over a crowd in simulated time.
func simulate(t *testing.T, c *crowd, f func(t *testing.T, m *memory, x *dispatch.Dispatcher)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		c.began = m.started
		x := dispatch.NewOver(c, m, dispatch.Options{Starts: true})
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { c.run(ctx) })
		all.Go(func() { _ = x.Run(ctx) })
		time.Sleep(time.Second) // the probe has found the server
		f(t, m, x)
		cancel()
		all.Wait()
	})
}

// flood submits jobs steadily.
func flood(m *memory, perSecond int, during time.Duration) {
	for range int(during.Seconds()) * perSecond {
		m.submit(1)
		time.Sleep(time.Second / time.Duration(perSecond))
	}
}

// drained waits until every job is started, and returns how long that took.
func drained(m *memory, within time.Duration) (time.Duration, bool) {
	began := time.Now()
	for m.left() > 0 {
		if time.Since(began) > within {
			return within, false
		}
		time.Sleep(100 * time.Millisecond)
	}
	return time.Since(began), true
}

// A server that can serve ten starts per second is slow for half a minute, as under
// other load. Then it could serve five times the requested rate again, but not for 32
// callers at once whose calls all come too late and are repeated.
func TestARetryStormEndsWithItsCause(t *testing.T) {
	t.Parallel()
	c := newCrowd(50, 4)
	simulate(t, c, func(t *testing.T, m *memory, _ *dispatch.Dispatcher) {
		flood(m, 10, 30*time.Second)
		if n := m.left(); n > 5 {
			t.Fatalf("%d jobs wait before the overload", n)
		}
		c.set(func() { c.capacity = 5 })
		flood(m, 10, 30*time.Second)
		if n := m.left(); n < 100 {
			t.Fatalf("%d jobs wait: that was no overload", n)
		}
		c.set(func() { c.capacity = 50 })
		took, ok := drained(m, 30*time.Second)
		if !ok {
			t.Errorf("half a minute after the overload has ended %d jobs still wait", m.left())
		}
		t.Logf("recovered in %s", took)
	})
}

// The same with everything coming at once.
func TestAFloodDoesNotFellTheServer(t *testing.T) {
	t.Parallel()
	c := newCrowd(50, 8)
	simulate(t, c, func(t *testing.T, m *memory, _ *dispatch.Dispatcher) {
		const n = 5000
		m.submit(n)
		time.Sleep(20 * time.Second)
		first := n - m.left()
		time.Sleep(20 * time.Second)
		second := n - m.left() - first
		// This server does 47 a second for two callers, 25 for eight, and 32 callers wait
		// for over ten seconds each. One second of latency is tolerated: thirteen callers.
		if second < 20*10 {
			t.Errorf("%d starts in the first 20 s, %d in the next", first, second)
		}
		c.set(func() {
			for id, times := range c.starts {
				if times > 1 {
					t.Errorf("%s was started %d times", id, times)
				}
			}
		})
	})
}

// A tenant's only job waits neither for the jobs of a tenant that floods the server nor
// for the calls that this tenant's jobs wait for.
func TestATenantsOnlyJobStartsSoonDuringAFlood(t *testing.T) {
	t.Parallel()
	c := newCrowd(50, 8)
	simulate(t, c, func(t *testing.T, m *memory, _ *dispatch.Dispatcher) {
		m.submit(1500)
		time.Sleep(10 * time.Second)
		for range 10 {
			id := m.submitOf("small", 1)[0]
			began := time.Now()
			for m.waits(id) {
				time.Sleep(10 * time.Millisecond)
			}
			if took := time.Since(began); took > time.Second {
				t.Errorf("the job was started after %s", took)
			}
			time.Sleep(500 * time.Millisecond)
		}
		if m.left() == 0 {
			t.Error("no flood was left to wait for")
		}
	})
}

// While the database has no turn for first steps, jobs wait in the queue in which tenants
// take turns, and not behind each other's first steps.
func TestStartsWaitForTheDatabaseInTurnByTenant(t *testing.T) {
	t.Parallel()
	simulate(t, newCrowd(50, 8), func(t *testing.T, m *memory, _ *dispatch.Dispatcher) {
		turns := m.crowd()
		defer close(turns)
		m.submit(100)
		time.Sleep(10 * time.Second)
		small := m.submitOf("small", 1)[0]
		time.Sleep(10 * time.Second)
		if left, waiting := m.left(), m.awaits(); left != 101 || waiting != 1 {
			t.Fatalf("of 101 jobs %d are left, and %d starts wait for the database, want all and one", left, waiting)
		}
		turns <- struct{}{}
		turns <- struct{}{}
		time.Sleep(10 * time.Second)
		if m.waits(small) || m.left() != 99 {
			t.Errorf("after two turns %d jobs are left, the other tenant's among them: %v", m.left(), m.waits(small))
		}
	})
}

func TestEndsOvertakeStarts(t *testing.T) {
	t.Parallel()
	c := newCrowd(20, 1000)
	simulate(t, c, func(t *testing.T, m *memory, x *dispatch.Dispatcher) {
		m.submit(2000)
		time.Sleep(10 * time.Second)
		c.set(func() { c.log = nil })
		ids := make([]berth.JobID, 40)
		for i := range ids {
			ids[i] = berth.NewJobID(time.Now())
		}
		x.Poke(ids...)
		time.Sleep(20 * time.Second)
		c.set(func() {
			starts, pokes := 0, 0
			for _, what := range c.log {
				switch what {
				case "start":
					starts++
				case "poke":
					pokes++
				}
				if pokes == len(ids) {
					break
				}
			}
			if pokes < len(ids) || starts > 40 { // those in flight, and one in sixteen
				t.Errorf("%d of %d pokes were sent after %d starts", pokes, len(ids), starts)
			}
		})
	})
}

func TestNoStartIsLostAndNoneIsRepeatedUnseen(t *testing.T) {
	t.Parallel()
	c := newCrowd(200, 1000)
	luck := rand.New(rand.NewPCG(1, 2))
	c.fail = func(what string) (before, after error) {
		switch luck.IntN(6) {
		case 0:
			return serviceerror.NewResourceExhausted(enumspb.RESOURCE_EXHAUSTED_CAUSE_SYSTEM_OVERLOADED, "busy"), nil
		case 1:
			return nil, serviceerror.NewDeadlineExceeded("done, and the answer was lost")
		}
		return nil, nil
	}
	simulate(t, c, func(t *testing.T, m *memory, _ *dispatch.Dispatcher) {
		c.began = nil // the first steps are late: rows stay submitted
		ids := m.submit(300)
		time.Sleep(10 * time.Minute)
		c.set(func() {
			for _, id := range ids {
				if n := c.starts[berth.JobWorkflowID(id)]; n != 1 {
					t.Errorf("%s: %d starts came through", id, n)
				}
			}
		})
	})
}

func TestAnOutageCostsNoMoreCallsThanTheBudget(t *testing.T) {
	t.Parallel()
	for name, hangs := range map[string]bool{"refused": false, "hangs": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCrowd(100, 16)
			simulate(t, c, func(t *testing.T, m *memory, x *dispatch.Dispatcher) {
				flood(m, 20, 10*time.Second)
				c.set(func() {
					if c.arrived = 0; hangs {
						c.capacity = 0
						return
					}
					c.fail = func(string) (error, error) { return serviceerror.NewUnavailable("connection refused"), nil }
				})
				m.submit(500)
				const minutes = 10
				for range minutes * 60 {
					x.Poke(berth.NewJobID(time.Now()))
					time.Sleep(time.Second)
				}
				c.set(func() {
					// A probe a second while it is down, one repeat a second and those in
					// flight when it began; without the budget it is thousands.
					if most := 2*minutes*60 + 100; c.arrived > most {
						t.Errorf("%d calls in %d minutes, want at most %d", c.arrived, minutes, most)
					}
					c.fail, c.capacity = nil, 100
				})
				if took, ok := drained(m, 45*time.Second); !ok {
					t.Errorf("%d of 500 jobs wait %s after the outage", m.left(), took)
				}
			})
		})
	}
}

// A server that answers all but starts seems well, so that only the budget keeps
// their repeats few.
func TestStartsThatFailOnAServerThatAnswersAreRepeatedByTheBudget(t *testing.T) {
	t.Parallel()
	c := newCrowd(200, 1000)
	simulate(t, c, func(t *testing.T, m *memory, x *dispatch.Dispatcher) {
		const jobs, seconds = 500, 600
		c.set(func() {
			c.arrived = 0
			c.fail = func(what string) (error, error) {
				if what != "start" {
					return nil, nil
				}
				return serviceerror.NewResourceExhausted(enumspb.RESOURCE_EXHAUSTED_CAUSE_SYSTEM_OVERLOADED, "busy"), nil
			}
		})
		m.submit(jobs)
		for range seconds {
			x.Poke(berth.NewJobID(time.Now()))
			time.Sleep(time.Second)
		}
		c.set(func() {
			// Each job's first start, the pokes, and for each repeat a look and a start:
			// ten at once, one a second, and one for ten pokes.
			if most := jobs + seconds + 2*(10+seconds+seconds/10) + 100; c.arrived > most {
				t.Errorf("%d calls, want at most %d", c.arrived, most)
			}
			c.fail = nil
		})
		if took, ok := drained(m, 90*time.Second); !ok {
			t.Errorf("%d jobs wait %s after starts work again", m.left(), took)
		}
	})
}

func TestStartsWaitWhileAdmissionIsPausedAndPokesDoNot(t *testing.T) {
	t.Parallel()
	c := newCrowd(100, 16)
	simulate(t, c, func(t *testing.T, m *memory, x *dispatch.Dispatcher) {
		m.press(db.Pressure{Paused: true})
		m.hub.Publish(db.TopicAdmission, "")
		time.Sleep(time.Second)
		m.submit(300)
		x.Poke(berth.NewJobID(time.Now()))
		time.Sleep(10 * time.Minute)
		c.set(func() {
			if len(c.starts) != 0 || !slices.Contains(c.log, "poke") {
				t.Errorf("%d starts while paused; %d calls", len(c.starts), len(c.log))
			}
		})
		m.press(db.Pressure{})
		m.hub.Publish(db.TopicAdmission, "")
		if took, ok := drained(m, 20*time.Second); !ok {
			t.Errorf("%d jobs wait %s after the resumption", m.left(), took)
		}
	})
}

func TestStartsMakeRoomForEndsThatWait(t *testing.T) {
	t.Parallel()
	c := newCrowd(100, 1000)
	simulate(t, c, func(t *testing.T, m *memory, _ *dispatch.Dispatcher) {
		m.submit(4000)
		time.Sleep(5 * time.Second)
		for i := range 50 { // ends pile up
			m.press(db.Pressure{Unsettled: min(1000, 300+50*i)})
			time.Sleep(500 * time.Millisecond)
		}
		before := m.left()
		time.Sleep(5 * time.Second)
		if n := before - m.left(); n > 100 {
			t.Errorf("%d starts in 5 s while more and more ends wait", n)
		}
		m.press(db.Pressure{})
		if took, ok := drained(m, 60*time.Second); !ok {
			t.Errorf("%d jobs wait %s after the last end was settled", m.left(), took)
		}
	})
}
