package agent

import (
	"context"
	"log/slog"
	"reflect"
	"time"

	"berth"
	"berth/activities/node"
	"berth/wire"
)

// hostWatch reports the versions and the settings of the container engine, for the control plane to judge. It reads
// them at the start of each session, when the engine has been started again or has recovered, and every
// Timing.HostEvery: an engine may be upgraded without a restart of the agent. Facts that have not changed are reported
// once in each Timing.HostEvery, and in each session. An engine that has just been started may not name the versions of
// all its components yet, so it is asked again after Timing.HostRetry, and then at doubled intervals.
type hostWatch struct {
	reader node.HostReader
	health *engineHealth
	gpus   *gpuHealth
	// declared states that the GPUs are declared by a file. Containers then reach no GPU.
	declared bool
	log      *slog.Logger
}

// newHostWatch returns the watch of an agent's container engine.
func newHostWatch(cfg *Config, health *engineHealth, gpus *gpuHealth, log *slog.Logger) *hostWatch {
	return &hostWatch{reader: cfg.Runtime, health: health, gpus: gpus, declared: cfg.GPUs.Declared(), log: log}
}

// hostSent is the last report that arrived.
type hostSent struct {
	facts wire.HostFacts
	at    time.Time
	over  <-chan struct{} // of its session
}

// run reports until ctx ends. A server of a version without this call answers that there is none; it is asked again
// after Timing.HostEvery, or in the next session.
func (w *hostWatch) run(ctx context.Context, timing Timing, c *control) {
	var sent hostSent
	incomplete := timing.HostRetry
	for pause := timing.backoff(); ctx.Err() == nil; {
		_, over, err := c.terms(ctx)
		if err != nil {
			return
		}
		err = w.report(ctx, timing, c, over, &sent)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			pause = timing.backoff()
		case berth.CodeOf(err) == berth.CodeNotFound:
			w.log.Info("server does not support reports about the container engine, pausing them", "err", err)
			sent.over, sent.at = over, time.Now()
		default:
			w.log.Warn("report about the container engine failed, will retry", "err", err)
			if pause.wait(ctx) != nil {
				return
			}
			continue
		}
		rest := timing.HostEvery
		if err == nil && sent.facts.Incomplete() {
			rest = min(incomplete, rest)
			incomplete = 2 * rest
		} else {
			incomplete = timing.HostRetry
		}
		w.rest(ctx, rest, over)
	}
}

// report reads the facts, and sends them unless the session has received the same ones a short time ago.
func (w *hostWatch) report(ctx context.Context, timing Timing, c *control, over <-chan struct{}, sent *hostSent) error {
	facts, err := w.reader.Host(ctx, !w.declared && len(w.gpus.uuids()) > 0)
	if err != nil {
		return err
	}
	if over == sent.over && time.Since(sent.at) < timing.HostEvery && reflect.DeepEqual(facts, sent.facts) {
		return nil
	}
	if err := c.reportHost(ctx, facts); err != nil {
		return err
	}
	*sent = hostSent{facts, time.Now(), over}
	return nil
}

// rest waits until the facts must be read again: for a time, for the end of the session, or for the return of the
// engine.
func (w *hostWatch) rest(ctx context.Context, d time.Duration, over <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-over:
	case <-w.health.returned:
	case <-ctx.Done():
	}
}

// reportHost sends the facts under the terms of the present session.
func (c *control) reportHost(ctx context.Context, facts wire.HostFacts) error {
	return c.withTerms(ctx, func(epoch int64) error {
		return c.call(ctx, callTimeout, "engine", wire.HostReport{AgentBoot: c.boot, Epoch: epoch, Facts: facts}, nil)
	})
}
