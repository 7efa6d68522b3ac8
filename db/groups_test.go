package db_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"berth"
	"berth/db"
	"berth/failure"
	"berth/spec"
	"berth/wire"
)

// flock is a gang of a head, which leads, and two workers with twice its memory.
func flock(j *spec.Job) {
	j.Members = 0
	j.Groups = []spec.Group{
		{Name: "head", Leads: true, Command: []string{"head"}},
		{Name: "workers", Members: 2, Command: []string{"work"}, Resources: spec.GroupResources{Memory: new(spec.MiB(4096))}},
	}
	*j = j.WithDefaults()
}

// flies starts a gang of a head and two workers, and brings all of them to running.
func (s *gangStage) flies(edit func(*spec.Job)) (id berth.JobID, attempt int) {
	s.t.Helper()
	id = s.queued(func(j *spec.Job) {
		flock(j)
		if edit != nil {
			edit(j)
		}
	})
	attempt = s.begin(id, on("m0"), on("m1"), on("m2"))
	s.runs(id, attempt, 3)
	return id, attempt
}

func TestAClaimHasTheCommandAndTheVariablesOfItsGroup(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	id := s.queued(flock)
	attempt := s.begin(id, on("m0"), on("m1"), on("m2"))
	for rank, want := range []struct{ command, group, number string }{{"head", "head", "0"}, {"work", "workers", "0"}, {"work", "workers", "1"}} {
		c := s.claim(id, attempt, rank)
		if !slices.Equal(c.Spec.Command, []string{want.command}) || c.Spec.Env[spec.EnvGroup] != want.group ||
			c.Spec.Env[spec.EnvGroupMember] != want.number || c.Members != 3 || c.Spec.Groups != nil || len(c.Peers) != 3 {
			t.Errorf("the claim of member %d is %+v", rank, c)
		}
	}
}

func TestTheEndOfTheLeadingGroupStopsTheOthersWithTheirWholeGrace(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	id, attempt := s.flies(func(j *spec.Job) { j.StopGrace = new(spec.Duration(90 * time.Second)) })
	if stopped, err := s.db.Attempts.Stop(t.Context(), id, attempt); err != nil || stopped {
		t.Fatal(stopped, err)
	}
	s.mustTell(id, attempt, 0, berth.PhaseSealed, ended(failure.CauseExited, 0))
	for range 2 { // a repeated stop has no further effect
		if stopped, err := s.db.Attempts.Stop(t.Context(), id, attempt); err != nil || !stopped {
			t.Fatal(stopped, err)
		}
	}
	want := `active {"stop": true, "start": true, "grace_ms": 90000}`
	if got := s.ranks(id, attempt); got[1] != want || got[2] != want {
		t.Errorf("ranks are %q", got)
	}
	if got := s.nominated(id); got != "" {
		t.Errorf("room is kept on %q", got)
	}
	s.mustTell(id, attempt, 1, berth.PhaseSealed, ended(failure.CauseOrdered, 143))
	s.mustTell(id, attempt, 2, berth.PhaseSealed, ended(failure.CauseExited, 1)) // its head had gone
	if r := s.settle(id, attempt); r.Next != berth.Succeeded {
		t.Errorf("settled as %+v", r)
	}
	s.freed()
}

func TestAFollowerEndsAGangOnlyByAFailure(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	id, attempt := s.flies(nil)
	s.mustTell(id, attempt, 1, berth.PhaseSealed, ended(failure.CauseExited, 0))
	if stopped, err := s.db.Attempts.Stop(t.Context(), id, attempt); err != nil || stopped {
		t.Fatal(stopped, err)
	}
	s.mustTell(id, attempt, 2, berth.PhaseSealed, ended(failure.CauseExited, 3))
	if stopped, err := s.db.Attempts.Stop(t.Context(), id, attempt); err != nil || !stopped {
		t.Fatal(stopped, err)
	}
	s.mustTell(id, attempt, 0, berth.PhaseSealed, ended(failure.CauseOrdered, 143))
	if r := s.settle(id, attempt); r.Next != berth.Failed {
		t.Errorf("settled as %+v", r)
	}
}

// The workflow hears of the end of the leading group by a poke, if the report of the end was lost.
func TestAnUnheardEndOfTheLeadingGroupWantsItsWorkflow(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	for _, c := range []struct {
		claim   string
		leaders int
		ends    []int
		wants   bool
	}{
		{"a follower has ended", 1, []int{1}, false},
		{"the only leading member has ended", 1, []int{0}, true},
		{"one of two leading members has ended", 2, []int{0}, false},
		{"both leading members have ended", 2, []int{0, 1}, true},
		{"a member of a gang without a leading group has ended", 0, []int{0}, false},
	} {
		id := s.queued(func(j *spec.Job) {
			flock(j)
			j.Groups[0].Leads, j.Groups[1].Leads = c.leaders == 1, c.leaders == 2
		})
		if c.leaders == 2 { // the workers lead, as members 1 and 2
			for i := range c.ends {
				c.ends[i]++
			}
		}
		attempt := s.begin(id, on("m0"), on("m1"), on("m2"))
		s.runs(id, attempt, 3)
		var allocs []berth.AllocationID
		for _, rank := range c.ends {
			s.mustTell(id, attempt, rank, berth.PhaseSealed, ended(failure.CauseExited, 0))
			_, p := s.rankOf(id, attempt, rank)
			allocs = append(allocs, p.Alloc)
		}
		got, err := s.db.Attempts.Unheard(t.Context(), allocs)
		if err != nil || slices.Contains(got, id) != c.wants {
			t.Errorf("%s: wanted by %v, %v", c.claim, got, err)
		}
		if _, err := s.db.Attempts.Stop(t.Context(), id, attempt); err != nil {
			t.Fatal(err)
		}
		if got, err := s.db.Attempts.Unheard(t.Context(), allocs); err != nil || slices.Contains(got, id) {
			t.Errorf("%s: after the stop wanted by %v, %v", c.claim, got, err)
		}
		for rank := range 3 {
			if !slices.Contains(c.ends, rank) {
				s.mustTell(id, attempt, rank, berth.PhaseSealed, ended(failure.CauseExited, 0))
			}
		}
		s.settle(id, attempt)
	}
}

// unknowing runs a statement as a berthd of the version before, whose connections name no format.
func (s *gangStage) unknowing(sql string, args ...any) error {
	s.t.Helper()
	return pgx.BeginFunc(s.t.Context(), s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(s.t.Context(), `SELECT set_config('berth.format', '', true)`); err != nil {
			return err
		}
		_, err := tx.Exec(s.t.Context(), sql, args...)
		return err
	})
}

func TestTheVersionBeforeRunsNoGangWithGroups(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	alike := s.gang(3, nil)
	waiting := s.queued(flock)
	const schedule = `UPDATE jobs SET state = 'scheduled', version = version + 1, attempt = attempt + 1, actor = 'leader' WHERE id = $1`
	refused := func(what, code string, err error) {
		t.Helper()
		if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != code {
			t.Errorf("%s: got %v, want %s", what, err, code)
		}
	}
	// An older leader isolates an error of class 23, and starts its other jobs.
	refused("a start", "23514", s.unknowing(schedule, waiting))
	if err := s.unknowing(schedule, alike); err != nil {
		t.Errorf("a start of equal members: %v", err)
	}
	id, attempt := s.flies(nil)
	const claim = `UPDATE allocations SET state = 'active', claimed_at = coalesce(claimed_at, now()) WHERE job = $1 AND attempt = $2`
	refused("a claim", "57T01", s.unknowing(claim, id, attempt))
	const settle = `UPDATE jobs SET state = 'failed', version = version + 1, actor = 'workflow' WHERE id = $1`
	refused("a settlement", "57T01", s.unknowing(settle, id))
	// It may cancel, since all members stop alike.
	const cancel = `UPDATE jobs SET state = 'canceling', version = version + 1, actor = 'user:old', cancel_requested_at = now() WHERE id = $1`
	if err := s.unknowing(cancel, id); err != nil {
		t.Errorf("a cancel: %v", err)
	}
}

func TestTheVersionBeforeCopiesNoFileWithGroups(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	id := s.queued(flock)
	refusedTooOld(t, "a retry", s.oldCopies(&id, nil, time.Time{}))
}

func TestElementsHaveTheGroupsOfTheirArray(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	array := s.array(2, flock)
	s.tend(array)
	element := s.element(array, 1)
	if got := one[[]int](s.stage, `SELECT ARRAY[grouped::int, lead_first, lead_last] FROM jobs WHERE id = $1`, element); !slices.Equal(got, []int{1, 0, 0}) {
		t.Errorf("the element has %v", got)
	}
	// Those that a berthd of the version before creates have them as well.
	err := s.unknowing(`
		INSERT INTO jobs (id, tenant, parent, array_index, name, class, priority, preemptible, run_limit_ms, grace_ms, lost_after_ms, labels, actor)
		SELECT $2, tenant, $1, 7, name, class, priority, preemptible, run_limit_ms, grace_ms, lost_after_ms, '{}', 'old'
		FROM jobs WHERE id = $1`, array, berth.NewJobID(time.Now()))
	if err != nil {
		t.Fatal(err)
	}
	if got := one[bool](s.stage, `SELECT grouped AND lead_last = 0 FROM jobs WHERE parent = $1 AND array_index = 7`, array); !got {
		t.Error("an element of the version before has no groups")
	}
}

// A member returns to its former machine only within its group: others have other resources.
func TestMembersExchangePlacesWithinTheirGroup(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	id, attempt := s.flies(func(j *spec.Job) { j.Retry.MaxAttempts, j.Retry.Backoff = 3, spec.Backoff{Factor: 1} })
	for rank := range 3 {
		s.mustTell(id, attempt, rank, berth.PhaseSealed, ended(failure.CauseExited, 3))
	}
	if r := s.settle(id, attempt); r.Next != berth.Retrying {
		t.Fatalf("settled as %+v", r)
	}
	mustExec(t, s.pool, `UPDATE jobs SET eligible_at = now(), avoid = '{}' WHERE id = $1`, id)
	// The head moves to m1, and the workers come back in another order.
	start := s.start(id, on("m1"), on("m2"), on("m0"))
	start.Groups = []int{1, 2}
	if c := s.commit(s.term, start); len(c.Started) != 1 {
		t.Fatalf("%+v", c)
	}
	got := one[string](s.stage, `SELECT string_agg(machine_id, ' ' ORDER BY rank) FROM allocations WHERE job = $1 AND attempt = 2`, id)
	if got != "m1 m0 m2" {
		t.Errorf("the members are on %s", got)
	}
}

func TestAStartFromACheckpointNeedsTheSameGroups(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	id, _ := s.flies(func(j *spec.Job) { j.Checkpoint = &spec.CheckpointPolicy{Path: "/c", Keep: 2} })
	mustExec(t, s.pool, `INSERT INTO checkpoints (job, step, attempt, ranks, state, bytes) VALUES ($1, 10, 1, 3, 'verified', 9)`, id)
	for claim, c := range map[string]struct {
		edit func(*spec.Job)
		ok   bool
	}{
		"the same groups": {flock, true},
		"equal members":   {func(j *spec.Job) { j.Members = 3 }, false},
		"groups in another order": {func(j *spec.Job) {
			flock(j)
			slices.Reverse(j.Groups)
		}, false},
	} {
		_, _, err := s.db.Jobs.Submit(t.Context(), db.Submission{Tenant: "default", Actor: "user:test", Spec: s.spec(func(j *spec.Job) {
			c.edit(j)
			j.Checkpoint = &spec.CheckpointPolicy{Path: "/c", Keep: 2, From: string(id)}
		})})
		if (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "groups") {
			t.Errorf("%s: %v", claim, err)
		}
	}
}

func TestOnlyTheGroupThatLackedMemoryGetsMore(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	id, attempt := s.flies(func(j *spec.Job) { j.Retry.OnOOM = "grow" })
	oom := ended(failure.CauseExited, 137)
	oom.OOMKilled = true
	s.mustTell(id, attempt, 2, berth.PhaseSealed, oom)
	if _, err := s.db.Attempts.Stop(t.Context(), id, attempt); err != nil {
		t.Fatal(err)
	}
	for rank := range 2 {
		s.mustTell(id, attempt, rank, berth.PhaseSealed, ended(failure.CauseOrdered, 143))
	}
	if r := s.settle(id, attempt); r.Next != berth.Retrying {
		t.Fatalf("settled as %+v", r)
	}
	memory, err := s.db.Jobs.MemberMemory(t.Context(), id, attempt)
	if err != nil || len(memory) != 3 || memory[2] == 0 {
		t.Errorf("memory of the first attempt is %v, %v", memory, err)
	}
	row := s.row(id)
	requests, err := s.db.Queue.Requests(t.Context(), []string{row.Class})
	if err != nil {
		t.Fatal(err)
	}
	var got []int64
	for _, g := range requests[row.Class].Groups {
		got = append(got, g.MemoryMiB)
	}
	if diff := cmp.Diff([]int64{int64(spec.DefaultMemory), 6144}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAWorkflowKnowsTheLeadingMembers(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	id, _ := s.flies(nil)
	view, err := s.db.Jobs.View(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	lead := func(v wire.JobView) (list []bool) {
		for _, x := range v.Slots {
			list = append(list, x.Leads)
		}
		return list
	}
	if diff := cmp.Diff([]bool{true, false, false}, lead(view)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// An output of the head is the job's output; the workers run the same file, and their parts do not count.
func TestOutputsOfFollowersDoNotCountOnceTheHeadIsDone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		claim string
		from  int // the member that stores the output
		loses func(s *gangStage, id berth.JobID, attempt int)
		next  berth.State
		rule  string
	}{
		{"a worker's machine dies before it has stored its output", 0, func(s *gangStage, id berth.JobID, attempt int) {
			mustExec(s.t, s.pool, `UPDATE allocations SET state = 'exited', phase = 'exited', exit = $2, exited_at = now()
				WHERE job = $1 AND rank = 1`, id, ended(failure.CauseOrdered, 143))
			s.quiet("m1", 2*time.Minute)
			s.judge(s.term, "m1")
			if !one[bool](s.stage, `SELECT cut_off FROM allocations WHERE job = $1 AND rank = 1`, id) {
				s.t.Error("the worker is not cut off")
			}
		}, berth.Succeeded, ""},
		{"the output of a worker is refused", 0, func(s *gangStage, id berth.JobID, attempt int) {
			x := ended(failure.CauseExited, 0)
			x.Refused = []string{"model"}
			s.mustTell(id, attempt, 1, berth.PhaseSealed, x)
		}, berth.Succeeded, ""},
		{"only a worker has stored the output", 1, func(s *gangStage, id berth.JobID, attempt int) {
			s.mustTell(id, attempt, 1, berth.PhaseSealed, ended(failure.CauseOrdered, 143))
		}, berth.Failed, "output_lost"},
	} {
		t.Run(c.claim, func(t *testing.T) {
			t.Parallel()
			s := newGangStage(t)
			id, attempt := s.flies(func(j *spec.Job) { j.Outputs = []spec.Output{{Name: "model", Path: "/out"}} })
			s.leaves(id, attempt, c.from, "model", "1")
			s.mustTell(id, attempt, 0, berth.PhaseSealed, ended(failure.CauseExited, 0))
			s.mustTell(id, attempt, 2, berth.PhaseSealed, ended(failure.CauseOrdered, 143))
			c.loses(s, id, attempt)
			r, job := s.settle(id, attempt), s.job(id)
			if r.Next != c.next || c.rule != "" && (job.Reason == nil || job.Reason.Rule != c.rule) {
				t.Errorf("settled as %s: %+v", r.Next, job.Reason)
			}
		})
	}
}
