package control_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"berth"
	"berth/activities/control"
	"berth/db"
	"berth/db/dbtest"
	"berth/internal/control/cloud"
	"berth/internal/control/cloud/faultcloud"
	"berth/internal/lib/sealer"
	"berth/wire"
)

// site is a database, a cloud and the steps between them. Its clock stands ahead of the database's.
type site struct {
	t     *testing.T
	url   string
	keys  string // file
	db    *db.DB
	pool  *pgxpool.Pool
	cloud *faultcloud.Cloud

	mu    sync.Mutex
	ahead time.Duration
}

const vm = berth.MachineID("gpu-1")

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{t: t, url: dbtest.URL(t), keys: filepath.Join(t.TempDir(), "keys")}
	if err := sealer.Make(s.keys); err != nil {
		t.Fatal(err)
	}
	s.db = dbtest.Open(t, s.url, db.Options{})
	pool, err := pgxpool.New(t.Context(), s.url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s.pool = pool
	s.cloud = faultcloud.New(filepath.Join(t.TempDir(), "cloud"), func() time.Time { return s.clock(time.Now()) })
	return s
}

func (s *site) clock(t time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return t.Add(s.ahead)
}

// pass moves the clock.
func (s *site) pass(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ahead += d
}

func (s *site) exec(sql string, args ...any) {
	s.t.Helper()
	if _, err := s.pool.Exec(s.t.Context(), sql, args...); err != nil {
		s.t.Fatalf("%v\n%s", err, sql)
	}
}

// steps returns the steps of one replica.
func (s *site) steps(c cloud.Provider) *control.MachineSteps {
	s.t.Helper()
	keys, err := sealer.Load(s.keys)
	if err != nil {
		s.t.Fatal(err)
	}
	return control.NewMachines(control.MachineDeps{
		Launches: s.db.Launches, Machines: s.db.Machines, Sealer: keys, Clock: s.clock,
		Accounts: cloud.Accounts{URL: "https://berth.test", Providers: map[string]cloud.Account{"test": {Provider: c}}},
	})
}

func (s *site) step() wire.MachineStepResult {
	s.t.Helper()
	result, err := s.steps(s.cloud).Step(s.t.Context(), wire.MachineInput{Machine: vm})
	if err != nil {
		s.t.Fatal(err)
	}
	return result
}

// launch requests the launch of the machine.
func (s *site) launch() cloud.Record {
	s.t.Helper()
	list, err := s.db.Launches.Request(s.t.Context(), cloud.Request{Pool: "burst", Provider: "test",
		Offering: cloud.Offering{Region: "r", Type: "big", Market: cloud.OnDemand}}, []berth.MachineID{vm}, "", "user:test")
	if err != nil {
		s.t.Fatal(err)
	}
	return list[0]
}

func (s *site) stop() {
	s.t.Helper()
	_, err := s.db.Launches.Change(s.t.Context(), cloud.Ref{Machine: vm},
		func(r cloud.Record, now time.Time) (cloud.Record, error) {
			return r.WithStop(cloud.Stop{Actor: "user:test", Reason: "enough"}, now)
		})
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) row() cloud.Record {
	s.t.Helper()
	r, _, err := s.db.Launches.Current(s.t.Context(), vm)
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

func (s *site) is(want cloud.LaunchState) {
	s.t.Helper()
	if r := s.row(); r.State != want {
		s.t.Fatalf("launch is %s (%s; %s), want %s", r.State, r.Reason, r.Error, want)
	}
}

// script changes the cloud.
func (s *site) script(f func(c *faultcloud.State)) {
	s.t.Helper()
	if err := s.cloud.Change(f); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) seen() faultcloud.State {
	s.t.Helper()
	state, err := s.cloud.Read()
	if err != nil {
		s.t.Fatal(err)
	}
	return state
}

// one fails unless the cloud has one instance, for which every request was the same.
func (s *site) one() faultcloud.Instance {
	s.t.Helper()
	state := s.seen()
	if len(state.Instances) != 1 {
		s.t.Fatalf("%d instances: %+v", len(state.Instances), state.Instances)
	}
	for _, hash := range state.Hashes {
		if hash != state.Hashes[0] {
			s.t.Errorf("requests of one launch differ: %v", state.Hashes)
		}
	}
	return state.Instances[0]
}

// join lets the instance's agent join.
func (s *site) join(secret string, id berth.MachineID) error {
	_, _, err := s.db.JoinTokens.Join(s.t.Context(), secret, id)
	return err
}

// until repeats steps, with the clock moved on by their pauses, until the launch is in the state.
func (s *site) until(want cloud.LaunchState) {
	s.t.Helper()
	for range 200 {
		result := s.step()
		if result.State == string(want) {
			return
		}
		s.pass(max(result.Wait.Std(), time.Second))
	}
	s.is(want)
}

func TestAMachineOfACloudFromRequestToGone(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.launch()
	s.step()
	s.is(cloud.LaunchRunning)
	vmRow := s.one()
	if err := s.join(vmRow.Join, "other"); berth.CodeOf(err) != berth.CodeForbidden {
		t.Errorf("another name joins: %v", err)
	}
	if err := s.join(vmRow.Join, vm); err != nil {
		t.Fatal(err)
	}
	if err := s.join(vmRow.Join, vm); err == nil {
		t.Error("the instance joins twice")
	}
	s.step()
	s.is(cloud.LaunchServing)
	s.exec(`UPDATE machines SET state = 'ready', cpu_m = 4000, mem_mb = 8192 WHERE id = 'gpu-1'`)
	s.exec(`INSERT INTO jobs (id, tenant, name, class, priority, preemptible, grace_ms, lost_after_ms, actor)
		VALUES ('01900000-0000-7000-8000-00000000000a', 'default', 'x', 'c', 500, true, 0, 90000, 'user:test')`)
	s.exec(`INSERT INTO allocations (job, attempt, rank, machine_id, machine_epoch, cpu_m, mem_mb, disk_mb, gpu_milli)
		VALUES ('01900000-0000-7000-8000-00000000000a', 1, 0, 'gpu-1', 1, 100, 100, 0, 0)`)
	s.stop()
	for range 20 {
		s.pass(s.step().Wait.Std())
	}
	s.is(cloud.LaunchDraining)
	if ends := s.seen().Ends; len(ends) > 0 {
		t.Fatalf("terminated with work on it: %v", ends)
	}
	s.exec(`UPDATE allocations SET state = 'released', released_at = now(), sealed_at = now(), forgotten_at = now()`)
	s.until(cloud.LaunchTerminating)
	if r := s.row(); r.MachineState != berth.MachineRetired {
		t.Errorf("machine is %s", r.MachineState)
	}
	s.until(cloud.LaunchGone)
	if r := s.row(); r.EndedLast.Sub(r.EndedFirst) < cloud.SettleTime || !r.DueAt.IsZero() {
		t.Errorf("gone: %+v", r)
	}
	if n := s.launch().N; n != 2 {
		t.Errorf("the next launch is %d", n)
	}
}

// The outcome of each fault: one instance, or none if the launch has failed.
func TestFaultsOfACloudNeverMakeASecondInstance(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		creates []faultcloud.Fault
		lag     time.Duration
		want    cloud.LaunchState
		made    int
	}{
		"unknown before":        {creates: []faultcloud.Fault{{Kind: cloud.Unknown}}, want: cloud.LaunchRunning, made: 1},
		"unknown after":         {creates: []faultcloud.Fault{{Kind: cloud.Unknown, After: true}}, want: cloud.LaunchRunning, made: 1},
		"always unknown before": {creates: make([]faultcloud.Fault, 0), want: cloud.LaunchUnresolved},
		"always unknown after":  {lag: 2 * time.Minute, want: cloud.LaunchRunning, made: 1},
		"no capacity":           {creates: []faultcloud.Fault{{Kind: cloud.Capacity}}, want: cloud.LaunchFailed},
		"no capacity, in doubt": {creates: []faultcloud.Fault{{Kind: cloud.Unknown}, {Kind: cloud.Capacity}, {Kind: cloud.Capacity}},
			want: cloud.LaunchFailed},
		"throttled": {creates: []faultcloud.Fault{{Kind: cloud.Throttle}, {Kind: cloud.Throttle}}, want: cloud.LaunchRunning, made: 1},
		"no rights": {creates: []faultcloud.Fault{{Kind: cloud.Auth}}, want: cloud.LaunchFailed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			if strings.HasPrefix(name, "always") {
				for range 20 {
					c.creates = append(c.creates, faultcloud.Fault{Kind: cloud.Unknown, After: c.made > 0})
				}
			}
			s.script(func(x *faultcloud.State) { x.Creates, x.Lag = c.creates, c.lag })
			s.launch()
			s.until(c.want)
			if n := len(s.seen().Instances); n != c.made {
				t.Errorf("%d instances, want %d", n, c.made)
			}
			if c.made == 1 {
				s.one()
			}
			closed, now, err := s.db.Launches.Breakers(t.Context(), s.row().Request())
			if open := len(closed) == 1 && closed[0].Open(now); err != nil || open != (c.want == cloud.LaunchFailed) {
				t.Errorf("breakers %+v, %v", closed, err)
			}
			_, err = s.db.Launches.Request(t.Context(), cloud.Request{Pool: "burst", Provider: "test",
				Offering: cloud.Offering{Region: "r", Type: "small", Market: cloud.Spot}}, []berth.MachineID{vm}, "", "user:test")
			if again := err == nil; again != c.want.Settled() {
				t.Errorf("launch again of a launch that is %s: %v", c.want, err)
			}
		})
	}
}

func TestTwoReplicasThatStepAtOnceMakeOneInstance(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.launch()
	inside, release := make(chan struct{}), make(chan struct{})
	slow := faultcloud.New(s.cloud.Path, s.cloud.Now)
	slow.Before = func() { close(inside); <-release }
	done := make(chan error, 1)
	go func() {
		_, err := s.steps(slow).Step(context.WithoutCancel(t.Context()), wire.MachineInput{Machine: vm})
		done <- err
	}()
	select {
	case <-inside: // the first replica has committed its send, and hangs in the call
	case err := <-done:
		t.Fatalf("the step ended before its call: %v", err)
	}
	s.pass(time.Minute)
	s.step()
	s.is(cloud.LaunchRunning)
	close(release)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if r := s.row(); s.one().ID != r.Instance || r.Sends != 2 {
		t.Errorf("row %+v", r)
	}
}

// TestDie is the process that the test below kills in a call of Create.
func TestDie(t *testing.T) {
	where := os.Getenv("BERTH_TEST_DIE")
	if where == "" {
		t.Skip("runs as a process of another test")
	}
	s := &site{t: t, url: os.Getenv("BERTH_TEST_URL"), keys: os.Getenv("BERTH_TEST_KEYS")}
	d, err := db.Open(t.Context(), s.url, db.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s.db = d
	c := faultcloud.New(os.Getenv("BERTH_TEST_CLOUD"), time.Now)
	die := func() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL); select {} }
	if where == "before" {
		c.Before = die
	} else {
		c.After = die
	}
	_, err = s.steps(c).Step(t.Context(), wire.MachineInput{Machine: vm})
	t.Errorf("still alive: %v", err)
}

func TestAProcessThatDiesInACreateLeavesOneInstance(t *testing.T) {
	t.Parallel()
	for where, made := range map[string]int{"before": 0, "after": 1} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.launch()
			for range 2 { // it dies twice
				s.pass(time.Minute)
				cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestDie$")
				cmd.Env = append(os.Environ(), "BERTH_TEST_DIE="+where, "BERTH_TEST_URL="+s.url, "BERTH_TEST_KEYS="+s.keys,
					"BERTH_TEST_CLOUD="+s.cloud.Path)
				out, err := cmd.CombinedOutput()
				if cmd.ProcessState == nil || !strings.Contains(cmd.ProcessState.String(), "killed") {
					t.Fatalf("the process was not killed: %v\n%s", err, out)
				}
				if n := len(s.seen().Instances); n != made {
					t.Fatalf("%d instances after the kill", n)
				}
				// The clock of the killed process is the database's.
				s.exec(`UPDATE launches SET last_sent_at = last_sent_at - interval '1 minute'`)
			}
			if r := s.row(); r.State != cloud.LaunchSent || r.Instance != "" || r.Sends != 2 {
				t.Fatalf("after the kills: %+v", r)
			}
			s.until(cloud.LaunchRunning)
			s.one()
		})
	}
}

func TestARequestWithAnotherHashIsNotSent(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.script(func(x *faultcloud.State) { x.Creates = []faultcloud.Fault{{Kind: cloud.Unknown}} })
	s.launch()
	s.step()
	r := s.row()
	keys, err := sealer.Load(s.keys)
	if err != nil {
		t.Fatal(err)
	}
	other := r.Launch()
	other.Offering.Type = "bigger"
	body := []byte(`{"token":"` + r.Token + `","offering":{"type":"bigger"}}`)
	_, sealed := keys.Seal("", "launch/"+r.Token, body)
	if _, err := s.pool.Exec(t.Context(), `UPDATE launches SET request = $1`, sealed); err == nil {
		t.Error("the database took another request for the token")
	}
	s.exec(`ALTER TABLE launches DISABLE TRIGGER launches_update`)
	s.exec(`UPDATE launches SET request = $1`, sealed)
	s.exec(`ALTER TABLE launches ENABLE TRIGGER launches_update`)
	s.pass(time.Minute)
	_, err = s.steps(s.cloud).Step(t.Context(), wire.MachineInput{Machine: vm})
	if err == nil || !strings.Contains(err.Error(), "nothing is sent") {
		t.Errorf("step: %v", err)
	}
	if n := len(s.seen().Hashes); n != 1 {
		t.Errorf("%d requests reached the cloud", n)
	}
}

func TestAnInstanceThatJoinsTooLateIsRefusedAndTerminated(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.launch()
	s.step()
	s.until(cloud.LaunchTerminating)
	if err := s.join(s.one().Join, vm); berth.CodeOf(err) != berth.CodeUnauthorized {
		t.Errorf("joins while it is being terminated: %v", err)
	}
	s.until(cloud.LaunchGone)
}

func TestATerminateThatIsIgnoredIsRepeated(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.script(func(x *faultcloud.State) { x.Ignore = 5 })
	s.launch()
	s.step()
	s.stop()
	s.until(cloud.LaunchGone)
	if n := len(s.seen().Ends); n != 6 {
		t.Errorf("%d calls of Terminate, want 6", n)
	}
}

func TestATerminateWhileTheCreateIsUnknownEndsTheInstance(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.script(func(x *faultcloud.State) {
		x.Creates, x.Lag = []faultcloud.Fault{{Kind: cloud.Unknown, After: true}}, time.Minute
	})
	s.launch()
	s.step()
	s.stop()
	s.until(cloud.LaunchGone)
	if x := s.one(); x.State != cloud.Terminated {
		t.Errorf("instance is %s", x.State)
	}
}

func TestAnInstanceThatTheCloudTakesReleasesItsWork(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.launch()
	s.step()
	if err := s.join(s.one().Join, vm); err != nil {
		t.Fatal(err)
	}
	s.step()
	s.exec(`UPDATE machines SET state = 'ready', cpu_m = 4000, mem_mb = 8192 WHERE id = 'gpu-1'`)
	s.exec(`INSERT INTO jobs (id, tenant, name, class, priority, preemptible, grace_ms, lost_after_ms, actor)
		VALUES ('01900000-0000-7000-8000-00000000000a', 'default', 'x', 'c', 500, true, 0, 90000, 'user:test')`)
	s.exec(`INSERT INTO allocations (job, attempt, rank, machine_id, machine_epoch, cpu_m, mem_mb, disk_mb, gpu_milli)
		VALUES ('01900000-0000-7000-8000-00000000000a', 1, 0, 'gpu-1', 1, 100, 100, 0, 0)`)
	s.script(func(x *faultcloud.State) { x.Instances[0].State, x.Instances[0].Reason = cloud.Terminated, "spot" })
	s.pass(time.Hour)
	s.step()
	s.is(cloud.LaunchTerminating)
	var held int
	count := func() int {
		if err := s.pool.QueryRow(t.Context(), `SELECT count(*) FROM allocations WHERE released_at IS NULL`).Scan(&held); err != nil {
			t.Fatal(err)
		}
		return held
	}
	if count() != 1 {
		t.Error("released after one read")
	}
	s.until(cloud.LaunchGone)
	if r := s.row(); count() != 0 || r.MachineState != berth.MachineRetired || !strings.Contains(r.Reason, "spot") {
		t.Errorf("%d allocations, machine %s, reason %q", held, r.MachineState, r.Reason)
	}
}

func TestARestoredDatabaseNeitherSendsNorTerminates(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	first := s.launch()
	s.exec(`UPDATE cluster SET incarnation = incarnation + 1`)
	s.step()
	s.is(cloud.LaunchUnresolved)
	if n := len(s.seen().Hashes); n != 0 {
		t.Errorf("%d requests sent", n)
	}
	_, err := s.db.Launches.Change(t.Context(), cloud.Ref{Machine: vm},
		func(r cloud.Record, _ time.Time) (cloud.Record, error) { return r.Absent("user:test") })
	if err != nil {
		t.Fatal(err)
	}
	if err := s.db.Launches.Listed(t.Context(), "test", 2); err != nil {
		t.Fatal(err)
	}
	if again := s.launch(); again.Token == first.Token || again.N != 2 {
		t.Errorf("%+v", again)
	}
	s.step()
	s.exec(`UPDATE cluster SET incarnation = incarnation + 1`)
	for range 50 {
		s.pass(max(s.step().Wait.Std(), time.Minute))
	}
	s.is(cloud.LaunchRunning)
	if ends := s.seen().Ends; len(ends) > 0 {
		t.Errorf("terminated %v", ends)
	}
}
