package db_test

import (
	"strings"
	"testing"

	"berth"
	"berth/failure"
	"berth/spec"
	"berth/wire"
)

// digestOf returns a digest of an image made of one hexadecimal digit.
func digestOf(digit string) string { return "sha256:" + strings.Repeat(digit, 64) }

// found is the report of a member's machine about the digest that the machine has found.
func (s *gangStage) found(id berth.JobID, attempt, rank int, digest string) (*agent, wire.ImageReport) {
	s.t.Helper()
	a, p := s.rankOf(id, attempt, rank)
	return a, wire.ImageReport{
		AgentBoot: a.boot, Epoch: 1, Alloc: p.Alloc, Job: id, Attempt: attempt, Digest: digest,
	}
}

func (s *gangStage) mustFix(id berth.JobID, attempt, rank int, digest, want string) {
	s.t.Helper()
	a, r := s.found(id, attempt, rank, digest)
	if got, err := s.db.Agents.FixImage(s.t.Context(), a.machine, r); err != nil || got.Digest != want {
		s.t.Errorf("member %d has found %s and is to run %s, %v; want %s", rank, digest, got.Digest, err, want)
	}
}

func TestAllMembersOfAGangRunTheFirstDigest(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	id := s.gang(3, nil)
	attempt := s.begin(id, on("m0", whole(0)), on("m1", whole(0)), on("m2", whole(0)))
	for rank := range 2 {
		if c := s.claim(id, attempt, rank); !c.FixImage || c.ImageDigest != "" {
			t.Errorf("claim of member %d: fix_image %t, digest %q", rank, c.FixImage, c.ImageDigest)
		}
	}
	s.mustFix(id, attempt, 1, digestOf("1"), digestOf("1"))
	s.mustFix(id, attempt, 0, digestOf("0"), digestOf("1")) // the tag has moved between the two pulls
	s.mustFix(id, attempt, 0, digestOf("0"), digestOf("1"))
	s.mustFix(id, attempt, 1, digestOf("1"), digestOf("1"))
	if c := s.claim(id, attempt, 2); c.FixImage || c.ImageDigest != digestOf("1") {
		t.Errorf("a later claim: fix_image %t, digest %q", c.FixImage, c.ImageDigest)
	}
	if got := s.job(id).ImageDigest; got != digestOf("1") {
		t.Errorf("the job shows %q", got)
	}
}

func TestDigestsThatRaceHaveOneWinner(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	id := s.gang(2, nil)
	attempt := s.begin(id, on("m0", whole(0)), on("m1", whole(0)))
	for rank := range 2 {
		s.claim(id, attempt, rank)
	}
	type answer struct {
		digest string
		err    error
	}
	answers := make(chan answer, 2)
	// Both read that no digest is fixed, and then wait for the lock of the row.
	s.holding(`SELECT 1 FROM jobs WHERE id = '`+string(id)+`' FOR UPDATE`, func() {
		for rank, digit := range []string{"a", "b"} {
			a, r := s.found(id, attempt, rank, digestOf(digit))
			go func() {
				f, err := s.db.Agents.FixImage(t.Context(), a.machine, r)
				answers <- answer{f.Digest, err}
			}()
		}
		s.blocked(2)
	})
	for range 2 {
		if got := <-answers; got.err != nil || got.digest != s.job(id).ImageDigest {
			t.Errorf("a member is to run %q, %v; the job shows %s", got.digest, got.err, s.job(id).ImageDigest)
		}
	}
}

func TestAllElementsOfAnArrayRunTheFirstDigest(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	parent := s.array(3, nil)
	s.tend(parent)
	first, second := s.element(parent, 0), s.element(parent, 1)
	if c := s.takes(first, "m0"); !c.FixImage || c.ImageDigest != "" {
		t.Errorf("claim of the first element: fix_image %t, digest %q", c.FixImage, c.ImageDigest)
	}
	if c := s.takes(second, "m1"); !c.FixImage || c.ImageDigest != "" {
		t.Errorf("claim of the second element: fix_image %t, digest %q", c.FixImage, c.ImageDigest)
	}
	s.mustFix(second, 1, 0, digestOf("2"), digestOf("2"))
	s.mustFix(first, 1, 0, digestOf("1"), digestOf("2"))
	if c := s.takes(s.element(parent, 2), "m2"); c.FixImage || c.ImageDigest != digestOf("2") {
		t.Errorf("claim of the third element: fix_image %t, digest %q", c.FixImage, c.ImageDigest)
	}
	if got := s.job(parent).ImageDigest; got != digestOf("2") {
		t.Errorf("the array shows %q", got)
	}
}

// takes places a job of one member on a machine and claims it.
func (s *gangStage) takes(id berth.JobID, m string) wire.Claim {
	s.t.Helper()
	return s.claim(id, s.place(id, m), 0)
}

// A job of one member reports the digest with its start, and a digest in the reference is fixed.
func TestOnlyMembersThatMayDifferAskForTheDigest(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	if c := s.takes(s.queued(nil), "m0"); c.FixImage {
		t.Error("a job of one member is to fix its image")
	}
	id := s.gang(2, func(j *spec.Job) { j.Image = "alpine@" + digestOf("3") })
	attempt := s.begin(id, on("m1", whole(0)), on("m2", whole(0)))
	if c := s.claim(id, attempt, 0); c.FixImage {
		t.Error("a gang with a digest in its reference is to fix its image")
	}
}

func TestOnlyACurrentMemberFixesAnImage(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		change func(s *gangStage, id berth.JobID, r *wire.ImageReport) (machine berth.MachineID)
		code   berth.Code
	}{
		"another machine":    {func(*gangStage, berth.JobID, *wire.ImageReport) berth.MachineID { return "m1" }, berth.CodeConflict},
		"an earlier attempt": {func(_ *gangStage, _ berth.JobID, r *wire.ImageReport) berth.MachineID { r.Attempt = 0; return "m0" }, berth.CodeConflict},
		"another job": {func(_ *gangStage, _ berth.JobID, r *wire.ImageReport) berth.MachineID {
			r.Job = "00000000-0000-4000-8000-000000000000"
			return "m0"
		}, berth.CodeConflict},
		"an earlier process": {func(_ *gangStage, _ berth.JobID, r *wire.ImageReport) berth.MachineID {
			r.AgentBoot = "old"
			return "m0"
		}, berth.CodeConflict},
		"no digest": {func(_ *gangStage, _ berth.JobID, r *wire.ImageReport) berth.MachineID {
			r.Digest = "latest"
			return "m0"
		}, berth.CodeInvalid},
		"no job": {func(_ *gangStage, _ berth.JobID, r *wire.ImageReport) berth.MachineID { r.Job = "x"; return "m0" }, berth.CodeInvalid},
		"a member that has ended": {func(s *gangStage, id berth.JobID, _ *wire.ImageReport) berth.MachineID {
			s.mustTell(id, 1, 0, berth.PhaseExited, ended(failure.CauseExited, 1))
			return "m0"
		}, berth.CodeConflict},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := newGangStage(t)
			id := s.gang(2, nil)
			s.begin(id, on("m0", whole(0)), on("m1", whole(0)))
			s.claim(id, 1, 0)
			_, r := s.found(id, 1, 0, digestOf("1"))
			machine := c.change(s, id, &r)
			if f, err := s.db.Agents.FixImage(t.Context(), machine, r); berth.CodeOf(err) != c.code {
				t.Errorf("%+v, %v; want code %s", f, err, c.code)
			}
			if got := s.job(id).ImageDigest; got != "" {
				t.Errorf("the job has the digest %s", got)
			}
		})
	}
}
