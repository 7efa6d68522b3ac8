package db_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgconn"

	"berth"
	"berth/db"
	"berth/failure"
	"berth/spec"
	"berth/wire"
)

// resharding is a job of so many members that starts from a step of another job, whatever members saved it.
func resharding(members int, job berth.JobID, step int64) func(*spec.Job) {
	return func(j *spec.Job) {
		from(job, step)(j)
		j.Members, j.Checkpoint.Reshard = members, spec.ReshardAll
	}
}

// sharded is a gang of two members that has saved the steps 5 and 7.
func (s *gangStage) sharded() berth.JobID {
	s.t.Helper()
	id := s.submit(func(j *spec.Job) { saves(2)(j); j.Members = 2 })
	s.saved(id, 1, 5, 7)
	return id
}

// claims claims a member's allocation for an agent that understands every job, or that does not know Parts.
func (s *gangStage) claims(id berth.JobID, attempt, rank int, parts bool) (wire.Claim, error) {
	s.t.Helper()
	a, p := s.rankOf(id, attempt, rank)
	return s.db.Agents.Claim(s.t.Context(), a.machine, wire.ClaimRequest{AgentBoot: a.boot, Epoch: 1, Alloc: p.Alloc,
		Job: id, Attempt: attempt, Sources: true, Chunks: true, Holds: true, Parts: parts})
}

// scattered places a job, a member on each machine.
func (s *gangStage) scattered(id berth.JobID, members int) (attempt int) {
	s.t.Helper()
	s.load(id)
	var grants []berth.Grant
	for m := range members {
		grants = append(grants, on(fmt.Sprint("m", m)))
	}
	return s.begin(id, grants...)
}

func TestEachMemberGetsAllPartsOfAStepOfOtherMembers(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	source := s.sharded()
	all := wire.RestorePoint{Job: source, Step: 7, Attempt: 1,
		Parts: []wire.RestorePart{{Manifest: "m7-0", SHA256: "x"}, {Manifest: "m7-1", SHA256: "x"}}}
	for members, parts := range map[int]int{1: 2, 2: 0, 3: 2} {
		id := s.queued(resharding(members, source, 7))
		if got := s.job(id).StartedFrom; got == nil || got.Job != source || got.Step != 7 || got.Parts != parts {
			t.Errorf("%d members start from %+v, want all %d parts of step 7", members, got, parts)
		}
		says := "the parts of 2 members"
		if e := s.events(id)[1]; e.Kind != wire.EventStartsFrom || strings.Contains(e.Detail, says) != (parts > 0) {
			t.Errorf("%d members: the event is %+v", members, e)
		}
		attempt := s.scattered(id, members)
		for rank := range members {
			want := all
			if parts == 0 {
				want = wire.RestorePoint{Job: source, Step: 7, Attempt: 1, Manifest: fmt.Sprint("m7-", rank), SHA256: "x"}
			}
			c, err := s.claims(id, attempt, rank, true)
			if d := cmp.Diff([]wire.RestorePoint{want}, c.Restore); err != nil || d != "" {
				t.Errorf("member %d of %d: %v, restore points (-want +got):\n%s", rank, members, err, d)
			}
		}
	}
}

// From its first own step on, a job restores like any other.
func TestOwnStepsOfAReshardedJobComeFirst(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	id := s.queued(resharding(3, s.sharded(), 7))
	attempt := s.scattered(id, 3)
	s.saved(id, attempt, 8)
	c, err := s.claims(id, attempt, 2, true)
	if err != nil || len(c.Restore) != 2 || c.Restore[0].Manifest != "m8-2" || c.Restore[0].Parts != nil || len(c.Restore[1].Parts) != 2 {
		t.Fatalf("%v, restore points are %+v", err, c.Restore)
	}
	// A step that lost a part is none to restore.
	mustExec(t, s.pool, `DELETE FROM checkpoint_shards WHERE step = 7 AND rank = 1`)
	if c, err = s.claims(id, attempt, 2, true); err != nil || len(c.Restore) != 1 || !c.HadCheckpoint {
		t.Errorf("%v, restore points without a part are %+v", err, c.Restore)
	}
}

func TestARestoreOfAllPartsIsRecorded(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	source := s.sharded()
	id := s.queued(resharding(1, source, 7))
	attempt := s.scattered(id, 1)
	if _, err := s.claims(id, attempt, 0, true); err != nil {
		t.Fatal(err)
	}
	a, p := s.rankOf(id, attempt, 0)
	step := int64(7)
	p.Phase, p.Restored = berth.PhasePrepared, &step
	a.seq++
	if _, err := s.db.Agents.Sync(t.Context(), a.machine,
		wire.SyncRequest{AgentBoot: a.boot, Epoch: 1, Seq: a.seq, Reports: []wire.RankReport{p}, Brief: true}); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("member 0 resumes from step 7 of job %s with the parts of 2 members", source)
	if !slices.ContainsFunc(s.events(id), func(e wire.Event) bool { return e.Kind == wire.EventRestored && e.Detail == want }) {
		t.Errorf("events are %+v, want %q", s.events(id), want)
	}
}

func TestOnlyReshardedJobsStartFromOtherMembers(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	source := s.sharded()
	mustExec(t, s.pool, `UPDATE checkpoints SET bytes = 3 << 20 WHERE job = $1`, source)
	birds, _ := s.flies(saves(2))
	s.saved(birds, 1, 9)
	limited := func(disk spec.MiB) func(*spec.Job) {
		return func(j *spec.Job) { resharding(3, source, 7)(j); j.Resources.Disk = disk }
	}
	for claim, c := range map[string]struct {
		edit        func(*spec.Job)
		field, says string
	}{
		"without the field": {func(j *spec.Job) { from(source, 7)(j); j.Members = 3 }, "checkpoint.from",
			"step 7 of job " + string(source) + " was saved by 2 members, and this job has 3"},
		"other groups":              {func(j *spec.Job) { from(birds, 9)(j); j.Members = 3 }, "checkpoint.from", "with the groups"},
		"other groups, resharded":   {resharding(3, birds, 9), "", ""},
		"a disk that is too small":  {limited(2), "checkpoint.reshard", "which have 3.0 MiB, and may use 2MiB of disk"},
		"a disk that is just large": {limited(3), "", ""},
		"a group's disk": {func(j *spec.Job) {
			flock(j)
			resharding(0, source, 7)(j)
			small := spec.MiB(2)
			j.Groups[1].Resources.Disk = &small
		}, "checkpoint.reshard", "may use 2MiB"},
		"another hardware's disk": {func(j *spec.Job) {
			resharding(3, source, 7)(j)
			small := spec.MiB(1)
			j.Alternatives = []spec.Alternative{{After: 1, Disk: &small}}
		}, "checkpoint.reshard", "may use 1MiB"},
	} {
		_, _, err := s.db.Jobs.Submit(t.Context(), db.Submission{Tenant: "default", Spec: s.spec(c.edit).WithDefaults(), Actor: "user:test"})
		if c.field == "" {
			if err != nil {
				t.Errorf("%s: %v", claim, err)
			}
			continue
		}
		e, ok := errors.AsType[*berth.Error](err)
		if !ok || !berth.IsSlug(err, db.SlugNoCheckpoint) || e.Fields[0].Field != c.field || !strings.Contains(e.Fields[0].Detail, c.says) ||
			!strings.Contains(e.Fields[0].Allowed, "checkpoint.reshard") {
			t.Errorf("%s: %v, %+v", claim, err, e)
		}
	}
}

// A retry with other members names the way out, and takes it from the file of the retry.
func TestARetryWithOtherMembersReshards(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	source := s.sharded()
	s.cancel(source)
	wide := *s.job(source).Spec
	wide.Members = 3
	_, _, err := s.db.Retries.Retry(t.Context(), "default", source, db.RetryOptions{Spec: &wide}, "user:test")
	if e, ok := errors.AsType[*berth.Error](err); !ok || !strings.Contains(e.Fields[0].Allowed, "checkpoint.reshard: all") {
		t.Errorf("without the field: %v", err)
	}
	policy := *wide.Checkpoint
	policy.Reshard = spec.ReshardAll
	wide.Checkpoint = &policy
	second := s.retry(source, db.RetryOptions{Spec: &wide})
	if f := second.StartedFrom; f == nil || f.Job != source || f.Step != 7 || f.Parts != 2 {
		t.Fatalf("the retry starts from %+v", f)
	}
	// It ends before its first own step: its retry gets all parts of the same step.
	s.cancel(second.ID)
	third := s.retry(second.ID, db.RetryOptions{})
	if f := third.StartedFrom; f == nil || f.Job != source || f.Step != 7 || f.Parts != 2 {
		t.Errorf("the retry of the retry starts from %+v", f)
	}
	// With a step of its own, a retry with as many members gets one part for each member.
	s.saved(third.ID, 1, 8)
	s.cancel(third.ID)
	if f := s.retry(third.ID, db.RetryOptions{}).StartedFrom; f == nil || f.Job != third.ID || f.Parts != 0 {
		t.Errorf("the retry of a job with a step starts from %+v", f)
	}
	if fresh := s.retry(third.ID, db.RetryOptions{Fresh: true}); fresh.StartedFrom != nil {
		t.Errorf("a fresh retry starts from %+v", fresh.StartedFrom)
	}
}

func TestMembersReadAllPartsOfTheStepOfTheirClaimAlone(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	source := s.sharded()
	for rank := range 2 {
		mustExec(t, s.pool, `INSERT INTO chunks (tenant, sha256, bytes, job, attempt, rank, copy)
			VALUES ('default', decode($1, 'hex'), 1000, $2, 1, $3, 'c')`, chunk(fmt.Sprint("part", rank)).SHA256, source, rank)
		mustExec(t, s.pool, `INSERT INTO chunk_refs (job, step, attempt, rank, tenant, sha256)
			VALUES ($1, 7, 1, $2, 'default', decode($3, 'hex'))`, source, rank, chunk(fmt.Sprint("part", rank)).SHA256)
	}
	all, same := s.queued(resharding(1, source, 7)), s.queued(resharding(2, source, 7))
	reads := func(job berth.JobID, attempt int, machine berth.MachineID, rank int, step int64, want bool) {
		t.Helper()
		o := db.ObjectAccess{Tenant: "default", Job: source, Attempt: 1, Rank: rank, Step: step}
		if err := s.db.Objects.Authorize(t.Context(), machine, o); (err == nil) != want {
			t.Errorf("the file of member %d, step %d: %v", rank, step, err)
		}
		part := db.Member{Job: source, Attempt: 1, Rank: rank}
		list := []string{chunk(fmt.Sprint("part", rank)).SHA256}
		copies, err := s.db.Chunks.Readable(t.Context(), machine, part, step, list)
		if err != nil || (len(copies) == 1) != want {
			t.Errorf("the chunk of member %d, step %d: %v, %v", rank, step, copies, err)
		}
		if step != 7 { // its own checkpoints may not leave out such a chunk
			return
		}
		held, err := s.db.Chunks.Held(t.Context(), db.Member{Tenant: "default", Job: job, Attempt: attempt, Rank: 0}, list)
		if err != nil || held[list[0]] != want {
			t.Errorf("member 0 of %s may leave out the chunk of member %d: %v, %v", job, rank, held, err)
		}
	}
	attempt := s.scattered(all, 1)
	if _, err := s.claims(all, attempt, 0, true); err != nil {
		t.Fatal(err)
	}
	reads(all, attempt, "m0", 0, 7, true)
	reads(all, attempt, "m0", 1, 7, true)
	reads(all, attempt, "m0", 1, 5, false)
	o := db.ObjectAccess{Tenant: "default", Job: source, Attempt: 1, Rank: 2, Step: 7}
	if err := s.db.Objects.Authorize(t.Context(), "m0", o); berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("a part that no member saved: %v", err)
	}
	if err := s.db.Objects.Authorize(t.Context(), "m1", db.ObjectAccess{Tenant: "default", Job: source, Attempt: 1, Rank: 1,
		Step: 7}); berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("another machine: %v", err)
	}
	s.mustTell(all, attempt, 0, berth.PhaseSealed, ended(failure.CauseExited, 1))

	// As many members as saved the step get one part each.
	attempt = s.scattered(same, 2)
	for rank := range 2 {
		if _, err := s.claims(same, attempt, rank, true); err != nil {
			t.Fatal(err)
		}
	}
	reads(same, attempt, "m0", 0, 7, true)
	reads(same, attempt, "m0", 1, 7, false)
}

// An agent of the version before would take the missing manifest for damage.
func TestAnAgentWithoutPartsDoesNotGetAReshardedJob(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	source := s.sharded()
	all, same := s.queued(resharding(3, source, 7)), s.queued(resharding(2, source, 7))
	attempt := s.scattered(all, 3)
	if _, err := s.claims(all, attempt, 0, false); berth.CodeOf(err) != berth.CodeUnavailable || !strings.Contains(err.Error(), "upgrade the agent") {
		t.Errorf("the claim of an old agent: %v", err)
	}
	if _, err := s.claims(all, attempt, 0, true); err != nil {
		t.Errorf("the claim of a new agent: %v", err)
	}
	if _, err := s.claims(same, s.scattered(same, 2), 0, false); err != nil {
		t.Errorf("a job whose members get their own parts: %v", err)
	}
}

// A berthd of the version before would give each member one part alone.
func TestTheVersionBeforeReshardsNothing(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	source := s.sharded()
	all, same := s.queued(resharding(3, source, 7)), s.queued(resharding(2, source, 7))
	const claim = `UPDATE allocations SET state = 'active', claimed_at = coalesce(claimed_at, now()) WHERE job = $1`
	s.scattered(all, 3)
	err := s.unknowing(claim, all)
	if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "57T01" {
		t.Errorf("a claim: %v", err)
	}
	s.scattered(same, 2)
	if err := s.unknowing(claim, same); err != nil {
		t.Errorf("a claim of a job whose members get their own parts: %v", err)
	}

	// Its elements get all parts as well, although its statement names no such column.
	array := s.submit(func(j *spec.Job) {
		resharding(1, source, 7)(j)
		j.Array = &spec.Array{Size: 2}
	})
	s.tend(array)
	parts := func() string {
		return one[string](s.stage, `SELECT string_agg(o.parts::text, ' ') FROM jobs j JOIN job_sources o ON o.job = j.id WHERE j.parent = $1`, array)
	}
	if got := parts(); got != "2 2" {
		t.Errorf("elements get %q parts", got)
	}
	mustExec(t, s.pool, `DELETE FROM job_sources WHERE job = $1`, s.element(array, 1))
	if err := s.unknowing(`INSERT INTO job_sources (job, source, attempt, step) VALUES ($1, $2, 1, 7)`, s.element(array, 1), source); err != nil {
		t.Fatal(err)
	}
	if got := parts(); got != "2 2" {
		t.Errorf("elements of the version before get %q parts", got)
	}
	refusedTooOld(t, "a copy of the file", s.oldCopies(&all, nil, s.job(all).SubmittedAt))
}
