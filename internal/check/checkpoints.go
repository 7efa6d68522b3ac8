package check

import (
	"fmt"
	"slices"
	"strings"

	"berth"
	"berth/db/history"
	"berth/failure"
	"berth/wire"
)

// resumesFromVerified proves invariant 15. Each attempt resumed from the newest whole
// checkpoint of earlier attempts; see resumed. A checkpoint counts as verified only with
// the shards of all members, and each rejected checkpoint has its event, so that a user
// can see why work was lost.
func resumesFromVerified(c *jobCase) {
	for _, t := range c.j.Attempts {
		c.resumed(t)
	}
	for _, p := range c.j.Checkpoints {
		switch {
		case p.State == berth.CheckpointVerified && !p.Whole():
			c.breach(rows(p), "step %d of attempt %d counts as verified with %d shards of %d", p.Step, p.Attempt,
				p.Shards, p.Ranks)
		case p.State == berth.CheckpointBad && !c.says(wire.EventCheckpointRejected,
			fmt.Sprintf("step %d of attempt %d:", p.Step, p.Attempt)):
			c.breach(rows(p), "step %d of attempt %d was rejected without an event", p.Step, p.Attempt)
		}
	}
}

// says reports whether the history has an event of this kind with this prefix of its
// text.
func (c *jobCase) says(kind wire.EventKind, prefix string) bool {
	return slices.ContainsFunc(c.j.Events,
		func(e history.Event) bool { return e.Kind == kind && strings.HasPrefix(e.Detail, prefix) })
}

// sourcesAreKept proves invariant 30: the checkpoint from which a live job started is whole,
// has a part for each member or gives all its parts to each member, and is verified, or was found bad
// since. A pinned step is never pruned.
func sourcesAreKept(c *jobCase) {
	for _, p := range c.j.Checkpoints {
		if p.Pinned && p.State == berth.CheckpointPruned {
			c.breach(rows(p), "step %d of attempt %d is pinned and was pruned", p.Step, p.Attempt)
		}
	}
	s := c.j.Start
	if s == nil || c.j.State.Terminal() {
		return
	}
	kept := s.State == berth.CheckpointVerified || s.State == berth.CheckpointBad
	switch {
	case !kept:
		c.breach(rows(s), "it started from step %d of job %s, which is %q", s.Step, s.Job, s.State)
	case s.Shards < s.Ranks:
		c.breach(rows(s), "it started from step %d of job %s, which has %d shards of %d", s.Step, s.Job, s.Shards,
			s.Ranks)
	case s.Parts > 0 && s.Parts != s.Ranks:
		c.breach(rows(s), "each member gets %d parts of step %d of job %s, which has parts of %d", s.Parts, s.Step,
			s.Job, s.Ranks)
	case c.j.Kind == "job" && s.Parts == 0 && s.Ranks != c.j.Members:
		c.breach(rows(s), "it has %d members and started from step %d of job %s, which has parts of %d", c.j.Members,
			s.Step, s.Job, s.Ranks)
	}
}

// resumed judges the step from which an attempt resumed; -1 stands for an attempt that
// began without a checkpoint. The checkpoint from which the job started counts while no
// earlier attempt has a whole one that was not rejected. A newer whole step is a breach,
// unless it was rejected or a restore of it failed: then an older step is the right choice.
// Checkpoints of the same attempt do not count, since they were written after its begin.
func (c *jobCase) resumed(t history.Attempt) {
	begun := int64(-1)
	if t.ResumeFrom != nil {
		begun = *t.ResumeFrom
	}
	found, own := false, false // own: the job itself has a checkpoint to resume from
	for _, p := range c.j.Checkpoints {
		if p.Attempt >= t.Attempt || !p.Whole() {
			continue
		}
		found = found || p.Step == begun
		own = own || p.State != berth.CheckpointBad && p.FailedRestores == 0
		if p.Step > begun && p.State != berth.CheckpointBad && p.FailedRestores == 0 {
			what := fmt.Sprintf("resumed from step %d", begun)
			if begun < 0 {
				what = "began from nothing"
			}
			c.breach(rows(t, p), "attempt %d %s, although step %d of attempt %d was verified and never rejected",
				t.Attempt, what, p.Step, p.Attempt).Attempt = t.Attempt
		}
	}
	s := c.j.Start
	switch {
	case own:
	case s == nil:
		found = found || begun < 0
	default:
		found = found || begun == s.Step || begun < 0 && s.State == berth.CheckpointBad
	}
	if !found && (begun >= 0 || !own) { // else the loop has reported it
		what := fmt.Sprintf("resumed from step %d, and no earlier attempt has a whole checkpoint of it", begun)
		if begun < 0 {
			what = "began from nothing, although the job started from a checkpoint"
		}
		c.breach(rows(t), "attempt %d %s", t.Attempt, what).Attempt = t.Attempt
	}
}

// saved reports whether an attempt has stored a whole checkpoint.
func (c *jobCase) saved(attempt int) bool {
	return slices.ContainsFunc(c.j.Checkpoints, func(p history.Checkpoint) bool {
		return p.Attempt == attempt && p.Whole()
	})
}

// never lists, by reason, the budgets that must not be charged, independently of
// the classification's other inputs.
var never = map[berth.ReasonCode][]failure.Budget{
	berth.ReasonMachineLost:      {failure.BudgetUser},
	berth.ReasonMachineError:     {failure.BudgetUser},
	berth.ReasonImageUnavailable: {failure.BudgetUser},
	berth.ReasonGPUError:         {failure.BudgetUser},
	berth.ReasonUnclaimed:        {failure.BudgetUser},
	berth.ReasonPreempted:        {failure.BudgetUser, failure.BudgetInfra},
	berth.ReasonSuspended:        {failure.BudgetUser, failure.BudgetInfra},
	berth.ReasonDrained:          {failure.BudgetUser, failure.BudgetInfra},
	berth.ReasonCanceledByUser:   {failure.BudgetUser, failure.BudgetInfra},
	berth.ReasonOOM:              {failure.BudgetInfra, failure.BudgetNone},
	berth.ReasonDiskLimit:        {failure.BudgetInfra, failure.BudgetNone},
	berth.ReasonTimeLimit:        {failure.BudgetInfra, failure.BudgetNone},
	berth.ReasonImageNotFound:    {failure.BudgetInfra, failure.BudgetNone},
}

// budgetsAddUp proves invariant 16: no attempt is charged to a budget that its reason
// excludes, and the job's counts follow from its attempts. A requeue at the time limit is free
// of charge, and needs a new checkpoint. Losses in the row may be fewer
// than the charged attempts, because a new verified checkpoint resets the count.
func budgetsAddUp(c *jobCase) {
	failures, losses := 0, 0
	for _, t := range c.j.Attempts {
		if t.NextState != "" && t.Budget == "" {
			return // from before budgets were recorded
		}
		switch t.Budget {
		case failure.BudgetUser:
			failures++
		case failure.BudgetInfra:
			losses++
		case failure.BudgetNone, "":
		default:
			c.breach(rows(t), "attempt %d was charged to %q", t.Attempt, t.Budget)
		}
		requeued := t.Outcome != nil && t.Outcome.Rule == failure.RuleRequeue
		if requeued && !c.saved(t.Attempt) {
			c.breach(rows(t), "attempt %d was requeued at its time limit, and has no whole checkpoint of its own",
				t.Attempt).Attempt = t.Attempt
		}
		if t.Outcome != nil && !requeued && slices.Contains(never[t.Outcome.Code], t.Budget) {
			c.breach(rows(t), "attempt %d ended as %s and was charged to %s", t.Attempt, t.Outcome.Code,
				t.Budget).Attempt = t.Attempt
		}
	}
	if failures != c.j.Failures {
		c.breach(nil, "%d attempts were charged to the user, and the job counts %d", failures, c.j.Failures)
	}
	if c.j.Losses > losses {
		c.breach(nil, "%d attempts were charged to infrastructure, and the job counts %d", losses, c.j.Losses)
	}
	if c.j.Losses > failure.MaxInfraLosses {
		c.breach(nil, "infrastructure spoiled %d attempts since the last checkpoint; allowed are %d", c.j.Losses,
			failure.MaxInfraLosses)
	}
}
