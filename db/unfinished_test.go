package db_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/wire"
)

// followedSet returns the followed members in the set of a machine.
func (a *agent) followedSet() []berth.AllocationID {
	a.t.Helper()
	a.digest = ""
	r, err := a.sync(func(*wire.SyncRequest) {})
	if err != nil {
		a.t.Fatal(err)
	}
	return r.Followed
}

// unfinished stores an unfinished line as the agent process boot.
func (a *agent) unfinished(boot string, alloc berth.AllocationID, text string) error {
	return a.db.Agents.StoreUnfinished(a.t.Context(), a.machine, wire.UnfinishedReport{AgentBoot: boot, Epoch: a.epoch,
		Lines: []wire.UnfinishedLine{{Alloc: alloc, At: time.Now(), Stderr: true, Text: text}}})
}

func TestFollowedMemberShowsItsUnfinishedLine(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	id, attempt := s.started(nil)
	alloc := s.alloc(id, attempt)
	follow := func() wire.LogLine {
		t.Helper()
		l, ok, err := s.db.Logs.FollowUnfinished(t.Context(), id, 0)
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		return l
	}
	if got := a.followedSet(); len(got) > 0 {
		t.Errorf("members %d are followed without a follower", got)
	}
	if err := a.unfinished(a.boot, alloc, "early"); err != nil {
		t.Errorf("a line without a follower: %v", err)
	}
	orders := s.db.Hub().Subscribe(db.TopicMachine, "m0")
	if l := follow(); l.Text != "" || l.Attempt != attempt {
		t.Errorf("the first line is %+v", l)
	}
	if !hears(t, orders) {
		t.Error("the agent does not learn of the follower")
	}
	if got := a.followedSet(); !slices.Equal(got, []berth.AllocationID{alloc}) {
		t.Errorf("followed %d, want %d", got, alloc)
	}
	lines, others := s.db.Logs.UnfinishedHints(id, 0), s.db.Logs.UnfinishedHints(id, 1)
	if err := a.unfinished(a.boot, alloc, "\r50%"); err != nil {
		t.Fatal(err)
	}
	if !hears(t, lines) {
		t.Error("the follower does not learn of the line")
	}
	if len(others.C) > 0 {
		t.Error("the follower of another member reads the line of this one")
	}
	l, ok, err := s.db.Logs.Unfinished(t.Context(), id, 0)
	if err != nil || !ok || l.Text != "\r50%" || l.Stream != "stderr" || l.Attempt != attempt || l.Member != 0 {
		t.Errorf("the line is %+v, %v, %v", l, ok, err)
	}
	if l := follow(); l.Text != "\r50%" {
		t.Errorf("a further follower gets %+v", l)
	}
	if err := a.unfinished("agent0", alloc, "forged"); !berth.IsSlug(err, berth.SlugStaleEpoch) {
		t.Errorf("a session that is over got %v", err)
	}

	mustExec(t, s.pool, `UPDATE followed_members SET until = now()`)
	if got := a.followedSet(); len(got) > 0 {
		t.Errorf("members %d are followed after their lease", got)
	}
	if _, ok, err := s.db.Logs.Unfinished(t.Context(), id, 0); ok || err != nil {
		t.Errorf("a line is shown after the lease: %v", err)
	}
	if l := follow(); l.Text != "" {
		t.Errorf("a new lease shows the old line %q", l.Text)
	}
}

func TestOnlyTheLatestRunningAttemptIsFollowed(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.register("host1", "agent1")
	id, attempt := s.started(nil)
	for rank, want := range []bool{true, false} {
		if _, ok, err := s.db.Logs.FollowUnfinished(t.Context(), id, rank); ok != want || err != nil {
			t.Errorf("member %d: %v, %v", rank, ok, err)
		}
	}
	mustExec(t, s.pool, `UPDATE jobs SET attempt = attempt + 1 WHERE id = $1`, id)
	if _, ok, err := s.db.Logs.FollowUnfinished(t.Context(), id, 0); ok || err != nil {
		t.Errorf("attempt %d is followed after it was replaced: %v", attempt, err)
	}
	if _, ok, err := s.db.Logs.Unfinished(t.Context(), id, 0); ok || err != nil {
		t.Errorf("the line of attempt %d is shown after it was replaced: %v", attempt, err)
	}
}

// A machine that does not call is not lost for minutes, and its members' lines may be old ones all this time.
func TestLineOfASilentMachineIsNotShown(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	id, attempt := s.started(nil)
	if _, _, err := s.db.Logs.FollowUnfinished(t.Context(), id, 0); err != nil {
		t.Fatal(err)
	}
	if err := a.unfinished(a.boot, s.alloc(id, attempt), "50%"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		silence time.Duration
		want    string
	}{
		{0, "50%"}, {5*berth.SyncWait - 10*time.Second, "50%"}, {5*berth.SyncWait + time.Second, ""}, {time.Second, "50%"},
	} {
		s.quiet("m0", c.silence)
		followed, ok, err := s.db.Logs.FollowUnfinished(t.Context(), id, 0)
		read, known, readErr := s.db.Logs.Unfinished(t.Context(), id, 0)
		if err != nil || readErr != nil || !ok || !known {
			t.Fatal(ok, err, known, readErr)
		}
		if followed.Text != c.want || read.Text != c.want {
			t.Errorf("after %s of silence the line is %q and %q, want %q", c.silence, followed.Text, read.Text, c.want)
		}
	}
}

// A report of a member that has just ended comes before the agent clears the line.
func TestLineOfAMemberThatHasEndedIsNotShown(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	id, attempt := s.started(nil)
	if _, _, err := s.db.Logs.FollowUnfinished(t.Context(), id, 0); err != nil {
		t.Fatal(err)
	}
	for _, want := range []bool{true, false} {
		if err := a.unfinished(a.boot, s.alloc(id, attempt), "50%"); err != nil {
			t.Fatal(err)
		}
		if l, ok, err := s.db.Logs.Unfinished(t.Context(), id, 0); ok != want || err != nil {
			t.Errorf("the line is %q, %v, %v; want %v", l.Text, ok, err, want)
		}
		mustExec(t, s.pool, `UPDATE allocations SET state = 'exited' WHERE job = $1`, id)
	}
}

// Agents repeat lines that do not change; a repetition writes nothing and wakes no follower.
func TestRepeatedLineChangesNothing(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	id, attempt := s.started(nil)
	alloc := s.alloc(id, attempt)
	if _, _, err := s.db.Logs.FollowUnfinished(t.Context(), id, 0); err != nil {
		t.Fatal(err)
	}
	report := func(boot string, at time.Time) error {
		return s.db.Agents.StoreUnfinished(t.Context(), "m0", wire.UnfinishedReport{AgentBoot: boot, Epoch: a.epoch,
			Lines: []wire.UnfinishedLine{{Alloc: alloc, At: at, Text: "Password: "}}})
	}
	row := func() string { return one[string](s, `SELECT xmin::text || ' ' || at::text FROM followed_members`) }
	at := time.Now()
	if err := report(a.boot, at); err != nil {
		t.Fatal(err)
	}
	before := row()
	hints := s.db.Logs.UnfinishedHints(id, 0)
	if err := report(a.boot, at); err != nil {
		t.Fatal(err)
	}
	if now := row(); now != before || len(hints.C) > 0 {
		t.Errorf("a repeated line is written, %s after %s, and causes %d hints", now, before, len(hints.C))
	}
	if err := report("agent0", at); !berth.IsSlug(err, berth.SlugStaleEpoch) {
		t.Errorf("a session that is over got %v", err)
	}
	if err := report(a.boot, at.Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	if now := row(); now == before || !hears(t, hints) {
		t.Error("a line of a later time is not stored")
	}
	mustExec(t, s.pool, `UPDATE followed_members SET line = ''`)
	if err := report(a.boot, at.Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	if line := one[string](s, `SELECT line FROM followed_members`); line != "Password: " {
		t.Errorf("after the server has forgotten a line, the repetition leaves %q", line)
	}
}

func TestExpiredLeasesAreRemoved(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.register("host1", "agent1")
	id, _ := s.started(nil)
	mustExec(t, s.pool, `INSERT INTO followed_members (alloc, job, attempt, rank, machine_id, until)
		SELECT -n, $1, 1, 0, 'm0', now() - make_interval(mins => n) FROM generate_series(0, 5) n`, id)
	if _, ok, err := s.db.Logs.FollowUnfinished(t.Context(), id, 0); !ok || err != nil {
		t.Fatal(ok, err)
	}
	term := s.term()
	for _, want := range []int{3, 1, 0} { // the leases of -2 to -5 are older than the age
		if n, err := s.db.Logs.PruneFollowed(t.Context(), term, 90*time.Second, 3); n != want || err != nil {
			t.Errorf("%d leases are removed, want %d: %v", n, want, err)
		}
	}
	if n := one[int](s, `SELECT count(*)::integer FROM followed_members`); n != 3 {
		t.Errorf("%d leases are left, want 3: the new one, and the two that have just ended", n)
	}
}

// A follower that waits for the row of its member holds no other row, so followers cannot wait for each other.
func TestFollowerLocksTheRowOfItsMemberAlone(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.register("host1", "agent1")
	id, attempt := s.started(nil)
	mustExec(t, s.pool, `INSERT INTO followed_members (alloc, job, attempt, rank, machine_id, until)
		SELECT n, $1, 1, 0, 'm0', now() - interval '1 hour' FROM unnest($2::bigint[]) n`,
		id, []int64{int64(s.alloc(id, attempt)), -1, -2})
	done := make(chan error, 1)
	s.holding(fmt.Sprintf(`SELECT FROM followed_members WHERE alloc = %d FOR UPDATE`, s.alloc(id, attempt)), func() {
		go func() {
			_, _, err := s.db.Logs.FollowUnfinished(t.Context(), id, 0)
			done <- err
		}()
		s.blocked(1)
		mustExec(t, s.pool, `SELECT FROM followed_members WHERE alloc < 0 FOR UPDATE NOWAIT`)
	})
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestMachineHasAtMostSoManyFollowedMembers(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	mustExec(t, s.pool, `INSERT INTO followed_members (alloc, job, attempt, rank, machine_id, until)
		SELECT n, gen_random_uuid(), 1, 0, 'm0', now() + interval '1 hour' FROM generate_series(1, 100) n`)
	if got := a.followedSet(); len(got) != wire.MaxFollowedMembers {
		t.Errorf("%d members are followed, want %d", len(got), wire.MaxFollowedMembers)
	}
	mustExec(t, s.pool, `UPDATE cluster SET quarantined_at = now()`)
	if got := a.followedSet(); len(got) > 0 {
		t.Errorf("a quarantined cluster orders %d readers", len(got))
	}
}

func TestUnfinishedLinesThatNoAgentSendsAreRefused(t *testing.T) {
	t.Parallel()
	line := wire.UnfinishedLine{Alloc: 1, Text: "x"}
	for name, lines := range map[string][]wire.UnfinishedLine{
		"no lines":       nil,
		"too many lines": make([]wire.UnfinishedLine, wire.MaxFollowedMembers+1),
		"a member twice": {line, line},
		"a long line":    {{Alloc: 1, Text: strings.Repeat("x", wire.MaxUnfinishedText+1)}},
		"invalid UTF-8":  {{Alloc: 1, Text: "\xff"}},
		"a zero byte":    {{Alloc: 1, Text: "\x00"}},
	} {
		for i := range lines {
			if name == "too many lines" {
				lines[i].Alloc = berth.AllocationID(i)
			}
		}
		if err := (wire.UnfinishedReport{Lines: lines}).Valid(); berth.CodeOf(err) != berth.CodeInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	longest := wire.UnfinishedLine{Alloc: 2, Text: strings.Repeat("x", wire.MaxUnfinishedText)}
	if err := (wire.UnfinishedReport{Lines: []wire.UnfinishedLine{line, longest}}).Valid(); err != nil {
		t.Error(fmt.Errorf("a report of two lines: %w", err))
	}
}
