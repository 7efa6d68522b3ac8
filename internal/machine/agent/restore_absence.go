package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"berth/failure"
	"berth/wire"
)

// absentAfter is the number of failed restores of a step in earlier attempts, after which a member asks whether the
// store is at fault or this step alone.
const absentAfter = 2

// maxAbsent is the most steps that one restore passes over. Each of them costs the patience of a restore twice, so an
// attempt without progress holds its machine for about half an hour at most.
const maxAbsent = 8

// looksFurther reports whether a restore that did not get a step may ask for the next one of the job: the step is one
// of this job, and has failed in earlier attempts, too. before is the number of steps that this restore did not get
// before.
func (p *restorePhase) looksFurther(point wire.RestorePoint, before int) bool {
	return point.FailedRestores >= absentAfter && before < maxAbsent && point.Job == ""
}

// passesOver decides about steps that the store did not return, once another one is in place: the store answers, so it
// is asked for the newer steps once more, the newest first. A step that it returns now is used. The steps that stand
// before the used one in the claim are reported as passed over, which keeps them stored, and the later claims of all
// members name them last. While the store returns no step at all, nothing is passed over, however many attempts that
// costs. Another failure, such as a full disk, proves nothing either.
//
// Each failed second request counts only if the store returns the manifest of the step in place right after it: an
// outage may begin at any time.
//
// absent and placed are indexes of steps in the claim, all of this job.
func (p *restorePhase) passesOver(ctx context.Context, absent map[int]cannotFetch, placed int) (phase, error) {
	points := p.claim.Restore
	if len(absent) > 0 && points[placed].Job != "" { // newest asks for no such step
		return p.result.notStarted(failure.CauseRestoreFailed,
			fmt.Sprintf("step %d%s is no step of this job", points[placed].Step, ofJob(points[placed])))
	}
	again := slices.SortedFunc(maps.Keys(absent), func(a, b int) int { return byAge(points[b], points[a]) })
	for _, i := range again {
		if byAge(points[i], points[placed]) < 0 {
			break
		}
		err := p.restore(ctx, points[i])
		bad, damaged := errors.AsType[damage](err)
		_, missing := errors.AsType[cannotFetch](err)
		switch {
		case err == nil:
			placed = i
		case ctx.Err() != nil:
			return "", context.Cause(ctx)
		case damaged:
			if end := p.rejectDamaged(ctx, points[i], bad.says); end != "" {
				return p.result.notStarted(failure.CauseRestoreFailed, end)
			}
			delete(absent, i)
		case !missing:
			return p.result.notStarted(failure.CauseRestoreFailed,
				fmt.Sprintf("restore step %d: %v", points[i].Step, err))
		default:
			gone := p.answers(ctx, points[placed])
			if ctx.Err() != nil {
				return "", context.Cause(ctx)
			}
			if gone != nil {
				return p.result.notStarted(failure.CauseRestoreFailed, fmt.Sprintf("restore step %d: %v; afterwards "+
					"the store did not return step %d again, so no step is passed over: %v", points[i].Step, err,
					points[placed].Step, gone))
			}
		}
	}
	if end := p.reportPassed(ctx, absent, placed); end != "" {
		return p.result.notStarted(failure.CauseRestoreFailed, end)
	}
	if err := p.clear(points[placed].Step); err != nil {
		return p.result.notStarted(failure.CauseRestoreFailed,
			fmt.Sprintf("remove steps other than %d: %v", points[placed].Step, err))
	}
	return p.restored(points[placed])
}

// answers asks the store once, without patience, for the manifest of a step that it has returned before. It returns an
// error if the store does not return it now.
func (p *restorePhase) answers(ctx context.Context, point wire.RestorePoint) error {
	place := &manifestPlace{room: p.manifests}
	defer place.leave()
	body, err := p.manifestOnce(ctx, point, place, new(atomic.Int64))
	if err != nil {
		return err
	}
	return registered(body, point)
}

// byAge orders checkpoints of one job, the oldest first.
func byAge(a, b wire.RestorePoint) int {
	return cmp.Or(cmp.Compare(a.Step, b.Step), cmp.Compare(a.Attempt, b.Attempt))
}

// reportPassed reports the absent steps that stand before the placed one in the claim as passed over. It returns a
// message if the member must end: a report failed, or other members of its gang may have a passed step in place.
func (p *restorePhase) reportPassed(ctx context.Context, absent map[int]cannotFetch, placed int) string {
	points := p.claim.Restore
	end := ""
	for i, point := range points[:placed] {
		missing, ok := absent[i]
		if !ok {
			continue
		}
		p.log.Warn("checkpoint passed over, the object store does not return it", "step", point.Step,
			"of_attempt", point.Attempt, "step_used", points[placed].Step, "err", missing)
		if err := p.reject(ctx, point, missing.Error(), &points[placed]); err != nil {
			return fmt.Sprintf("report that step %d is passed over: %v", point.Step, err)
		}
		if end == "" && p.claim.gang() {
			end = fmt.Sprintf("the object store does not return this member's part of step %d; the gang falls back to "+
				"another checkpoint: %v", point.Step, missing)
		}
	}
	return end
}

// clear removes all steps but the placed one, and the rest of a step that did not arrive: steps that only proved that
// the store answers, and steps that an earlier process of the agent placed and did not note. They would count against
// the disk of the job, and the agent would store them as steps of this attempt. The job has not started yet, so none of
// them is its own.
func (p *restorePhase) clear(placed int64) error {
	folder, err := p.scratch.checkpoint.Open(".")
	if err != nil {
		return err
	}
	defer folder.Close()
	names, err := folder.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		if step, ok := stepOf(name); ok && step != placed {
			if err := p.scratch.checkpoint.RemoveAll(name); err != nil {
				return err
			}
		}
	}
	return p.scratch.checkpoint.RemoveAll(partial)
}

// reject reports a checkpoint that did not arrive, and the step for which it is passed over; nil: it is not.
func (p *restorePhase) reject(
	ctx context.Context, point wire.RestorePoint, says string, used *wire.RestorePoint,
) error {
	return p.retry.patiently(ctx, func() error {
		r := p.rejection(point, says)
		r.Failed = true
		if used != nil {
			r.PassedOverFor, r.PassedOverForAttempt = &used.Step, used.Attempt
		}
		return p.control.reportCheckpoint(ctx, r)
	})
}

// rejectDamaged reports a checkpoint that is provably damaged. It returns a message if the member must end: the report
// failed, or other members of its gang may have the step in place, and all of them start again from an older one.
func (p *restorePhase) rejectDamaged(ctx context.Context, point wire.RestorePoint, says string) string {
	p.log.Error("checkpoint damaged", "step", point.Step, "of_attempt", point.Attempt, "damage", says)
	err := p.retry.patiently(ctx, func() error { return p.control.reportCheckpoint(ctx, p.rejection(point, says)) })
	switch {
	case err != nil:
		return fmt.Sprintf("report that step %d is damaged: %v", point.Step, err)
	case p.claim.gang():
		return fmt.Sprintf("this member's part of step %d is damaged; the gang falls back to an older checkpoint: %s",
			point.Step, says)
	}
	return ""
}

// rejection returns the report of a checkpoint that this member did not restore.
func (p *restorePhase) rejection(point wire.RestorePoint, says string) wire.CheckpointReport {
	return wire.CheckpointReport{
		Alloc: p.alloc, Job: p.job, Attempt: p.attempt, Rank: p.number,
		Step: point.Step, OfJob: point.Job, OfAttempt: point.Attempt, Bad: says,
	}
}
