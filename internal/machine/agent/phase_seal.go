package agent

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"berth"
	"berth/failure"
	"berth/internal/lib/failpoint"
	"berth/spec"
	"berth/wire"
)

// sealPhase reports the member's exit, and stores the log, the resource usage, the
// checkpoints and the outputs. An exit that is quickly sealed is reported together
// with its seal. Otherwise it is reported first, because it frees the devices. It is never reported
// before the aftermath: the operator's check, and the proof that the devices are free.
type sealPhase struct {
	*core
	vault    vaultDir
	retry    *retrier
	shipper  *logShipper         // nil: the folder was never opened, and nothing is to be stored
	sampler  *usageSampler       // nil: the container never ran
	uploader *checkpointUploader // nil without checkpoints
	hang     *hangWatch          // nil: the container never ran
	outputs  *outputStore
	after    *aftermath
	spans    spans
	result   *result
}

// Do stores the logs, checkpoints and outputs, and reports the seal. If storing takes longer than
// SealTogether, Do reports the exit alone first.
func (p *sealPhase) Do(member context.Context) (phase, error) {
	exit := p.result.exit
	exit.User, exit.ImageRoot = p.claim.userNumber(), p.result.imageRoot
	_ = failpoint.Hit("agent.exit.before")
	p.log.Info("member ended", "cause", exit.Cause, "code", exit.Code, "oom_killed", exit.OOMKilled)
	p.retry.ended.Store(true)
	p.forgetSecrets()
	ctx, span := p.spans.start(member, "seal")
	stored := make(chan failure.Exit, 1)
	ended := exit // exit changes below, next to the storing
	go func() {
		sealed := p.store(ctx, ended)
		defer func() { stored <- sealed }()
		span.End(faultOf(member, nil, context.Cause(member)))
	}()
	// The check of the operator and the storing of the results run at the same time.
	cleared := p.after.begin(ctx, exit)
	together := time.NewTimer(p.timing.SealTogether)
	defer together.Stop()
	var sealed failure.Exit
	select {
	case sealed = <-stored:
	case <-together.C:
		exit.CheckFailed = cmp.Or(exit.CheckFailed, <-cleared)
		if member.Err() != nil {
			<-stored
			return "", context.Cause(member)
		}
		p.reports.edit(0, func(r *wire.RankReport) { r.Phase, r.Exit = berth.PhaseExited, &exit })
		sealed = <-stored // at the latest when the member's context ends
	}
	sealed.CheckFailed = cmp.Or(exit.CheckFailed, <-cleared)
	if member.Err() != nil {
		return "", context.Cause(member)
	}
	_ = failpoint.Hit("agent.seal.before")
	p.reports.edit(0, func(r *wire.RankReport) { r.Phase, r.Exit = berth.PhaseSealed, &sealed })
	return phaseRecord, nil
}

// store waits for the log, the samples, the checkpoints and the outputs. It returns the
// exit with the names of outputs that exist and are not stored. A member that has not done
// its work stores only the outputs with "when: always".
func (p *sealPhase) store(ctx context.Context, x failure.Exit) failure.Exit {
	if p.shipper == nil {
		return x
	}
	var rest sync.WaitGroup
	store := func(name string, f func(context.Context)) {
		rest.Go(func() {
			_, span := p.spans.traces.Start(ctx, name)
			f(p.ctx)
			span.End("")
		})
	}
	store("logs", p.shipper.finish)
	if p.sampler != nil {
		store("use", p.sampler.finish)
	}
	if p.hang != nil && p.hang.sent != nil {
		store("hang", p.hang.finish)
	}
	if p.uploader != nil {
		store("checkpoints", p.uploader.finish)
	}
	switch always := slices.ContainsFunc(p.claim.Spec.Outputs, spec.Output.Always); {
	case x.Done() && len(p.claim.Spec.Outputs) > 0:
		store("outputs", func(ctx context.Context) { x.Unstored, x.Refused, x.OverQuota = p.outputs.store(ctx) })
	case x.Started() && always:
		store("outputs", p.outputs.storeAlways)
	}
	rest.Wait()
	// Last: until then the sender watches for a server that has less of the log than it had.
	p.shipper.conclude(p.ctx)
	return x
}

// forgetSecrets removes the secrets of a container that has ended.
func (p *sealPhase) forgetSecrets() {
	p.claim.Secrets, p.claim.InputLogins, p.claim.ImageLogin = nil, nil, nil
	if err := p.vault.remove(p.name()); err != nil {
		p.log.Error("cannot remove secret files, will retry", "err", err)
	}
}
