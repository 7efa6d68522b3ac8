package proof_test

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"berth"
)

// lane is a cluster that shares the servers of a stack: a berthd and two machines with a database and a Temporal
// namespace of their own. Machine steady polls as agents do by default, machine brisk as one with a short fence.
type lane struct {
	*stack
	of        *stack
	namespace string // "": the stack's
	beside    *pgxpool.Pool
	leases    *leaseWatch
	stalls    *stalls
	lasting   []berth.JobID
}

// newLane prepares a lane without processes. The first one uses the stack's own database and namespace.
func (s *stack) newLane(number int) *lane {
	s.t.Helper()
	name := fmt.Sprintf("lane%d", number)
	l := &lane{of: s, stack: &stack{t: s.t, dir: filepath.Join(s.dir, name), image: "testprog", dev: s.dev, at: s.at}}
	if err := os.Mkdir(l.dir, 0o755); err != nil {
		s.t.Fatal(err)
	}
	if number == 0 {
		return l
	}
	s.query("CREATE DATABASE " + name)
	u, err := url.Parse(s.at.DatabaseURL)
	if err != nil {
		s.t.Fatal(err)
	}
	u.Path, l.namespace = "/"+name, name
	l.at.DatabaseURL = u.String()
	out, err := exec.CommandContext(s.t.Context(), program(s.t, "berthd"), "namespace", "create",
		"--temporal-address", s.at.Temporal, "--temporal-namespace", name).CombinedOutput()
	if err != nil {
		s.t.Fatalf("create namespace %s: %v: %s", name, err, out)
	}
	return l
}

// start starts the lane for a test, unless it runs already, and returns once its jobs run.
func (l *lane) start(t *testing.T) {
	t.Helper()
	l.t = t
	if l.beside != nil {
		return
	}
	var flags []string
	if l.namespace != "" {
		flags = []string{"--temporal-namespace", l.namespace}
	}
	root := l.of.t // the lane lives as long as the stack
	l.t = root
	root.Cleanup(l.stop)
	r := l.startReplicas(1, flags...)
	l.connect("http://"+r.all[0].listen, r.all[0].token)
	l.machines = 2
	agent := []string{"--runtime", "fake", "--no-gpus", "--cpus", "64"}
	l.agent("steady", r.all[0].listen, append(agent, "--host-boot", "boot-steady")...)
	l.agent("brisk", r.all[0].listen, append(agent, "--host-boot", "boot-brisk", "--sync-wait", briskWait.String())...)
	l.awaitMachines()
	var err error
	if l.beside, err = pgxpool.New(root.Context(), l.at.DatabaseURL); err != nil {
		root.Fatal(err)
	}
	root.Cleanup(l.beside.Close)
	l.startLasting()
	l.leases, l.stalls = l.watchLeases(), l.watchStalls()
	l.t = t
}

// stop checks the history of the lane and stops its processes.
func (l *lane) stop() {
	l.t = l.of.t
	l.verify()
	for _, p := range slices.Backward(l.others) {
		if err := p.end(syscall.SIGTERM); err != nil {
			l.t.Errorf("a program did not end in order: %v", err)
		}
	}
	if l.api != nil {
		l.api.Close()
	}
	if l.t.Failed() {
		logs, _ := filepath.Glob(filepath.Join(l.dir, "*.log")) // the pattern is well-formed
		for _, path := range logs {
			l.t.Logf("%s:\n%s", path, tail(path))
		}
	}
}

// leaseWatch measures how old the leases of a lane's machines become.
type leaseWatch struct {
	mu   sync.Mutex
	last map[berth.MachineID]time.Time     // the latest renewal seen
	gaps map[berth.MachineID]time.Duration // greatest time between two renewals, or since the last one
}

// leaseLook is the time between two looks at the leases. A renewal is seen if it comes later than that after the one
// before.
const leaseLook = 100 * time.Millisecond

// watchLeases watches the leases until the test ends. While machine_leases is locked, it sees nothing.
func (l *lane) watchLeases() *leaseWatch {
	w := &leaseWatch{last: map[berth.MachineID]time.Time{}, gaps: map[berth.MachineID]time.Duration{}}
	ctx, cancel := context.WithCancel(context.Background())
	var looking sync.WaitGroup
	t := l.t
	looking.Go(func() {
		tick := time.NewTicker(leaseLook)
		defer tick.Stop()
		for {
			rows, _ := l.beside.Query(ctx, `
				SELECT machine_id, seen_at, clock_timestamp() - seen_at FROM machine_leases`)
			seen, err := pgx.CollectRows(rows, pgx.RowToStructByPos[leaseSeen]) // also the error of the query
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				t.Errorf("look at the leases: %v", err)
				return
			}
			w.note(seen)
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	})
	t.Cleanup(func() { cancel(); looking.Wait() })
	return w
}

// leaseSeen is a lease as seen once.
type leaseSeen struct {
	Machine berth.MachineID
	At      time.Time // of the last renewal
	Age     time.Duration
}

// note adds one look.
func (w *leaseWatch) note(seen []leaseSeen) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range seen {
		gap := s.Age
		if last, ok := w.last[s.Machine]; ok {
			gap = max(gap, s.At.Sub(last))
		}
		w.last[s.Machine], w.gaps[s.Machine] = s.At, max(w.gaps[s.Machine], gap)
	}
}

// take returns the greatest times between renewals since the last call of take.
func (w *leaseWatch) take() map[berth.MachineID]time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	taken := maps.Clone(w.gaps)
	clear(w.gaps)
	return taken
}
