package db_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/db"
	"berth/failure"
	"berth/wire"
)

// agent plays one machine's agent against the database.
type agent struct {
	*stage
	machine berth.MachineID
	host    string
	boot    string
	epoch   int64
	seq     int64
	digest  string
}

// register opens a session for m0 as agent process boot on host boot host.
func (s *stage) register(host, boot string, seen ...wire.ContainerSeen) (*agent, wire.RegisterResponse) {
	s.t.Helper()
	a := &agent{stage: s, machine: "m0", host: host, boot: boot}
	r, _, err := s.db.Agents.Register(s.t.Context(), a.machine, a.request(seen...))
	if err != nil {
		s.t.Fatal(err)
	}
	a.epoch, a.digest = r.Epoch, r.Sync.Digest
	return a, r
}

func (a *agent) request(seen ...wire.ContainerSeen) wire.RegisterRequest {
	inv := wire.Inventory{Capacity: berth.Capacity{CPUMilli: 64000, MemoryMiB: 256 << 10, DiskMiB: 1 << 20}}
	for i := range 2 {
		inv.GPUs = append(inv.GPUs, berth.GPU{Index: i, UUID: fmt.Sprintf("%s-%d", a.machine, i), Model: "H100", MemoryMiB: 81920, Healthy: true})
	}
	return wire.RegisterRequest{HostBoot: a.host, AgentBoot: a.boot, Inventory: inv, Containers: seen}
}

func (a *agent) session() db.Session { return db.Session{AgentBoot: a.boot, Epoch: a.epoch} }

func (a *agent) claims(id berth.JobID, attempt int) (wire.Claim, error) {
	a.t.Helper()
	return a.db.Agents.Claim(a.t.Context(), a.machine, wire.ClaimRequest{AgentBoot: a.boot, Epoch: a.epoch, Alloc: a.alloc(id, attempt), Job: id, Attempt: attempt, Sources: true, Parts: true, Chunks: true})
}

func (s *stage) alloc(id berth.JobID, attempt int) berth.AllocationID {
	s.t.Helper()
	return berth.AllocationID(one[int64](s, `SELECT id FROM allocations WHERE job = $1 AND attempt = $2 AND rank = 0`, id, attempt))
}

func (a *agent) mustClaim(id berth.JobID, attempt int) wire.Claim {
	a.t.Helper()
	c, err := a.claims(id, attempt)
	if err != nil {
		a.t.Fatal(err)
	}
	return c
}

func (a *agent) sync(edit func(*wire.SyncRequest)) (wire.SyncResponse, error) {
	a.t.Helper()
	req := wire.SyncRequest{AgentBoot: a.boot, Epoch: a.epoch, Digest: a.digest}
	edit(&req)
	if len(req.Reports)+len(req.Gone)+len(req.GPUs) > 0 && req.Seq == 0 {
		a.seq++
		req.Seq = a.seq
	}
	began := time.Now()
	r, err := a.db.Agents.Sync(a.t.Context(), a.machine, req)
	if err == nil && !r.Changed && !req.Brief && time.Since(began) > 2*time.Second {
		// The set was perhaps not read in the two seconds that a call has for it. As an
		// agent does, get it by the next call.
		var next wire.SyncResponse
		next, err = a.db.Agents.Sync(a.t.Context(), a.machine, wire.SyncRequest{AgentBoot: a.boot, Epoch: a.epoch, Digest: a.digest})
		r.Changed, r.Assignments, r.Digest = next.Changed, next.Assignments, next.Digest
	}
	if err == nil && r.Changed {
		a.digest = r.Digest
	}
	return r, err
}

func (a *agent) report(id berth.JobID, attempt int, phase berth.Phase, edit func(*wire.RankReport)) wire.SyncResponse {
	a.t.Helper()
	p := wire.RankReport{Alloc: a.alloc(id, attempt), Job: id, Attempt: attempt, Phase: phase}
	if edit != nil {
		edit(&p)
	}
	r, err := a.sync(func(req *wire.SyncRequest) { req.Reports = append(req.Reports, p) })
	if err != nil {
		a.t.Fatal(err)
	}
	return r
}

func withExit(code int) func(*wire.RankReport) {
	return func(p *wire.RankReport) { x := exited(code); p.Exit = &x }
}

func TestShortJobFromClaimToSealed(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, r := s.register("host1", "agent1")
	if r.Cluster == "" || r.Epoch != 1 || len(r.Kill) != 0 {
		t.Fatalf("register answered %+v", r)
	}
	id := s.submit(nil)
	attempt := s.place(id, "m0")
	c := a.mustClaim(id, attempt)
	if c.Tenant != "default" || c.Rank != 0 || c.Members != 1 || c.Spec.Image != "busybox" || len(c.GPUs) != 1 || c.MemoryMiB != 1024 || c.SpecHash == "" {
		t.Errorf("claim is %+v", c)
	}
	answer := a.report(id, attempt, berth.PhaseRunning, func(p *wire.RankReport) { p.ImageDigest = "sha256:abc" })
	if len(answer.Assignments) != 1 || !answer.Assignments[0].Orders.Start {
		t.Fatalf("the answer to the start has no order: %+v", answer)
	}
	j := s.job(id)
	if j.Status != berth.Running || j.ImageDigest != "sha256:abc" || j.Attempts[0].StartedAt == nil || lastEvent(s, id).Actor != "agent:m0" {
		t.Errorf("job is %+v, last event %+v", j, lastEvent(s, id))
	}
	queue := s.db.Hub().Subscribe(db.TopicQueue, "")
	a.report(id, attempt, berth.PhaseSealed, withExit(0))
	if !hears(t, queue) {
		t.Error("the leader was not told of the room")
	}
	s.freed()
	if e := lastEvent(s, id); e.Seq != 4 {
		t.Errorf("a short job has %d events before it is settled, the last %+v", e.Seq, e)
	}
	if got := s.settle(id, attempt); got.Next != berth.Succeeded {
		t.Errorf("settled as %+v", got)
	}
	answer, err := a.sync(func(*wire.SyncRequest) {})
	if err != nil || len(answer.Assignments) != 1 || !answer.Assignments[0].Orders.Forget {
		t.Fatalf("after settle: %+v, %v", answer, err)
	}
	answer, err = a.sync(func(r *wire.SyncRequest) { r.Gone = []berth.AllocationID{c.Alloc} })
	if err != nil || !answer.Changed || len(answer.Assignments) != 0 {
		t.Errorf("after gone: %+v, %v", answer, err)
	}
}

func TestPhasesOnlyMoveOn(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	id := s.submit(nil)
	attempt := s.place(id, "m0")
	a.mustClaim(id, attempt)
	a.report(id, attempt, berth.PhasePrepared, nil)
	a.report(id, attempt, berth.PhaseRunning, nil)
	a.report(id, attempt, berth.PhasePulling, nil)
	if p := one[string](s, `SELECT phase FROM allocations`); p != "running" {
		t.Errorf("phase fell to %s", p)
	}
	a.report(id, attempt, berth.PhaseExited, withExit(3))
	a.report(id, attempt, berth.PhaseExited, withExit(0))
	if c := one[int](s, `SELECT (exit ->> 'code')::int FROM allocations`); c != 3 {
		t.Errorf("the first exit was replaced by %d", c)
	}
	if e := lastEvent(s, id); e.Kind != wire.EventExited || !strings.Contains(e.Detail, "exit code 3") {
		t.Errorf("last event is %+v", e)
	}
	a.report(id, attempt, berth.PhaseSealed, nil) // without the exit it says nothing
	if !s.settle(id, attempt).NotReady {
		t.Error("sealed without an exit counted")
	}
}

// The event of an end on request states the request first, then the exit code.
func TestAnEndOnRequestIsNamed(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	id := s.submit(nil)
	attempt := s.place(id, "m0")
	a.mustClaim(id, attempt)
	a.report(id, attempt, berth.PhaseRunning, nil)
	a.report(id, attempt, berth.PhaseExited, func(p *wire.RankReport) {
		x := exited(143)
		x.Cause = failure.CauseOrdered
		p.Exit = &x
	})
	if e := lastEvent(s, id); e.Kind != wire.EventExited || e.Detail != "member 0 on m0: stopped on request (exit code 143)" {
		t.Errorf("last event is %+v", e)
	}
}

// The agent dies between its last report and telling the workflow.
func TestRegistrationTellsOfEndsThatNobodyHasSettled(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	ended, settled, exits := s.submit(nil), s.submit(nil), s.submit(nil)
	for _, id := range []berth.JobID{ended, settled, exits} {
		attempt := s.place(id, "m0")
		a.mustClaim(id, attempt)
		a.report(id, attempt, berth.PhasePrepared, nil)
		a.report(id, attempt, berth.PhaseExited, withExit(0))
		if id != exits {
			a.report(id, attempt, berth.PhaseSealed, withExit(0))
		}
	}
	s.settle(settled, 1)
	a.boot = "agent2"
	_, jobs, err := s.db.Agents.Register(t.Context(), "m0", a.request())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]berth.JobID{ended}, jobs); diff != "" {
		t.Errorf("jobs to poke (-want +got):\n%s", diff)
	}
}

func TestLastPreparedRankOrdersTheStartAndTheLastStartMakesTheGangRunning(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	b := &agent{stage: s, machine: "m1", host: "h", boot: "b", epoch: 1}
	if _, _, err := s.db.Agents.Register(t.Context(), "m1", b.request()); err != nil {
		t.Fatal(err)
	}
	id := s.submit(nil)
	attempt := s.place(id, "m0", "m1")
	s.claim(id, attempt, 0, 1)
	mustExec(t, s.pool, `UPDATE allocations SET phase = 'claimed', started_at = NULL`)
	waits := func(when string) {
		t.Helper()
		if j := s.job(id); j.Status != berth.Scheduled || j.StartedAt != nil || j.Attempts[0].StartedAt != nil {
			t.Fatalf("%s: job is %s, started at %v", when, j.Status, j.StartedAt)
		}
	}
	a.report(id, attempt, berth.PhasePrepared, nil)
	waits("one of two prepared")
	hints := s.db.Hub().Subscribe(db.TopicMachine, "m0")
	second := berth.AllocationID(one[int64](s, `SELECT id FROM allocations WHERE rank = 1`))
	r, err := b.sync(func(r *wire.SyncRequest) {
		r.Reports = []wire.RankReport{{Alloc: second, Job: id, Attempt: attempt, Rank: 1, Phase: berth.PhasePrepared}}
	})
	if err != nil || !r.Assignments[0].Orders.Start {
		t.Errorf("answer to the last one: %+v, %v", r, err)
	}
	if !hears(t, hints) {
		t.Error("the other machine was not told")
	}
	if diff := cmp.Diff([]string{`active {"start": true}`, `active {"start": true}`}, s.ranks(id, attempt)); diff != "" {
		t.Errorf("ranks (-want +got):\n%s", diff)
	}
	waits("both prepared")
	a.report(id, attempt, berth.PhasePrepared, nil) // sent again
	a.report(id, attempt, berth.PhaseRunning, nil)
	waits("one of two started")
	_, err = b.sync(func(r *wire.SyncRequest) {
		r.Reports = []wire.RankReport{{Alloc: second, Job: id, Attempt: attempt, Rank: 1, Phase: berth.PhaseRunning}}
	})
	if j := s.job(id); err != nil || j.Status != berth.Running || j.StartedAt == nil || j.Attempts[0].StartedAt == nil {
		t.Errorf("both started: job is %s, started at %v; %v", j.Status, j.StartedAt, err)
	}
	want := "submitted queued scheduled start: member 0 on m0, member 1 on m1 running"
	if got := one[string](s, `SELECT string_agg(coalesce(to_state, detail), ' ' ORDER BY seq) FROM job_events WHERE job = $1`, id); got != want {
		t.Errorf("history is %q, want %q", got, want)
	}
}

func TestCanceledJobNeverStarts(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	id := s.submit(nil)
	attempt := s.place(id, "m0")
	a.mustClaim(id, attempt)
	if _, err := s.db.Jobs.RequestCancel(t.Context(), "", id, "user:x", nil); err != nil {
		t.Fatal(err)
	}
	r := a.report(id, attempt, berth.PhasePrepared, nil)
	if o := r.Assignments[0].Orders; o.Start || !o.Stop {
		t.Errorf("orders are %+v", o)
	}
	if _, err := a.claims(id, attempt); err != nil {
		t.Errorf("a restarted agent cannot claim what it must stop: %v", err)
	}
	unclaimed := s.submit(nil)
	n := s.place(unclaimed, "m0")
	if _, err := s.db.Jobs.RequestCancel(t.Context(), "", unclaimed, "user:x", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := a.claims(unclaimed, n); !berth.IsSlug(err, berth.SlugStaleAttempt) {
		t.Errorf("claim of canceled work: %v", err)
	}
}

func TestOvertakenReportIsIgnored(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	id := s.submit(nil)
	attempt := s.place(id, "m0")
	a.mustClaim(id, attempt)
	alloc := s.alloc(id, attempt)
	a.report(id, attempt, berth.PhasePrepared, nil)
	x := exited(1)
	if _, err := a.sync(func(r *wire.SyncRequest) {
		r.Seq = a.seq
		r.Reports = []wire.RankReport{{Alloc: alloc, Job: id, Attempt: attempt, Phase: berth.PhaseExited, Exit: &x}}
	}); err != nil {
		t.Errorf("replayed call: %v", err)
	}
	if st := one[string](s, `SELECT state FROM allocations`); st != "active" {
		t.Errorf("a replayed call made it %s", st)
	}
}

func TestOrphanIsReleasedWhenItsContainerIsGone(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	for _, how := range []string{"gone", "exit"} {
		id := s.submit(nil)
		n := s.place(id, "m0")
		a.mustClaim(id, n)
		s.run(id)
		s.orphan(id, n, 0)
		alloc := s.alloc(id, n)
		r, err := a.sync(func(r *wire.SyncRequest) {
			if how == "gone" {
				r.Gone = []berth.AllocationID{alloc}
				return
			}
			x := exited(0)
			r.Reports = []wire.RankReport{{Alloc: alloc, Job: id, Attempt: n, Phase: berth.PhaseExited, Exit: &x}}
		})
		if err != nil {
			t.Fatal(err)
		}
		if how == "exit" && !cmp.Equal(r.Stale, []berth.AllocationID{alloc}) {
			t.Errorf("an orphan's exit is not refused: %+v", r)
		}
		if st := one[string](s, `SELECT state FROM allocations WHERE id = $1`, int64(alloc)); st != "released" {
			t.Errorf("%s: the orphan is %s", how, st)
		}
		if e := lastEvent(s, id); e.Kind != wire.EventReleased {
			t.Errorf("%s: last event is %+v", how, e)
		}
	}
	s.freed()
}

func TestSuspicionEndsWhenTheMachineSpeaks(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	mustExec(t, s.pool, `UPDATE machines SET state = 'suspect' WHERE id = 'm0'`)
	mustExec(t, s.pool, `UPDATE machine_leases SET until = now() - interval '1 s'`)
	began := time.Now()
	if _, err := a.sync(func(*wire.SyncRequest) {}); err != nil {
		t.Fatal(err)
	}
	s.cleared(a, time.Since(began), "after a call")
	if !one[bool](s, `SELECT until > now() FROM machine_leases`) {
		t.Error("the lease was not renewed")
	}
}

func TestABriefAnswerTellsWhatTheReportsCameTo(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	id := s.submit(nil)
	attempt := s.place(id, "m0")
	a.mustClaim(id, attempt)
	alloc := s.alloc(id, attempt)
	report := func(phase berth.Phase, attempt int) wire.SyncResponse {
		t.Helper()
		r, err := a.sync(func(r *wire.SyncRequest) {
			r.Brief = true
			r.Reports = []wire.RankReport{{Alloc: alloc, Job: id, Attempt: attempt, Phase: phase}}
		})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	digest := a.digest
	want := wire.SyncResponse{TTLSeconds: 20, Renewed: true, Digest: digest, Started: []berth.AllocationID{alloc}}
	want.Watermark = &wire.Watermark{} // none was granted
	if diff := cmp.Diff(want, report(berth.PhasePrepared, attempt)); diff != "" {
		t.Errorf("answer to the last prepared rank (-want +got):\n%s", diff)
	}
	want.Started, want.Stale = nil, []berth.AllocationID{alloc}
	if diff := cmp.Diff(want, report(berth.PhaseRunning, attempt+1)); diff != "" {
		t.Errorf("answer to a report that is not current (-want +got):\n%s", diff)
	}
	mustExec(t, s.pool, `UPDATE machines SET state = 'suspect' WHERE id = 'm0'`)
	began := time.Now()
	if r := report(berth.PhaseRunning, attempt); !r.Changed || len(r.Assignments) != 1 {
		t.Errorf("a suspected machine was answered %+v", r)
	}
	s.cleared(a, time.Since(began), "after a report")
}

func TestPollWakesOnOrders(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	id, attempt := s.submit(nil), 0
	attempt = s.place(id, "m0")
	a.mustClaim(id, attempt)
	if _, err := a.sync(func(*wire.SyncRequest) {}); err != nil {
		t.Fatal(err)
	}
	type answer struct {
		r   wire.SyncResponse
		err error
	}
	got := make(chan answer, 1)
	go func() {
		r, err := s.db.Agents.Sync(context.WithoutCancel(t.Context()), "m0", wire.SyncRequest{AgentBoot: a.boot, Epoch: a.epoch, Digest: a.digest, WaitMS: 60_000})
		got <- answer{r, err}
	}()
	select {
	case x := <-got:
		t.Fatalf("answered before anything changed: %+v", x)
	case <-time.After(50 * time.Millisecond):
	}
	if _, err := s.db.Jobs.RequestCancel(t.Context(), "", id, "user:x", nil); err != nil {
		t.Fatal(err)
	}
	x := <-got
	if x.err != nil || !x.r.Changed || !x.r.Assignments[0].Orders.Stop {
		t.Errorf("poll answered %+v, %v", x.r, x.err)
	}
}

// A poll that most likely will be held waits for the polls of other machines, so that
// one statement reads the sets of all. An order for its machine ends that wait.
func TestPollWakesOnOrdersWhileItWaitsForOthers(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.db.ReadPatiently(time.Hour)
	a, _ := s.register("host1", "agent1")
	id := s.submit(nil)
	a.mustClaim(id, s.place(id, "m0"))
	if _, err := a.sync(func(*wire.SyncRequest) {}); err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		r, err := s.db.Agents.Sync(context.WithoutCancel(t.Context()), "m0",
			wire.SyncRequest{AgentBoot: a.boot, Epoch: a.epoch, Digest: a.digest, WaitMS: 60_000})
		if err == nil && (!r.Changed || !r.Assignments[0].Orders.Stop) {
			err = fmt.Errorf("answered %+v", r)
		}
		got <- err
	}()
	select {
	case err := <-got:
		t.Fatalf("answered before anything changed: %v", err)
	case <-time.After(50 * time.Millisecond): // most likely it waits now
	}
	if _, err := s.db.Jobs.RequestCancel(t.Context(), "", id, "user:x", nil); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Error(err)
	}
}
