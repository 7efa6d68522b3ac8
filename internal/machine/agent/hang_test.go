package agent_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"berth"
	"berth/activities/node"
	"berth/activities/node/fakeruntime"
	"berth/failure"
	"berth/internal/machine/docker"
	"berth/spec"
	"berth/wire"
)

// stalls returns an edit that sets the stall policy, with the same limit for the start.
func stalls(after time.Duration, signs ...spec.StallSign) func(*spec.Job) {
	return func(j *spec.Job) {
		j.Stall = &spec.StallPolicy{After: spec.Duration(after), StartLimit: spec.Duration(after), Signs: signs}
	}
}

func (s *site) hungEvents(id berth.JobID) []wire.Event {
	s.t.Helper()
	return slices.DeleteFunc(s.events(id), func(e wire.Event) bool { return e.Kind != wire.EventHung })
}

func TestAJobThatShowsNoSignIsStoppedWithItsEvidence(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(stalls(200*time.Millisecond), "do", `write-file /workspace/.berth/progress {"step":16}`, "trap-term 0")
	_, w := m.run(id)
	x := w.exit()
	if x.Cause != failure.CauseStalled || x.Message != "no progress or log for 200ms (stall.after)" {
		t.Errorf("exit is %+v", x)
	}
	j := s.settle(id)
	if j.Status != berth.Retrying || len(j.Hangs) != 1 || len(j.Hangs[0].Members) != 1 || j.Hangs[0].Odd != nil {
		t.Fatalf("job is %s, hangs %+v", j.Status, j.Hangs)
	}
	e := j.Hangs[0].Members[0]
	// The line of its handler comes after the signal, and is no part of the evidence.
	if e.Step == nil || *e.Step != 16 || *e.StepSeconds < 0 || e.QuietSeconds < 0.2 || e.Machine != "m1" || !slices.Equal(e.Lines, []string{"ready"}) {
		t.Errorf("evidence is %+v", e)
	}
	if list := s.hungEvents(id); len(list) != 1 || *list[0].Facts.Step != 16 {
		t.Errorf("events are %+v", list)
	}
}

// Only the signs that the job lists count, and each of them does.
func TestOnlyTheListedSignsAreLife(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	logs := []string{"lines", "400", "20ms"} // for longer than it may be quiet
	for _, c := range []struct {
		sign    spec.StallSign
		command []string
		want    failure.ExitCause
	}{
		{spec.SignLog, logs, failure.CauseExited},
		{spec.SignProgress, logs, failure.CauseStalled},
		{spec.SignCPU, logs, failure.CauseStalled}, // the fake engine has no CPU to show
	} {
		id := s.submit(stalls(2*time.Second, c.sign), c.command...)
		_, w := m.run(id)
		if x := w.exit(); x.Cause != c.want {
			t.Errorf("%s: exit is %+v, want %s", c.sign, x, c.want)
		}
		s.settle(id)
	}
}

// loaded is an inventory whose devices all have one load, which a test may change.
type loaded struct {
	declared
	use atomic.Pointer[wire.GPUUse]
}

func (l *loaded) Use(_ context.Context, uuids []string) ([]wire.GPUUse, error) {
	var list []wire.GPUUse
	for _, uuid := range uuids {
		u := *l.use.Load()
		u.UUID = uuid
		list = append(list, u)
	}
	return list, nil
}

// A kernel that waits for a peer keeps its device busy, and is no sign of life.
func TestAWaitingKernelIsNoSignOfLife(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	m.metered(nil)
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	memory, watts, limit := 0.4, 600.0, 700.0
	waits, idle := 0.0, 120.0
	l := &loaded{declared: m.cfg.GPUs.(declared)}
	l.use.Store(&wire.GPUUse{Utilization: 1, MemoryBytes: 1 << 30, MemoryBusy: &memory, Watts: &watts, LimitWatts: &limit})
	m.cfg.GPUs = l
	m.start()
	const after = 2 * time.Second
	id := s.submit(stalls(after, spec.SignGPU), "trap-term", "0")
	_, w := m.run(id)
	s.until("it has worked for longer than it may be quiet", func() bool { return covered(s.metrics(id), wire.MetricGPU) > after*3/2 })
	if list := s.hungEvents(id); len(list) > 0 {
		t.Fatalf("a job at work hangs: %+v", list)
	}
	l.use.Store(&wire.GPUUse{Utilization: 1, MemoryBytes: 1 << 30, MemoryBusy: &waits, Watts: &idle, LimitWatts: &limit})
	if x := w.exit(); x.Cause != failure.CauseStalled {
		t.Errorf("exit is %+v", x)
	}
	j := s.settle(id)
	if len(j.Hangs) != 1 || len(j.Hangs[0].Members[0].GPUs) != 1 {
		t.Fatalf("hangs are %+v", j.Hangs)
	}
	if g := j.Hangs[0].Members[0].GPUs[0]; *g.Busy != 1 || *g.MemoryBusy != 0 || *g.Watts != 120 || *g.LimitWatts != 700 || g.Works {
		t.Errorf("the device was %+v", g)
	}
}

// hangPair are two machines on one engine, and a running gang on them.
func (s *site) hangPair(after time.Duration, command ...string) ([2]*machine, berth.JobID, int) {
	s.t.Helper()
	engine := fakeruntime.New(fakeruntime.Options{CPUMilli: 64000})
	s.t.Cleanup(engine.Shutdown)
	m := s.pair(engine)
	for _, x := range m {
		x.cfg.Timing.HangPause = 50 * time.Millisecond
		x.restart()
	}
	id := s.submit(func(j *spec.Job) {
		j.Members = 2
		stalls(after, spec.SignProgress, spec.SignLog)(j)
	}, command...)
	return m, id, s.placeGang(id, m[0], m[1])
}

// quietMembers counts the members of a job that their agents report as quiet.
func (s *site) quietMembers(id berth.JobID) (n int) {
	s.t.Helper()
	if err := s.db.Pool().QueryRow(s.t.Context(), `SELECT count(*) FROM allocations WHERE job = $1 AND quiet_at IS NOT NULL`, id).Scan(&n); err != nil {
		s.t.Fatal(err)
	}
	return n
}

// judges is the leader, which waits until no report can be under way.
func (s *site) judges() int {
	s.t.Helper()
	if _, err := s.db.Pool().Exec(s.t.Context(), `UPDATE allocations SET quiet_at = quiet_at - interval '1 minute' WHERE quiet_at IS NOT NULL`); err != nil {
		s.t.Fatal(err)
	}
	n, err := s.db.Attempts.JudgeHangs(s.t.Context(), s.term, 100)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

func TestAllMembersOfAHungGangAreStoppedByOneVerdict(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m, id, attempt := s.hangPair(200*time.Millisecond, "trap-term", "0")
	s.until("both members are quiet", func() bool { return s.quietMembers(id) == 2 })
	if list := s.hungEvents(id); len(list) > 0 {
		t.Fatalf("a member judges the gang: %+v", list)
	}
	if n := s.judges(); n != 1 {
		t.Fatal("the leader judges no gang")
	}
	s.gangEnds(id, attempt)
	var stopped int
	if err := s.db.Pool().QueryRow(t.Context(), `SELECT count(*) FROM allocations WHERE job = $1 AND exit ->> 'cause' = 'stalled'`, id).Scan(&stopped); err != nil || stopped != 2 {
		t.Errorf("%d members were stopped for the hang, %v", stopped, err)
	}
	j := s.settle(id)
	if j.Status != berth.Retrying || len(j.Hangs) != 1 || len(j.Hangs[0].Members) != 2 || j.Hangs[0].Odd.Confidence != failure.Unsure {
		t.Errorf("job is %s, hangs %+v", j.Status, j.Hangs)
	}
	if r := j.Attempts[0].Outcome; r.Code != berth.ReasonStalled || !strings.HasPrefix(r.Message, "no progress or log of any member for 200ms (stall.after); no member can be named") {
		t.Errorf("outcome is %+v", r)
	}
	s.until("nothing of the gang is left", func() bool {
		left, err := m[0].cfg.Runtime.List(t.Context(), map[string]string{berth.LabelJob: string(id)})
		return err == nil && len(left) == 0
	})
}

// One member that logs keeps the gang alive, although the other one never does.
func TestOneLiveMemberKeepsTheGangAlive(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	_, id, attempt := s.hangPair(time.Second, "do", "at BERTH_MEMBER 0 lines 150 20ms", "at BERTH_MEMBER 1 sleep 3s")
	s.until("one member is quiet", func() bool { return s.quietMembers(id) == 1 })
	if n := s.judges(); n != 0 {
		t.Error("the gang is judged")
	}
	s.gangEnds(id, attempt)
	if j := s.settle(id); j.Status != berth.Succeeded {
		t.Errorf("the gang is %s: %+v", j.Status, j.Reason)
	}
}

// During an upgrade, a sign of life may meet a server of the version before, after a newer one has
// stored that the member is quiet. It is sent again soon: until then the leader may judge the gang.
func TestASignOfLifeThatMetAnOldServerIsSentAgain(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	_, id, _ := s.hangPair(300*time.Millisecond, "do", "at BERTH_MEMBER 0 sleep 3s", "at BERTH_MEMBER 0 lines 300 20ms",
		"at BERTH_MEMBER 1 sleep 9s")
	s.until("both members are quiet", func() bool { return s.quietMembers(id) == 2 })
	var met atomic.Int32
	rename := func(r *http.Request) int {
		if strings.HasSuffix(r.URL.Path, "/stall") && met.Add(1) == 1 {
			r.URL.Path += "-of-a-later-version"
		}
		return 0
	}
	s.gate.refuse.Store(&rename)
	s.until("the sign of life is stored", func() bool { return s.quietMembers(id) == 1 })
	if met.Load() < 2 {
		t.Errorf("%d reports, none met the old server", met.Load())
	}
}

// A server forgets the word of an agent that a member is quiet; the agent repeats it.
func TestAQuietMemberSaysSoAgain(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m, id, _ := s.hangPair(300*time.Millisecond, "trap-term", "0")
	s.until("both members are quiet", func() bool { return s.quietMembers(id) == 2 })
	for _, x := range m {
		x.cfg.Timing.QuietRepeat = 20 * time.Millisecond
		x.restart()
	}
	s.until("both members are quiet again", func() bool {
		return s.count(`SELECT count(*) FROM allocations a JOIN machines m ON m.id = a.machine_id AND m.agent_boot = a.quiet_boot`) == 2
	})
	if _, err := s.db.Pool().Exec(t.Context(), `UPDATE allocations SET quiet_said_at = now() - interval '1 hour'`); err != nil {
		t.Fatal(err)
	}
	s.until("the words are renewed", func() bool {
		return s.count(`SELECT count(*) FROM allocations WHERE quiet_said_at > now() - interval '1 minute'`) == 2
	})
	if n := s.judges(); n != 1 {
		t.Error("the gang is not judged")
	}
}

func (s *site) count(sql string) (n int) {
	s.t.Helper()
	if err := s.db.Pool().QueryRow(s.t.Context(), sql).Scan(&n); err != nil {
		s.t.Fatal(err)
	}
	return n
}

// A program that is still starting shows no sign of life for longer than one at work.
func TestTheStartHasALimitOfItsOwn(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	limited := func(j *spec.Job) {
		stalls(200 * time.Millisecond)(j)
		j.Stall.StartLimit = spec.Duration(time.Hour)
	}
	starts := s.submit(limited, "do", "sleep 2s", "exit 0")
	_, w := m.run(starts)
	if x := w.exit(); x.Cause != failure.CauseExited {
		t.Errorf("a slow start: %+v", x)
	}
	s.settle(starts)
	works := s.submit(limited, "do", "echo loaded", "trap-term 0")
	_, w = m.run(works)
	if x := w.exit(); x.Cause != failure.CauseStalled || x.Message != "no progress or log for 200ms (stall.after)" {
		t.Errorf("after the first sign: %+v", x)
	}
	s.settle(works)
	short := s.submit(func(j *spec.Job) {
		stalls(200 * time.Millisecond)(j)
		j.Stall.StartLimit = spec.Duration(300 * time.Millisecond)
	}, "sleep", "1h")
	_, w = m.run(short)
	if x := w.exit(); x.Cause != failure.CauseStalled || x.Message != "no progress or log for 300ms (stall.start_limit)" {
		t.Errorf("without a sign: %+v", x)
	}
	s.settle(short)
}

// The word of an agent process ends with the process; the next one looks for itself.
func TestAVerdictOutlivesTheAgentAndItsWordDoesNot(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m, id, attempt := s.hangPair(300*time.Millisecond, "trap-term", "0")
	s.until("both members are quiet", func() bool { return s.quietMembers(id) == 2 })
	m[1].cfg.Timing.ProgressPoll = time.Hour // it looks for no signs
	m[1].restart()
	if n := s.judges(); n != 0 {
		t.Fatal("the word of an earlier process counts")
	}
	m[1].cfg.Timing.ProgressPoll = quick.ProgressPoll
	m[1].restart()
	boots := func() (n int) {
		if err := s.db.Pool().QueryRow(t.Context(), `SELECT count(DISTINCT a.rank) FROM allocations a JOIN machines m ON m.id = a.machine_id AND m.agent_boot = a.quiet_boot WHERE a.quiet_at IS NOT NULL`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	s.until("the next process says the same", func() bool { return boots() == 2 })
	if err := m[1].stop(); err != nil {
		t.Fatal(err)
	}
	if n := s.judges(); n != 1 {
		t.Fatal("the leader judges no gang")
	}
	m[1].start() // it learns of the verdict by its claim
	s.gangEnds(id, attempt)
	if j := s.settle(id); j.Attempts[0].Outcome.Code != berth.ReasonStalled || len(j.Hangs[0].Members) != 2 {
		t.Errorf("outcome is %+v, hangs %+v", j.Attempts[0].Outcome, j.Hangs)
	}
}

// A server of the version before has no such call: a single job is stopped all the same.
func TestAServerWithoutVerdictsKeepsNoJob(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	rename := func(r *http.Request) int { // to a call that this server does not have
		if strings.HasSuffix(r.URL.Path, "/stall") {
			r.URL.Path += "-of-a-later-version"
		}
		return 0
	}
	s.gate.refuse.Store(&rename)
	id := s.submit(stalls(200*time.Millisecond), "trap-term", "0")
	_, w := m.run(id)
	if x := w.exit(); x.Cause != failure.CauseStalled {
		t.Errorf("exit is %+v", x)
	}
	if j := s.settle(id); j.Status != berth.Retrying || len(j.Hangs) != 0 {
		t.Errorf("job is %s, hangs %+v", j.Status, j.Hangs)
	}
}

// A rank that polls for its peers uses a core. Since all use counts for stall_timeout, such a
// hang is not found by it, and is by stall.
func TestDockerSpinningIsNoSignOfLife(t *testing.T) {
	t.Parallel()
	s, m := dockerMachine(t)
	m.metered(nil)
	const after = 2 * time.Second
	before := s.submit(func(j *spec.Job) { j.StallTimeout = spec.Duration(after) }, "spin")
	req, w := m.run(before)
	s.until("it has spun for longer than it may be quiet", func() bool { return covered(s.metrics(before), wire.MetricCPU) > 2*after })
	if c, err := m.container(req); err != nil || c.State != node.ContainerRunning {
		t.Errorf("stall_timeout has found the hang: %+v, %v", c, err)
	}
	s.cancel(before)
	w.exit()
	s.settle(before)

	id := s.submit(stalls(after), "spin")
	_, w = m.run(id)
	if x := w.exit(); x.Cause != failure.CauseStalled {
		t.Errorf("exit is %+v", x)
	}
	j := s.settle(id)
	if len(j.Hangs) != 1 {
		t.Fatalf("hangs are %+v", j.Hangs)
	}
	e := j.Hangs[0].Members[0]
	if e.CPU == nil || *e.CPU <= 0 || len(e.Processes) == 0 || e.Processes[0].State != "R" || e.Processes[0].CPUSeconds <= 0 || !slices.Equal(e.Lines, []string{"spinning"}) {
		t.Errorf("evidence is %s, %+v", e.Text(), e)
	}
}

// In each of these gangs one member hangs in its own way.
func TestDockerTheOddMemberOfAGangIsNamed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		odd    string // command of member 2
		others string
		by     failure.OddBy
	}{
		"one is stopped": {"halt", "sleep 1h", failure.OddByStopped},
		"one spins":      {"spin", "sleep 1h", failure.OddByCPU},
		"one is behind":  {`write-file /workspace/.berth/progress {"step":16}`, `write-file /workspace/.berth/progress {"step":17}`, failure.OddByStep},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, m1 := dockerMachine(t)
			engine, err := docker.Open("", docker.Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = engine.Close() })
			m2 := s.machineOn("m2", engine)
			grace := spec.Duration(time.Second)
			id := s.submit(func(j *spec.Job) {
				j.Members, j.StopGrace = 3, &grace
				stalls(3 * time.Second)(j)
			}, "do", "at BERTH_MEMBER 0 "+c.others, "at BERTH_MEMBER 1 "+c.others, "at BERTH_MEMBER 2 "+c.odd, "sleep 1h")
			attempt := s.placeGang(id, m1, m2, m1)
			s.until("all members are quiet", func() bool { return s.quietMembers(id) == 3 })
			if n := s.judges(); n != 1 {
				t.Fatal("the leader judges no gang")
			}
			s.gangEnds(id, attempt)
			j := s.settle(id)
			if len(j.Hangs) != 1 || len(j.Hangs[0].Members) != 3 {
				t.Fatalf("hangs are %+v, outcome %+v", j.Hangs, j.Attempts[0].Outcome)
			}
			for _, e := range j.Hangs[0].Members {
				t.Logf("member %d: %s", e.Rank, e.Text())
			}
			if o := j.Hangs[0].Odd; o == nil || o.Rank == nil || *o.Rank != 2 || o.By != c.by || o.Confidence == failure.Unsure {
				t.Errorf("odd member is %+v, want 2 by %s", o, c.by)
			}
		})
	}
}
