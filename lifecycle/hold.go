package lifecycle

import (
	"slices"

	"berth"
	"berth/failure"
)

// Held returns the member whose files a hold keeps after a settlement: the earliest one that failed by
// itself. ok is false for an attempt that is not held: it succeeded, it was stopped on request, or its
// end lies with the machine, of which nothing may be left. Held changes nothing about the settlement.
// See docs/adr/0112-a-failed-attempt-is-held-by-a-debug-job.md.
func Held(job Job, s Settlement) (held Member, ok bool) {
	stopped := job.CancelAt != nil || job.State != berth.Scheduled && job.State != berth.Running
	ended := s.Verdict.Next == berth.Failed || s.Verdict.Next == berth.Retrying
	if job.Debug || stopped || !ended || s.Verdict.Rule == failure.RuleRequeue {
		return Member{}, false
	}
	var failed []Member
	for _, m := range job.Members {
		if m.Orphaned { // the others may have failed because it was lost
			return Member{}, false
		}
		if m.State == berth.AllocExited && m.Sealed && !m.CutOff && m.Drain == "" &&
			m.Exit != nil && failedItself(*m.Exit) {
			failed = append(failed, m)
		}
	}
	if len(failed) == 0 {
		return Member{}, false
	}
	return slices.MinFunc(failed, func(a, b Member) int {
		if c := a.Exit.FinishedAt.Compare(b.Exit.FinishedAt); c != 0 {
			return c
		}
		return a.Rank - b.Rank
	}), true
}

// failedItself reports whether a container ran and its program failed: by its exit code, by a hang, or at
// its time limit. A program beyond its disk limit is left out, since a container with its files is beyond the
// limit, too.
func failedItself(x failure.Exit) bool {
	switch x.Cause {
	case failure.CauseExited:
		return x.Started() && x.Code != 0
	case failure.CauseStalled, failure.CauseTimeLimit:
		return x.Started()
	default:
		return false
	}
}
