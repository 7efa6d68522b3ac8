package db_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/spec"
	"berth/wire"
)

func hashes(digit string) berth.Address { return berth.Address("sha256:" + strings.Repeat(digit, 64)) }

// reads sets the fetched code and one fetched input of a report.
func reads(digit string) func(*wire.RankReport) {
	return func(p *wire.RankReport) {
		p.Fetched = []wire.Fetched{{What: "workdir", Address: hashes("0"), Files: 1}, {What: "inputs[0]", Address: hashes(digit), Files: 1, Cached: true}}
	}
}

func ofABucket(j *spec.Job) {
	j.Inputs = []spec.Input{{From: "s3://bucket/set/", To: "/data"}}
	j.Retry.MaxAttempts = 9
}

func (s *stage) warnings(id berth.JobID) []string {
	s.t.Helper()
	return one[[]string](s, `SELECT coalesce(array_agg(attempt || ': ' || detail ORDER BY seq), '{}') FROM job_events WHERE job = $1 AND kind = 'warning'`, id)
}

func TestAnAttemptThatReadsOtherDataThanTheOneBeforeSaysSo(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	id := s.submit(ofABucket)
	for _, digit := range []string{"a", "a", "", "b", "b", "a"} {
		attempt := s.place(id, "m0")
		a.mustClaim(id, attempt)
		if digit != "" { // else it ended before
			a.report(id, attempt, berth.PhasePrepared, reads(digit))
			a.report(id, attempt, berth.PhasePrepared, reads(digit)) // whose answer was lost
		}
		a.report(id, attempt, berth.PhaseSealed, withExit(1))
		if r := s.settle(id, attempt); r.Next != berth.Retrying {
			t.Fatalf("attempt %d: %+v", attempt, r)
		}
		s.freed()
	}
	want := []string{
		"4: inputs[0] (s3://bucket/set/) has changed since attempt 2: member 0 reads sha256:bbbbbbbbbbbb, attempt 2 read sha256:aaaaaaaaaaaa",
		"6: inputs[0] (s3://bucket/set/) has changed since attempt 5: member 0 reads sha256:aaaaaaaaaaaa, attempt 5 read sha256:bbbbbbbbbbbb",
	}
	if diff := cmp.Diff(want, s.warnings(id)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Warnings of an attempt are bounded, and so a gang says once that its members differ,
// not once a member.
func TestMembersThatReadDifferentDataSaySoOnce(t *testing.T) {
	t.Parallel()
	for from, hint := range map[string]string{
		"s3://bucket/set/":       "",
		"file:///datasets/set/a": "; files of folders that are local to each machine count as different",
	} {
		s := newGangStage(t)
		id := s.gang(3, func(j *spec.Job) { j.Inputs = []spec.Input{{From: from, To: "/data"}} })
		attempt := s.begin(id, on("m0", whole(0)), on("m1", whole(0)), on("m2", whole(0)))
		for rank, digit := range []string{"a", "b", "c"} {
			s.claim(id, attempt, rank)
			m, p := s.rankOf(id, attempt, rank)
			p.Phase = berth.PhasePrepared
			reads(digit)(&p)
			if _, err := m.sync(func(r *wire.SyncRequest) { r.Reports = []wire.RankReport{p} }); err != nil {
				t.Fatal(err)
			}
		}
		want := []string{"1: inputs[0] (" + from + ") changed while the members of this attempt fetched it: member 1 reads sha256:bbbbbbbbbbbb, an earlier member read sha256:aaaaaaaaaaaa" + hint}
		if got := s.warnings(id); !slices.Equal(got, want) {
			t.Errorf("warnings are %q, want %q", got, want)
		}
		for rank := range 3 {
			s.mustTell(id, attempt, rank, berth.PhaseRunning, nil)
		}
		if j := s.job(id); j.Status != berth.Running {
			t.Errorf("job is %s", j.Status)
		}
	}
}
