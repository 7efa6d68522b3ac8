package agent

import (
	"context"
	"slices"
	"time"

	"berth/activities/node"
	"berth/failure"
)

const (
	infoLimit    = 10 * time.Second // for the engine's description of itself after an end
	restoreKills = time.Minute      // after its start an engine may still end containers that it cannot restore
)

// endedBySignal are the exit codes of a program that a signal has ended: SIGKILL,
// SIGTERM or SIGINT, or 2 from a Go program that is process 1 and has no handler.
var endedBySignal = []int{2, 128 + 2, 128 + 9, 128 + 15}

// evidence turns the end of a container into the member's exit: the facts, and the cause as far
// as this machine knows the cause. failure.Classify interprets both.
type evidence struct {
	*core
	plan    *stopPlan
	gpus    *gpuHealth
	xids    node.GPUs
	health  *engineHealth
	shipper *logShipper
}

// exit returns the member's exit.
func (v *evidence) exit(e ending) failure.Exit {
	plan, c := v.plan, e.container
	if e.vanished {
		return failure.Exit{
			Cause: failure.CauseVanished, Code: 255, Message: "container removed from outside Berth (docker rm)",
			StartedAt: plan.begun.UTC(), FinishedAt: time.Now().UTC(),
		}
	}
	progress := v.reports.progress()
	counted := progress != nil && progress.Total > 0
	x := failure.Exit{
		Cause: failure.CauseExited, Code: c.ExitCode, OOMKilled: c.OOMKilled, Message: c.Error,
		Complete:  counted && progress.Step >= progress.Total,
		StartedAt: c.StartedAt, FinishedAt: c.FinishedAt,
	}
	engine := ""
	if plan.cause == "" && (c.ExitCode != 0 || counted && !x.Complete) {
		engine = v.engineFault(e)
	}
	byNotice, says := failure.ExitCause(""), ""
	if !c.OOMKilled && !x.Complete {
		byNotice, says = plan.exitOnNotice(c.ExitCode, c.FinishedAt)
	}
	switch fault := v.gpus.fault(v.claim.GPUs); {
	case plan.cause != "" && !c.FinishedAt.Before(plan.at):
		x.Cause, x.Message = plan.cause, plan.says
	case byNotice != "":
		x.Cause, x.Message = byNotice, says
	case engine != "":
		x.Cause, x.Message = failure.CauseEngine, engine
	case c.ExitCode != 0 && fault != "":
		x.Cause, x.Message = failure.CauseGPU, fault
	}
	if x.Cause == failure.CauseExited && c.ExitCode != 0 {
		x.Sign = failure.SignOf(v.shipper.lastLines(v.ctx))
		x.Xid = v.applicationXid(c)
	}
	if c.OOMKilled && c.ExitCode == 0 {
		v.reports.warn("a process in the container ran out of memory and was killed, but the command exited 0")
	}
	return x
}

// engineFault describes the engine's part in an end that no order and no limit caused, "" for no
// known part.
//
// An engine without live-restore ends its containers when it ends. If it shuts down in order, it
// stops them first and still answers; if it is killed, its successor ends them; and if this
// process did not watch, the only sign is an engine that started later than the container.
func (v *evidence) engineFault(e ending) string {
	c := e.container
	if c.Signaled {
		return "killed from outside Berth (docker kill or stop)"
	}
	ctx, cancel := context.WithTimeout(v.ctx, infoLimit)
	defer cancel()
	info, err := v.runtime.Info(ctx)
	if err == nil {
		v.health.note(info)
	}
	if v.health.keepsContainers() {
		return ""
	}
	switch {
	case err != nil && v.ctx.Err() == nil:
		return "the container engine stopped answering when the container ended"
	case !e.lostAt.IsZero() && c.FinishedAt.After(e.lostAt.Add(-time.Second)):
		return "the container engine shut down and stopped its containers"
	case info.StartedAt.IsZero() || !c.StartedAt.Before(info.StartedAt):
		return ""
	case c.FinishedAt.After(info.StartedAt.Add(-time.Second)) && c.FinishedAt.Before(info.StartedAt.Add(restoreKills)):
		return "the container engine restarted and stopped its containers"
	case slices.Contains(endedBySignal, c.ExitCode) || c.ExitCode == 0:
		return "the container engine restarted during the run and stopped its containers"
	}
	return ""
}

// xidLog is an inventory that also keeps the XIDs which leave a device usable: faults
// of the application, and notes.
type xidLog interface {
	// ApplicationXid returns the latest XID of these devices since then; 0: none.
	ApplicationXid(uuids []string, since time.Time) uint64
}

// applicationXid returns the driver's latest XID for the member's devices while the
// container ran.
func (v *evidence) applicationXid(c node.Container) uint64 {
	log, ok := v.xids.(xidLog)
	if !ok || len(v.claim.GPUs) == 0 {
		return 0
	}
	return log.ApplicationXid(v.claim.GPUs, c.StartedAt)
}
