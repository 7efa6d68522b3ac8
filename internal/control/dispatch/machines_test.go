package dispatch_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.temporal.io/sdk/client"

	"berth"
	"berth/db"
	"berth/db/dbtest"
	"berth/internal/control/cloud"
	"berth/internal/control/dispatch"
)

// signals notes the workflows that are started or poked.
type signals struct {
	mu  sync.Mutex
	ids []string
	got chan struct{}
}

func (s *signals) SignalWithStartWorkflow(_ context.Context, id, signal string, _ any, o client.StartWorkflowOptions,
	_ any, _ ...any) (client.WorkflowRun, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if signal == berth.SignalPoke && o.ID == id {
		s.ids = append(s.ids, id)
	}
	select {
	case s.got <- struct{}{}:
	default:
	}
	return nil, nil
}

func request(t *testing.T, d *db.DB, id berth.MachineID) {
	t.Helper()
	_, err := d.Launches.Request(t.Context(), cloud.Request{Pool: "p", Provider: "test",
		Offering: cloud.Offering{Region: "r", Type: "x", Market: cloud.Spot}}, []berth.MachineID{id}, "", "user:test")
	if err != nil {
		t.Fatal(err)
	}
}

func TestTheWorkflowOfALaunchIsStartedByAHintAndByTheSweep(t *testing.T) {
	t.Parallel()
	url := dbtest.URL(t)
	d := dbtest.Open(t, url, db.Options{})
	request(t, d, "lost") // its hint has no listener
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if _, err := pool.Exec(t.Context(), `UPDATE launches SET due_at = now() - interval '1 minute'`); err != nil {
		t.Fatal(err)
	}
	s := &signals{got: make(chan struct{}, 1)}
	x := dispatch.New(newServer(), d, never)
	m := dispatch.NewMachines(x.Calls, s, d.Launches, d.Hub(), slog.New(slog.DiscardHandler))
	dispatch.SweepMachinesEvery(m, 10*time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { _ = m.Run(ctx) })
	defer done.Wait()
	defer cancel()
	until := func(what string, want ...string) {
		t.Helper()
		for deadline := time.After(time.Minute); ; {
			s.mu.Lock()
			ok := len(s.ids) == len(want)
			for i := range want {
				ok = ok && s.ids[i] == want[i]
			}
			ids := s.ids
			s.mu.Unlock()
			if ok {
				return
			}
			select {
			case <-s.got:
			case <-deadline:
				t.Fatalf("%s: poked %v, want %v", what, ids, want)
			}
		}
	}
	until("the sweep", "machine/lost")
	request(t, d, "new")
	until("the hint", "machine/lost", "machine/new")
}

// slowMachine answers no call for one machine until it is released.
type slowMachine struct {
	signals
	slow    string
	once    sync.Once
	waits   chan struct{} // closed once the first call for the slow machine has come
	release chan struct{}
}

func (s *slowMachine) SignalWithStartWorkflow(ctx context.Context, id, signal string, arg any,
	o client.StartWorkflowOptions, workflow any, args ...any) (client.WorkflowRun, error) {
	if id == s.slow {
		s.once.Do(func() { close(s.waits) })
		<-s.release // a call that hangs ends at no deadline of the caller
	}
	return s.signals.SignalWithStartWorkflow(ctx, id, signal, arg, o, workflow, args...)
}

func TestASlowCallForOneMachineDelaysNoOther(t *testing.T) {
	t.Parallel()
	d := dbtest.DB(t, db.Options{})
	s := &slowMachine{signals: signals{got: make(chan struct{}, 1)}, slow: "machine/slow",
		waits: make(chan struct{}), release: make(chan struct{})}
	x := dispatch.New(newServer(), d, never)
	m := dispatch.NewMachines(x.Calls, s, d.Launches, d.Hub(), slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { _ = m.Run(ctx) })
	defer done.Wait()
	defer cancel()
	release := sync.OnceFunc(func() { close(s.release) })
	defer release()
	request(t, d, "slow")
	await := func(what string, c chan struct{}) {
		t.Helper()
		select {
		case <-c:
		case <-time.After(time.Minute):
			t.Fatal(what)
		}
	}
	await("the slow machine is not called", s.waits)
	request(t, d, "quick")
	await("a machine waits for the slow call of another one", s.got)
	release()
	await("the slow machine is not poked", s.got)
}
