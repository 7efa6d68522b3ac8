package agent

import (
	"context"
	"sync"
	"time"

	"berth"
	"berth/internal/lib/failpoint"
)

// seal reports how the rank ended and stores what it leaves behind. An exit
// that is quickly sealed is told together with its seal; otherwise it is told
// first, because it sets the devices free.
func (r *member) seal(x berth.Exit) error {
	_ = failpoint.Hit("agent.exit.before")
	r.log.Info("rank ended", "cause", x.Cause, "code", x.Code, "oom_killed", x.OOMKilled)
	r.ended.Store(true)
	r.forgetSecrets()
	ctx, span := r.traced(r.ctx, "seal")
	stored := make(chan berth.Exit, 1)
	go func() {
		sealed := r.storeRest(ctx, x)
		defer func() { stored <- sealed }()
		span.End(faultOf(r.ctx, nil, context.Cause(r.ctx)))
	}()
	together := time.NewTimer(r.timing().SealTogether)
	defer together.Stop()
	var sealed berth.Exit
	select {
	case sealed = <-stored:
	case <-together.C:
		r.reports.edit(0, func(p *berth.RankReport) { p.Phase, p.Exit = berth.PhaseExited, &x })
		sealed = <-stored // ends with the rank
	}
	if r.ctx.Err() != nil {
		return context.Cause(r.ctx)
	}
	_ = failpoint.Hit("agent.seal.before")
	r.reports.edit(0, func(p *berth.RankReport) { p.Phase, p.Exit = berth.PhaseSealed, &sealed })
	return nil
}

// storeRest waits for the log, what it used, the checkpoints and, of a rank that has done its
// work, its outputs. It returns the exit with the names of outputs that were there
// and are not stored.
func (r *member) storeRest(ctx context.Context, x berth.Exit) berth.Exit {
	if r.shipper == nil {
		return x
	}
	var rest sync.WaitGroup
	store := func(name string, f func(context.Context)) {
		rest.Go(func() {
			_, span := r.sup.cfg.Traces.Start(ctx, name)
			f(r.ctx)
			span.End("")
		})
	}
	store("logs", r.shipper.finish)
	if r.meter != nil {
		store("use", r.meter.finish)
	}
	if r.keeper != nil {
		store("checkpoints", r.keeper.finish)
	}
	if x.Done() && len(r.claim.Spec.Outputs) > 0 {
		store("outputs", func(ctx context.Context) { x.Unstored, x.Refused, x.OverQuota = r.storeOutputs(ctx) })
	}
	rest.Wait()
	r.shipper.conclude(r.ctx)
	return x
}
