package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	temporal "go.temporal.io/sdk/client"
	"golang.org/x/sync/errgroup"

	"berth"
	"berth/api/client"
	"berth/e2e/commands"
	"berth/e2e/faultproxy"
	"berth/internal/control/cloud/faultcloud"
	"berth/internal/devstack/postgres"
	"berth/internal/lib/failpoint"
	"berth/spec"
	"berth/workers"
)

// How the stack is set up.
const (
	placeAgents = 2               // machines of a place that may lose one, so that lost work goes elsewhere
	suspect     = 3 * time.Second // silence of a machine before it gets no work
	lost        = 5 * time.Second // and before its work is given up; lost_after of jobs that are to lose their machine
	grace       = 4 * time.Second // after an outage of both APIs; work that is not to be lost waits for longer
	syncWait    = time.Second     // of agents' calls, far below both
	reconcile   = 500 * time.Millisecond
	databaseURL = "berth"
)

// stack is everything that runs.
type stack struct {
	t    *testing.T
	dir  string
	bin  string
	lock *os.File

	postgres      *postgres.Cluster
	databaseProxy *faultproxy.Proxy // berthd's way to PostgreSQL
	database      *pgxpool.Pool     // ours, for looking only; past the proxy

	temporal      *program
	temporalProxy *faultproxy.Proxy
	workflows     temporal.Client

	shared *engine // of the agents that are killed
	engine *engine // of the machine whose engine is killed

	plane  map[failpoint.Process][]*program // the control plane's processes, by role
	agents map[string][]*program            // by place
	front  *faultproxy.Proxy                // in front of both APIs
	api    *client.Client
	token  string

	cloud     *faultcloud.Cloud // of the machines that berthd launches
	cloudFile string            // format of the file of --cloud, with the program and the cloud's file
	env       []string          // of the control plane, besides its secrets
	silence   []string          // flags of the control plane: after which silence machines are given up

	byHand chan string // free schedules without a clock

	turns    sync.Map   // *sync.Mutex by process and failpoint
	breaking sync.Mutex // held while a service that all jobs need is away

	mu     sync.Mutex
	faults []error // all failures, logged once more at the end: a log may be cut to its tail
}

// fail fails the test.
func (s *stack) fail(err error) {
	s.t.Helper()
	s.t.Error(err)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.faults) == 0 {
		s.t.Log(s.autopsy())
	}
	s.faults = append(s.faults, err)
}

// newStack returns a stack of which nothing runs yet.
func newStack(t *testing.T) *stack {
	t.Helper()
	dir, err := os.MkdirTemp(workshops, "berth-chaos-")
	if err != nil {
		t.Fatal(err)
	}
	s := &stack{t: t, dir: dir, bin: filepath.Join(dir, "bin"), plane: map[failpoint.Process][]*program{}, agents: map[string][]*program{},
		cloudFile: fmt.Sprintf(cloudFile, filepath.Join(dir, "offers.csv")), silence: []string{"--suspect-after", suspect.String(), "--lost-after", lost.String(), "--lost-share", "1"}}
	t.Cleanup(s.remove)
	if s.lock, err = lockWorkshop(dir); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chmod(dir, 0o755), s.sells()); err != nil {
		t.Fatal(err)
	}
	return s
}

func startStack(t *testing.T) *stack {
	t.Helper()
	s := newStack(t)
	began := time.Now()
	var setUp errgroup.Group
	setUp.Go(s.build)
	setUp.Go(s.startServers)
	s.shared, s.engine = startEngine(t, s.dir, "shared"), startEngine(t, s.dir, "own")
	t.Cleanup(s.end)
	if err := setUp.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Logf("programs, PostgreSQL, Temporal and engines after %s", since(began))
	if err := s.startPlane(); err != nil {
		t.Fatal(err)
	}
	if err := s.startAgents(); err != nil {
		t.Fatal(err)
	}
	if err := s.makeSchedules(); err != nil {
		t.Fatal(err)
	}
	t.Logf("everything runs after %s", since(began))
	return s
}

func since(t time.Time) time.Duration { return time.Since(t).Round(100 * time.Millisecond) }

// build builds the programs with failpoints.
func (s *stack) build() error {
	return commands.Build(s.bin, commands.Failpoints, "berthd", "berth-agent", "berth-check", "e2e/faultcloud")
}

func (s *stack) startServers() error {
	ctx := context.Background()
	var err error
	s.postgres, err = postgres.Start(ctx, postgres.Options{Dir: filepath.Join(s.dir, "postgres"), MaxConnections: 400, Volatile: true})
	if err != nil {
		return err
	}
	if err := s.postgres.CreateDatabase(ctx, databaseURL); err != nil {
		return err
	}
	if s.databaseProxy, err = faultproxy.Start(fmt.Sprintf("127.0.0.1:%d", s.postgres.Port())); err != nil {
		return err
	}
	if s.database, err = pgxpool.New(ctx, s.postgres.URL(databaseURL)); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if s.temporalProxy, err = faultproxy.Start(); err != nil {
		return err
	}
	address := filepath.Join(s.dir, "temporal.address")
	s.temporal = &program{
		name: "temporal", dir: s.dir, path: self,
		env: []string{temporalURL + "=" + s.postgres.URL("postgres"), temporalFile + "=" + address},
		answers: func() error {
			b, err := os.ReadFile(address)
			if err != nil {
				return err
			}
			s.temporalProxy.SetTargets(string(b))
			return os.Remove(address)
		},
	}
	if err := s.temporal.up(); err != nil {
		return err
	}
	s.workflows, err = workers.Dial(workers.ClientOptions{Address: s.temporalProxy.Address()})
	return err
}

// startPlane starts every role of the control plane twice. The process that has accepted a submit
// starts its workflow, so that role goes with the API.
func (s *stack) startPlane() error {
	s.token = "berth_" + berth.NewSecret()[:12] + "_" + berth.NewSecret()
	url := strings.Replace(s.postgres.URL(databaseURL), fmt.Sprintf("127.0.0.1:%d", s.postgres.Port()), s.databaseProxy.Address(), 1)
	cloud, err := s.cloudArgs()
	if err != nil {
		return err
	}
	var apis []string
	var up errgroup.Group
	for i, role := range map[failpoint.Process]string{failpoint.API: "api,dispatch", failpoint.Worker: "worker", failpoint.Leader: "leader"} {
		for _, n := range []string{"a", "b"} {
			p := &program{
				name: string(i) + "-" + n, dir: s.dir, path: filepath.Join(s.bin, "berthd"),
				env: append([]string{"BERTH_ADMIN_TOKEN=" + s.token, "BERTH_DATABASE_URL=" + url}, s.env...),
				args: slices.Concat([]string{
					"--role", role, "--temporal-address", s.temporalProxy.Address(),
					"--blob-url", "file://" + filepath.Join(s.dir, "blobs"), "--database-conns", "12",
					"--grace", grace.String(), "--reconcile-every", reconcile.String(), "--rate", "100000", "--burst", "100000", "--submit-rate", "0",
				}, s.silence, cloud),
			}
			switch i {
			case failpoint.Leader:
				p.args = append(p.args, "--log-level", "debug") // logs the reconciler's passes
			case failpoint.API:
				listen, err := commands.Address()
				if err != nil {
					return err
				}
				apis = append(apis, listen)
				p.args = append(p.args, "--listen", listen, "--peer-url", "http://"+listen)
				p.answers = func() error { return ready("http://" + listen) }
			}
			s.plane[i] = append(s.plane[i], p)
		}
	}
	// One API first: it migrates the database, and the others find it done.
	if err := s.plane[failpoint.API][0].up(); err != nil {
		return err
	}
	for _, programs := range s.plane {
		for _, p := range programs {
			if !p.running() {
				up.Go(p.up)
			}
		}
	}
	if err := up.Wait(); err != nil {
		return err
	}
	front, err := faultproxy.Start(apis...)
	if err != nil {
		return err
	}
	s.front = front
	s.api = client.New("http://"+s.front.Address(), s.token)
	return nil
}

// ready asks an API whether it is.
func ready(url string) error {
	c := http.Client{Timeout: 2 * time.Second}
	defer c.CloseIdleConnections()
	res, err := c.Get(url + "/healthz")
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return errors.New(res.Status)
	}
	return nil
}

func (s *stack) startAgents() error {
	for i := range agentPlaces {
		for range placeAgents {
			s.addAgent(agentPlace(i), s.shared)
		}
	}
	for range 2 * placeAgents { // two cells at a time
		s.addAgent(lossLane, s.shared)
	}
	for i := range deafPlaces {
		s.addAgent(deafPlace(i), s.shared)
	}
	for i := range gangPlaces {
		for j := range gangMembers {
			s.addAgent(gangPlace(i), s.shared, gangNetwork(i*gangMembers+j)...)
		}
	}
	for _, place := range []string{string(failpoint.API), string(failpoint.Worker), string(failpoint.Leader), calmPlace} {
		s.addAgent(place, s.shared)
	}
	s.addAgent(enginePlace, s.engine)
	var up errgroup.Group
	for _, place := range s.agents {
		for _, p := range place {
			up.Go(func() error {
				err := await("a join token is made", func() error {
					join, err := s.api.CreateJoinToken(context.Background(), spec.NewJoinToken{})
					p.env = []string{"BERTH_JOIN_TOKEN=" + join.Secret}
					return lasting(err)
				})
				if err != nil {
					return err
				}
				return p.up()
			})
		}
	}
	return up.Wait()
}

func (s *stack) addAgent(place string, e *engine, more ...string) {
	name := fmt.Sprintf("m%s-%d", place, len(s.agents[place])+1)
	s.agents[place] = append(s.agents[place], &program{
		name: name, dir: s.dir, path: filepath.Join(s.bin, "berth-agent"),
		args: append([]string{
			"--server", "http://" + s.front.Address(),
			"--machine", name, "--labels", "lane=" + place, "--docker-host", e.daemon.Host(),
			"--state-dir", filepath.Join(s.dir, "agents", name), "--cpus", "64", "--memory", "64GiB", "--disk", "64GiB", "--no-gpus",
			"--sync-wait", syncWait.String(), "--deadman", "off", "--notices", "file=" + s.noticePath(name),
		}, more...),
		answers: func() error {
			m, err := s.api.Machine(context.Background(), berth.MachineID(name))
			if err == nil && m.State != berth.MachineReady && !s.drainedFor(m) {
				err = fmt.Errorf("machine %s is %s", name, m.State)
			}
			return err
		},
	})
}

// programs are all that can be killed.
func (s *stack) programs() []*program { return append(byName(s.plane), byName(s.agents)...) }

// byName lists programs in an order that a seed replays.
func byName[K comparable](programs map[K][]*program) []*program {
	var all []*program
	for _, list := range programs {
		all = append(all, list...)
	}
	slices.SortFunc(all, func(a, b *program) int { return strings.Compare(a.name, b.name) })
	return all
}

// mend brings everything back that failed cells may have left broken.
func (s *stack) mend() error {
	for _, p := range []*faultproxy.Proxy{s.front, s.databaseProxy, s.temporalProxy} {
		p.Heal()
	}
	ctx := context.Background()
	faults := []error{s.postgres.Restart(ctx), s.engine.daemon.Restart(ctx), s.temporal.up()}
	for _, p := range s.programs() {
		p.signal(syscall.SIGCONT)
		faults = append(faults, p.up())
	}
	return errors.Join(faults...)
}

// end ends all programs.
func (s *stack) end() {
	var ending sync.WaitGroup
	for _, p := range s.programs() {
		ending.Go(func() { _ = p.end(syscall.SIGKILL) })
	}
	ending.Wait()
}

// remove ends the servers and removes all that is left.
func (s *stack) remove() {
	if s.api != nil {
		s.api.Close()
	}
	if s.workflows != nil {
		s.workflows.Close()
	}
	if s.temporal != nil {
		_ = s.temporal.end(syscall.SIGKILL)
	}
	for _, p := range []*faultproxy.Proxy{s.front, s.databaseProxy, s.temporalProxy} {
		if p != nil {
			_ = p.Close()
		}
	}
	if s.database != nil {
		s.database.Close()
	}
	if s.postgres != nil {
		_ = s.postgres.Stop(context.Background())
	}
	if err := os.RemoveAll(s.dir); err != nil {
		s.t.Errorf("clean up: %v", err)
	}
	if s.lock != nil {
		_ = s.lock.Close()
	}
	for _, err := range s.faults {
		fmt.Println("chaos:", err)
	}
}
