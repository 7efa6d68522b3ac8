package agent_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"berth"
	"berth/activities/node/fakeruntime"
	"berth/activities/node/runtimetest/prog"
	"berth/internal/machine/agent"
	"berth/internal/machine/notice"
	"berth/spec"
)

var noticeTimes = flag.Bool("notice-times", false, "measure notices until 99 of 100 are signaled within 3 seconds")

// Of the measurement of notices.
const (
	noticedMachines = 20              // agents at the same time
	noticesOfEach   = 5               // notices of each machine in one measurement
	signalLimit     = 3 * time.Second // from a notice to the signal in the container, for 99 of 100 notices
)

// noticedMachine is an agent with the times of production, which asks a metadata service of EC2's form each second.
type noticedMachine struct {
	*machine
	signaled chan time.Time // the program has its checkpoint signal

	mu     sync.Mutex
	action string // content of spot/instance-action; "": 404
}

// ServeHTTP answers as the metadata service does.
func (m *noticedMachine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case r.Method == http.MethodPut:
		fmt.Fprint(w, "token")
	case strings.HasSuffix(r.URL.Path, "/spot/instance-action") && m.action != "":
		fmt.Fprint(w, m.action)
	default:
		http.Error(w, "Not Found", http.StatusNotFound)
	}
}

// show changes the content of spot/instance-action, and returns the time from which it is readable.
func (m *noticedMachine) show(action string) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.action = action
	return time.Now()
}

// noticedMachine joins a machine on which a job runs that notes its signals.
func (s *site) noticedMachine(id berth.MachineID) *noticedMachine {
	s.t.Helper()
	m := &noticedMachine{signaled: make(chan time.Time, 100)}
	started := make(chan struct{})
	fake := fakeruntime.New(fakeruntime.Options{Program: func(ctx context.Context, p *prog.Process) int {
		signals := p.Catch("SIGUSR1")
		close(started)
		for {
			select {
			case <-signals:
				m.signaled <- time.Now()
			case <-ctx.Done():
				return 0
			}
		}
	}})
	s.t.Cleanup(fake.Shutdown)
	m.machine = s.machineOn(id, fake)
	m.runtime = fake
	service := httptest.NewServer(m)
	s.t.Cleanup(service.Close)
	m.cfg.Timing, m.cfg.Notices = agent.Timing{}, notice.NewEC2(service.URL)
	m.restart()
	m.run(s.submit(func(j *spec.Job) { j.Checkpoint = &spec.CheckpointPolicy{Path: "/checkpoint", Signal: "SIGUSR1"} }, "wait"))
	select {
	case <-started:
	case <-time.After(patience):
		s.t.Fatalf("the job on machine %s does not start", id)
	}
	return m
}

// reaction announces the end of the machine at some moment of the agent's second, and returns the time until the
// signal. Each deadline is another notice.
func (m *noticedMachine) reaction(deadline time.Time) (time.Duration, error) {
	time.Sleep(time.Duration(rand.Int64N(int64(time.Second))))
	withdrawn := strings.Count(m.logs.text(), "cloud withdrew its notice")
	shown := m.show(fmt.Sprintf(`{"action": "terminate", "time": %q}`, deadline.UTC().Format(time.RFC3339)))
	limit := time.After(patience)
	var took time.Duration
	select {
	case at := <-m.signaled:
		took = at.Sub(shown)
	case <-limit:
		return 0, fmt.Errorf("machine %s: no signal for the notice", m.id)
	}
	m.show("")
	for strings.Count(m.logs.text(), "cloud withdrew its notice") == withdrawn {
		select {
		case <-limit:
			return 0, fmt.Errorf("machine %s does not see that the notice is withdrawn", m.id)
		case <-time.After(20 * time.Millisecond):
		}
	}
	if n := len(m.signaled); n > 0 {
		return 0, fmt.Errorf("machine %s: %d more signals for one notice", m.id, n)
	}
	return took, nil
}

// Every notice is signaled, whether or not the control plane can be reached. With -notice-times 99 of 100 are signaled
// within signalLimit: a host that is busy with other tests may delay everything.
func TestTheTimeFromANoticeToTheSignal(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	machines := make([]*noticedMachine, noticedMachines)
	for i := range machines {
		machines[i] = s.noticedMachine(berth.MachineID(fmt.Sprintf("m%d", i+1)))
	}
	deadline := time.Now().Add(time.Hour)
	for _, away := range []bool{false, true} {
		s.gate.closed.Store(away)
		s.until("notices are signaled in time", func() bool {
			all := make([][]time.Duration, len(machines))
			faults := make([]error, len(machines))
			var measured sync.WaitGroup
			for i, m := range machines {
				measured.Go(func() {
					for n := range noticesOfEach {
						took, err := m.reaction(deadline.Add(time.Duration(n) * time.Minute))
						if err != nil {
							faults[i] = err
							return
						}
						all[i] = append(all[i], took)
					}
				})
			}
			measured.Wait()
			for _, err := range faults {
				if err != nil {
					t.Fatal(err)
				}
			}
			deadline = deadline.Add(noticesOfEach * time.Minute)
			took := slices.Concat(all...)
			slices.Sort(took)
			p99 := took[(len(took)*99+99)/100-1]
			t.Logf("%d notices, control plane away %t: signaled after %s (p50), %s (p99), %s (longest)", len(took), away,
				took[len(took)/2].Round(time.Millisecond), p99.Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond))
			return !*noticeTimes || p99 <= signalLimit
		})
	}
}
