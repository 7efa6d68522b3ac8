package agent

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"berth/activities/node"
)

// missedProbes is the number of probes in a row without an answer after which the container
// engine counts as silent. A busy or restarting engine may miss one.
const missedProbes = 2

// engineHealth tracks two properties of the container engine: whether the engine answers, and
// whether containers outlive an engine restart. An engine may answer pings, and yet hang at every
// start and never report the end of a container; its machine must get no new work then. All
// methods may be called concurrently.
type engineHealth struct {
	runtime  node.Runtime
	patience time.Duration // with one probe
	log      *slog.Logger
	returned chan struct{} // of size 1: receives a value when the engine answers after a missed probe

	mu     sync.Mutex
	missed int       // probes in a row
	since  time.Time // when the first of them was sent
	info   node.RuntimeInfo

	// When the first and the last probe since the last missed one were sent; zero: none was answered.
	steady, answered time.Time
}

// answersAfter returns for how long after a moment the engine is known to have answered without a
// missed probe. A silence within that time, or none answered since, shortens it.
func (h *engineHealth) answersAfter(moment time.Time) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if moment.Before(h.steady) {
		moment = h.steady
	}
	return max(0, h.answered.Sub(moment))
}

// note takes the engine's latest description of itself.
func (h *engineHealth) note(info node.RuntimeInfo) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.info = info
}

// keepsContainers reports whether containers outlive the engine.
func (h *engineHealth) keepsContainers() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.info.LiveRestore
}

// dataRoot returns the folder in which the engine keeps all it has; "": not known.
func (h *engineHealth) dataRoot() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.info.DataRoot
}

// silentFor returns the duration of the engine's present silence, 0 if the engine answers.
func (h *engineHealth) silentFor() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.missed < missedProbes {
		return 0
	}
	return time.Since(h.since)
}

// probe asks the engine once. The containers with these labels are the machine's.
func (h *engineHealth) probe(ctx context.Context, labels map[string]string) {
	sent := time.Now()
	asking, cancel := context.WithTimeout(ctx, h.patience)
	defer cancel()
	err := h.runtime.Probe(asking, labels)
	if ctx.Err() != nil {
		return // the agent stops, which says nothing about the engine
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil {
		if h.missed >= missedProbes {
			h.log.Info("container engine recovered", "silent_for", time.Since(h.since).Round(time.Second))
		}
		if h.missed > 0 {
			select {
			case h.returned <- struct{}{}:
			default: // a value waits
			}
		}
		if h.missed > 0 || h.steady.IsZero() {
			h.steady = sent
		}
		h.missed, h.answered = 0, sent
		return
	}
	if h.missed++; h.missed == 1 {
		h.since = sent
	}
	switch {
	case h.missed < missedProbes:
		h.log.Warn("container engine missed a probe", "err", err)
	case h.missed == missedProbes:
		h.log.Error("container engine does not answer, machine gets no new work", "since", h.since, "err", err)
	}
}

// turns limits how many containers the engine creates or starts at a time.
type turns chan struct{}

// abreast is the number of turns. An engine does not get faster with more of them:
// they wait for each other in its networks and storage, and delay its other calls.
const abreast = 8

// take waits for a turn. The caller gives the turn back with done.
func (t turns) take(ctx context.Context) (done func(), err error) {
	select {
	case t <- struct{}{}:
		return func() { <-t }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// watchEngine probes the container engine, one probe at a time. Each call to sync
// reports the result, so the first probe may wait for the first session.
func (s *Supervisor) watchEngine(ctx context.Context) {
	if s.waitAdopted(ctx) != nil {
		return
	}
	for s.beat.sleep(ctx, s.cfg.Timing.EngineProbe) == nil {
		s.health.probe(ctx, s.ownLabels())
	}
}
