package db_test

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/db"
	"berth/failure"
	"berth/spec"
	"berth/wire"
)

// gangStage has agents on all three machines.
type gangStage struct {
	*stage
	term   db.Term
	agents []*agent
}

func newGangStage(t *testing.T) *gangStage {
	t.Helper()
	s := &gangStage{stage: newStage(t)}
	s.term = s.stage.term()
	for _, m := range []berth.MachineID{"m0", "m1", "m2"} {
		a := &agent{stage: s.stage, machine: m, host: "h", boot: "b", epoch: 1}
		req := a.request()
		req.Inventory.Address, req.Inventory.Network, req.Inventory.Ports = "10.0.0."+string(m[1]), wire.NetworkHost, wire.PortRange{First: 4000, Last: 4002}
		if _, _, err := s.db.Agents.Register(t.Context(), m, req); err != nil {
			t.Fatal(err)
		}
		s.agents = append(s.agents, a)
	}
	return s
}

func whole(i int) berth.DeviceShare { return berth.DeviceShare{Index: i, Milli: 1000} }

// gang is a job of so many members that waits.
func (s *gangStage) gang(members int, edit func(*spec.Job)) berth.JobID {
	return s.queued(func(j *spec.Job) {
		j.Members = members
		if edit != nil {
			edit(j)
		}
	})
}

// begin places a gang, a rank with a GPU on each of the machines.
func (s *gangStage) begin(id berth.JobID, grants ...berth.Grant) (attempt int) {
	s.t.Helper()
	c := s.commit(s.term, s.start(id, grants...))
	if len(c.Started) != 1 {
		s.t.Fatalf("%+v", c)
	}
	return c.Started[0].Attempt
}

func (s *gangStage) rankOf(id berth.JobID, attempt, rank int) (*agent, wire.RankReport) {
	s.t.Helper()
	alloc := one[int64](s.stage, `SELECT id FROM allocations WHERE job = $1 AND attempt = $2 AND rank = $3`, id, attempt, rank)
	m := one[string](s.stage, `SELECT machine_id FROM allocations WHERE id = $1`, alloc)
	return s.agents[m[1]-'0'], wire.RankReport{Alloc: berth.AllocationID(alloc), Job: id, Attempt: attempt, Rank: rank}
}

func (s *gangStage) claim(id berth.JobID, attempt, rank int) wire.Claim {
	s.t.Helper()
	a, p := s.rankOf(id, attempt, rank)
	c, err := s.db.Agents.Claim(s.t.Context(), a.machine, wire.ClaimRequest{AgentBoot: a.boot, Epoch: 1, Alloc: p.Alloc, Job: id, Attempt: attempt})
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

var seqs sync.Map // of agents that several goroutines speak for

func (s *gangStage) tell(id berth.JobID, attempt, rank int, phase berth.Phase, exit *failure.Exit) error {
	a, p := s.rankOf(id, attempt, rank)
	p.Phase, p.Exit = phase, exit
	mu, _ := seqs.LoadOrStore(a, &sync.Mutex{})
	mu.(*sync.Mutex).Lock()
	defer mu.(*sync.Mutex).Unlock()
	a.seq++
	_, err := s.db.Agents.Sync(s.t.Context(), a.machine, wire.SyncRequest{AgentBoot: a.boot, Epoch: 1, Seq: a.seq, Reports: []wire.RankReport{p}, Brief: true})
	return err
}

func (s *gangStage) mustTell(id berth.JobID, attempt, rank int, phase berth.Phase, exit *failure.Exit) {
	s.t.Helper()
	if err := s.tell(id, attempt, rank, phase, exit); err != nil {
		s.t.Fatal(err)
	}
}

// runs brings all ranks of an attempt to running.
func (s *gangStage) runs(id berth.JobID, attempt, members int) {
	s.t.Helper()
	for rank := range members {
		s.claim(id, attempt, rank)
		s.mustTell(id, attempt, rank, berth.PhasePrepared, nil)
	}
	for rank := range members {
		s.mustTell(id, attempt, rank, berth.PhaseRunning, nil)
	}
}

func ended(cause failure.ExitCause, code int) *failure.Exit {
	return &failure.Exit{Cause: cause, Code: code, StartedAt: ranAt, FinishedAt: time.Now().UTC()}
}

// nominated lists the machines on which room is kept for a job.
func (s *stage) nominated(id berth.JobID) string {
	s.t.Helper()
	return one[string](s, `SELECT coalesce(string_agg(machine_id, ' ' ORDER BY machine_id), '') FROM nominations WHERE beneficiary = $1 AND gpu_idx < 0`, id)
}

func TestMembersOfAGangMeetOnPortsOfTheirMachines(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	id := s.gang(3, nil)
	attempt := s.begin(id, on("m0", whole(0)), on("m0", whole(1)), on("m1", whole(0)))
	want := []wire.Peer{
		{Rank: 0, Machine: "m0", Address: "10.0.0.0", Network: wire.NetworkHost, Port: 4000},
		{Rank: 1, Machine: "m0", Address: "10.0.0.0", Network: wire.NetworkHost, Port: 4001},
		{Rank: 2, Machine: "m1", Address: "10.0.0.1", Network: wire.NetworkHost, Port: 4000},
	}
	for rank := range 3 {
		c := s.claim(id, attempt, rank)
		if diff := cmp.Diff(want, c.Peers); diff != "" || c.Rank != rank || c.Members != 3 {
			t.Errorf("claim of rank %d: %+v (-want +got):\n%s", rank, c, diff)
		}
	}
	if got := want[2].Endpoint(id, 1); got != "10.0.0.1:4000" {
		t.Errorf("endpoint is %s", got)
	}
	single := s.queued(nil)
	s.begin(single, on("m1"))
	if c := s.claim(single, 1, 0); len(c.Peers) != 0 {
		t.Errorf("a job of one rank has peers %+v", c.Peers)
	}
	full := s.gang(2, nil)
	s.mustRefuse(s.term, s.start(full, on("m0"), on("m0")), "port")
	if c, _ := used(t, s.pool, "m0"); c.CPUMilli != 2000 {
		t.Errorf("a refused gang holds %+v", c)
	}
	s.begin(full, on("m0"), on("m1"))
	if ports := one[[]int](s.stage, `SELECT array_agg(port ORDER BY rank) FROM allocations WHERE job = $1`, full); !slices.Equal(ports, []int{4002, 4001}) {
		t.Errorf("ports are %v", ports)
	}
	for rank := range 3 {
		s.mustTell(id, attempt, rank, berth.PhasePrepared, nil)
	}
	for rank := range 3 {
		s.mustTell(id, attempt, rank, berth.PhaseSealed, ended(failure.CauseExited, 0))
	}
	next := s.gang(2, nil)
	s.mustRefuse(s.term, s.start(next, on("m0"), on("m0")), "port") // until it is settled
	if r := s.settle(id, attempt); r.Next != berth.Succeeded {
		t.Fatalf("settled as %+v", r)
	}
	s.begin(next, on("m0"), on("m0"))
}

// A cancel that races with the last rank's readiness stops the gang, whether or not the
// gang was ordered to start.
func TestACancelMeetsTheStartOfAGang(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	for range 10 {
		id := s.gang(2, nil)
		attempt := s.begin(id, on("m0"), on("m1"))
		s.claim(id, attempt, 0)
		s.claim(id, attempt, 1)
		s.mustTell(id, attempt, 0, berth.PhasePrepared, nil)
		var all sync.WaitGroup
		all.Go(func() {
			if err := s.tell(id, attempt, 1, berth.PhasePrepared, nil); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() {
			if _, err := s.db.Jobs.RequestCancel(t.Context(), "", id, "user:test", nil); err != nil {
				t.Error(err)
			}
		})
		all.Wait()
		for _, r := range s.ranks(id, attempt) {
			if !strings.Contains(r, `"stop": true`) {
				t.Errorf("rank is %s", r)
			}
		}
		for rank := range 2 {
			s.mustTell(id, attempt, rank, berth.PhaseSealed, ended(failure.CauseOrdered, 143))
		}
		if r := s.settle(id, attempt); r.Next != berth.Canceled {
			t.Errorf("settled as %+v", r)
		}
	}
	s.freed()
}

// failed returns a gang of three after rank 1 has failed and the other ranks were ordered
// to stop.
func (s *gangStage) failed() (id berth.JobID, attempt int) {
	s.t.Helper()
	id = s.gang(3, func(j *spec.Job) { j.Retry.MaxAttempts, j.Retry.Backoff = 3, spec.Backoff{Factor: 1} })
	attempt = s.begin(id, on("m0", whole(0)), on("m1", whole(0)), on("m2", whole(0)))
	s.runs(id, attempt, 3)
	s.mustTell(id, attempt, 1, berth.PhaseSealed, ended(failure.CauseExited, 3))
	if stopped, err := s.db.Attempts.Stop(s.t.Context(), id, attempt); err != nil || !stopped {
		s.t.Fatal(stopped, err)
	}
	return id, attempt
}

func TestTheOtherRanksOfAGangStopAndTheirRoomIsKept(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	id, attempt := s.failed()
	want := `active {"stop": true, "start": true, "grace_ms": 20000, "checkpoint": true}`
	if got := s.ranks(id, attempt); got[0] != want || got[2] != want {
		t.Errorf("ranks are %q", got)
	}
	if got := s.nominated(id); got != "m0 m2" {
		t.Errorf("room is kept on %q", got)
	}
	thief := s.queued(nil)
	s.mustRefuse(s.term, s.start(thief, on("m0", whole(0))), "GPU 0 is taken") // it is not free yet
	for _, rank := range []int{0, 2} {
		s.mustTell(id, attempt, rank, berth.PhaseSealed, ended(failure.CauseOrdered, 143))
	}
	s.mustRefuse(s.term, s.start(thief, on("m0", whole(0))), "kept")
	if n, err := s.db.Queue.ClearNominations(t.Context(), s.term); err != nil || n != 0 {
		t.Errorf("cleared %d, %v", n, err)
	}
	if r := s.settle(id, attempt); r.Next != berth.Retrying {
		t.Fatalf("settled as %+v", r)
	}
	if n := s.job(id).Failures; n != 1 {
		t.Errorf("%d attempts are spent", n)
	}
	s.mustRefuse(s.term, s.start(thief, on("m2", whole(0))), "kept")
	if again := s.begin(id, on("m2", whole(0)), on("m1", whole(1)), on("m0", whole(0))); again != 2 {
		t.Errorf("attempt %d", again)
	}
	if got := one[string](s.stage, `SELECT string_agg(machine_id, ' ' ORDER BY rank) FROM allocations WHERE job = $1 AND attempt = 2`, id); got != "m0 m1 m2" {
		t.Errorf("the ranks are on %s now", got)
	}
	if got := s.nominated(id); got != "" {
		t.Errorf("room is still kept on %q", got)
	}
	if n := one[int](s.stage, `SELECT count(*) FROM nomination_log WHERE gone_at IS NULL OR gone_at < made_at`); n != 0 {
		t.Errorf("%d nominations have no end on record", n)
	}
	s.begin(thief, on("m1", whole(0))) // the hole is anybody's
}

func TestRoomKeptForARepairIsGivenUp(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(s *gangStage, id berth.JobID, attempt int) error{
		"on cancel while it stops": func(s *gangStage, id berth.JobID, _ int) error {
			_, err := s.db.Jobs.RequestCancel(s.t.Context(), "", id, "user:test", nil)
			return err
		},
		"on cancel while it waits": func(s *gangStage, id berth.JobID, attempt int) error {
			for _, rank := range []int{0, 2} {
				s.mustTell(id, attempt, rank, berth.PhaseSealed, ended(failure.CauseOrdered, 143))
			}
			s.settle(id, attempt)
			_, err := s.db.Jobs.RequestCancel(s.t.Context(), "", id, "user:test", nil)
			return err
		},
		"in time": func(s *gangStage, id berth.JobID, attempt int) error {
			for _, rank := range []int{0, 2} {
				s.mustTell(id, attempt, rank, berth.PhaseSealed, ended(failure.CauseOrdered, 143))
			}
			s.settle(id, attempt)
			if left := one[float64](s.stage, `SELECT max(extract(epoch FROM expires_at - now()))::float8 FROM nominations`); left > 60 {
				return errors.New("it is kept for more than a minute")
			}
			if n, err := s.db.Queue.ClearNominations(s.t.Context(), s.term); n != 0 || err != nil {
				return errors.Join(errors.New("given up too soon"), err)
			}
			mustExec(s.t, s.pool, `UPDATE nominations SET expires_at = now() - interval '1 ms'`)
			_, err := s.db.Queue.ClearNominations(s.t.Context(), s.term)
			return err
		},
		"for another gang": func(s *gangStage, id berth.JobID, _ int) error {
			_, err := s.db.Queue.GiveUpRepairs(s.t.Context(), s.term, []berth.JobID{id})
			return err
		},
		"when its attempt is the last": func(s *gangStage, id berth.JobID, attempt int) error {
			mustExec(s.t, s.pool, `UPDATE jobs SET failures = 2 WHERE id = $1`, id)
			for _, rank := range []int{0, 2} {
				s.mustTell(id, attempt, rank, berth.PhaseSealed, ended(failure.CauseOrdered, 143))
			}
			if r := s.settle(id, attempt); r.Next != berth.Failed {
				return errors.New("it is " + string(r.Next))
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newGangStage(t)
			id, attempt := s.failed()
			if err := end(s, id, attempt); err != nil {
				t.Fatal(err)
			}
			if got := s.nominated(id); got != "" {
				t.Errorf("room is still kept on %q", got)
			}
		})
	}
}

// Two ranks that fail at once, each reported by its own workflow step, cost the gang one
// attempt, and the first failure is the cause.
func TestTwoFailingRanksSpendOneAttempt(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	id := s.gang(3, func(j *spec.Job) { j.Retry.MaxAttempts = 3 })
	attempt := s.begin(id, on("m0"), on("m1"), on("m2"))
	s.runs(id, attempt, 3)
	first := ended(failure.CauseExited, 7)
	first.FinishedAt = first.FinishedAt.Add(-time.Second)
	exits := []*failure.Exit{ended(failure.CauseExited, 1), ended(failure.CauseOrdered, 143), first}
	var all sync.WaitGroup
	for rank, x := range exits {
		all.Go(func() {
			if err := s.tell(id, attempt, rank, berth.PhaseSealed, x); err != nil {
				t.Error(err)
			}
			if _, err := s.db.Attempts.Stop(t.Context(), id, attempt); err != nil {
				t.Error(err)
			}
			if _, err := s.db.Attempts.Settle(t.Context(), id, attempt); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	j := s.job(id)
	if j.Status != berth.Retrying || j.Failures != 1 || j.Losses != 0 || *j.Attempts[0].ExitCode != 7 {
		t.Errorf("job is %s with %d failures and %d losses, its attempt %+v", j.Status, j.Failures, j.Losses, j.Attempts[0])
	}
	if got := s.nominated(id); got != "m0 m1" {
		t.Errorf("room is kept on %q", got)
	}
	s.freed()
}

// The next leader finds the kept capacity; the former leader can change nothing.
func TestANewLeaderRepairsAGang(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	id, attempt := s.failed()
	old := s.term
	mustExec(t, s.pool, `UPDATE leases SET expires_at = now() - interval '1 s'`)
	next, ok := s.lead("next", time.Hour)
	if !ok {
		t.Fatal("no lead")
	}
	for _, rank := range []int{0, 2} {
		s.mustTell(id, attempt, rank, berth.PhaseSealed, ended(failure.CauseOrdered, 143))
	}
	s.settle(id, attempt)
	start := s.start(id, on("m0", whole(0)), on("m1", whole(0)), on("m2", whole(0)))
	if _, err := s.db.Queue.CommitStarts(t.Context(), old, []berth.Start{start}); err == nil {
		t.Error("a deposed leader placed the gang")
	}
	if _, err := s.db.Queue.GiveUpRepairs(t.Context(), old, []berth.JobID{id}); err == nil || s.nominated(id) == "" {
		t.Errorf("a deposed leader gave the room up: %v", err)
	}
	c, err := s.db.Queue.Load(t.Context())
	if err != nil || len(c.Nominations) != 2 || c.Nominations[0].Victim != id || c.Nominations[0].Asleep {
		t.Errorf("nominations are %+v, %v", c.Nominations, err)
	}
	if c := s.commit(next, start); len(c.Started) != 1 {
		t.Errorf("%+v", c)
	}
}

// Ranks that are ready wait for the last one for so long; then that one is ended
// and its machine avoided.
func TestAGangDoesNotWaitForEverForASlowMachine(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	id := s.gang(3, nil)
	attempt := s.begin(id, on("m0"), on("m1"), on("m2"))
	for rank := range 3 {
		s.claim(id, attempt, rank)
	}
	s.mustTell(id, attempt, 2, berth.PhasePulling, nil)
	kill := func() (int, error) { return s.db.Attempts.KillUnprepared(t.Context(), s.term, patience, 10) }
	s.ago(`UPDATE allocations SET claimed_at = now() - interval '16 min'`)
	repaired(t, "nobody waits yet", 0, kill)
	s.mustTell(id, attempt, 0, berth.PhasePrepared, nil)
	s.mustTell(id, attempt, 1, berth.PhasePrepared, nil)
	repaired(t, "they have just begun to wait", 0, kill)
	s.ago(`UPDATE allocations SET prepared_at = now() - interval '16 min' WHERE rank = 0`)
	repaired(t, "too long", 1, kill)
	if got := s.ranks(id, attempt); got[0] != "active {}" || got[2] != `active {"kill": true}` {
		t.Errorf("ranks are %q", got)
	}
	x := ended(failure.CauseNotStarted, 0)
	x.StartedAt = time.Time{}
	s.mustTell(id, attempt, 2, berth.PhaseSealed, x)
	if stopped, err := s.db.Attempts.Stop(t.Context(), id, attempt); err != nil || !stopped {
		t.Fatal(stopped, err)
	}
	for rank := range 2 {
		later := *x
		later.FinishedAt = time.Now().UTC()
		s.mustTell(id, attempt, rank, berth.PhaseSealed, &later)
	}
	if r := s.settle(id, attempt); r.Next != berth.Retrying {
		t.Fatalf("settled as %+v", r)
	}
	if avoid := one[[]string](s.stage, `SELECT avoid FROM jobs WHERE id = $1`, id); !slices.Equal(avoid, []string{"m2"}) {
		t.Errorf("it avoids %v", avoid)
	}
	if j := s.job(id); j.Failures != 0 || j.Losses != 1 {
		t.Errorf("it has %d failures and %d losses", j.Failures, j.Losses)
	}
	if got := s.nominated(id); got != "m0 m1" {
		t.Errorf("room is kept on %q", got)
	}
}

// A rank on a lost machine is the one to replace, even if other ranks failed as well.
func TestTheHoleOfAGangIsWhereAMachineFellSilent(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	id := s.gang(3, nil)
	attempt := s.begin(id, on("m0"), on("m1"), on("m2"))
	s.runs(id, attempt, 3)
	s.orphan(id, attempt, 2)
	mustExec(t, s.pool, `UPDATE machines SET state = 'lost', epoch = epoch + 1 WHERE id = 'm2'`)
	s.mustTell(id, attempt, 0, berth.PhaseSealed, ended(failure.CauseExited, 1)) // it lost the other one
	if stopped, err := s.db.Attempts.Stop(t.Context(), id, attempt); err != nil || !stopped {
		t.Fatal(stopped, err)
	}
	s.mustTell(id, attempt, 1, berth.PhaseSealed, ended(failure.CauseOrdered, 143))
	if r := s.settle(id, attempt); r.Next != berth.Retrying {
		t.Fatalf("settled as %+v", r)
	}
	if j := s.job(id); j.Failures != 0 || j.Losses != 1 || j.Attempts[0].Outcome.Code != berth.ReasonMachineLost {
		t.Errorf("it has %d failures and %d losses: %+v", j.Failures, j.Losses, j.Attempts[0].Outcome)
	}
	if got := s.nominated(id); got != "m0 m1" {
		t.Errorf("room is kept on %q", got)
	}
}
