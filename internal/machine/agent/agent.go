package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"berth"
	"berth/internal/lib/failpoint"
	"berth/internal/machine/deadman"
	"berth/spec"
	"berth/wire"
)

// Agent is one machine's agent.
type Agent struct {
	cfg     Config
	log     *slog.Logger
	state   *state
	creds   *credentials
	control *control
	fence   *fence
	belt    *belt

	mu     sync.Mutex
	sup    *Supervisor // nil before the machine has joined
	failed bool        // run has returned an error
}

// Run runs an agent until ctx ends, and returns nil then. Containers outlive it. It
// returns an error only for faults that time does not cure: a wrong configuration, a
// state folder in use, a rejected join token, a machine that was removed from the
// cluster. With Config.ShutdownAfter it returns ErrUnneeded once the machine is of no use;
// see serveBelted.
func Run(ctx context.Context, cfg Config) error {
	cfg, err := cfg.complete()
	if err != nil {
		return err
	}
	a := &Agent{cfg: cfg, log: cfg.Logger.With("machine_id", cfg.Machine)}
	a.belt = &belt{limit: cfg.ShutdownAfter, every: cfg.Timing.BeltEvery, look: a.look, log: a.log}
	cfg.Metrics.agent.Store(a) // complete: a scrape may read it from now on
	defer cfg.Metrics.agent.Store(nil)
	serving, end := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	defer func() {
		end(nil)
		watching.Wait()
	}()
	watching.Go(func() { a.belt.watch(serving, func() { end(ErrUnneeded) }) })
	err = a.serveBelted(serving)
	if errors.Is(err, errInUse) {
		return err // the machine, and its end, are the other agent's
	}
	if errors.Is(context.Cause(serving), ErrUnneeded) && ctx.Err() == nil {
		return a.unneeded(ctx)
	}
	return err
}

// serveBelted is run with the belt. A restart of the process would begin the belt's count again, so it stays in
// the process after an error of run:
//
//	error                                            what follows
//	-----------------------------------------------  ---------------------------------------------------
//	the state folder is in use by another agent      return: the other agent has a belt of its own
//	lasting: token rejected, machine removed         wait for the belt, for which only running containers
//	                                                 count from now on
//	any other, such as a disk that is full           run again after a pause; the belt counts meanwhile
//
// Without a belt it returns each error.
func (a *Agent) serveBelted(ctx context.Context) error {
	for wait := a.cfg.Timing.rerun(); ; {
		err := a.run(ctx)
		if err == nil || a.cfg.ShutdownAfter == 0 || errors.Is(err, errInUse) {
			return err
		}
		if _, ok := errors.AsType[lasting](err); ok {
			a.log.Error("agent failed, machine will be shut down once it runs no container", "err", err)
			a.fail()
			<-ctx.Done()
			return err
		}
		a.log.Error("agent failed, will retry", "err", err)
		if wait.wait(ctx) != nil {
			return err
		}
	}
}

// lasting is an error of this machine's identity: neither time nor a new start of the agent cures it.
type lasting struct{ err error }

// Error returns the text of the error.
func (e lasting) Error() string { return e.err.Error() }

// Unwrap returns the error.
func (e lasting) Unwrap() error { return e.err }

// run joins, and serves until ctx ends.
func (a *Agent) run(ctx context.Context) error {
	cfg := a.cfg
	st, err := openState(cfg.StateDir)
	if err != nil {
		return err
	}
	defer st.Close()
	a.state = st
	if a.creds, err = openCredentials(ctx, cfg, st, a.log); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	c := a.creds.client
	c.metrics = cfg.Metrics
	defer c.close()
	a.control = newControl(c, a.creds.now.Cluster, openWatermark(cfg.StateDir, a.log))
	a.control.direct = newDirectStore(cfg, a.control, a.log)
	defer a.control.direct.close()
	if a.fence, err = openFence(cfg.StateDir, cfg.Fence, a.log); err != nil {
		return err
	}
	defer a.fence.close()
	holds := &holdings{}
	kept, err := openCache(cfg.StateDir, cfg.CacheBytes, holds, a.log)
	if err != nil {
		return err
	}
	has := openImages(cfg.StateDir, cfg.Runtime, holds, a.log)
	a.supervise(newSupervisor(cfg, a.control, a.fence, kept, has, a.log))
	c.engineSilent, c.notice = a.sup.silentFor, a.sup.notices.header
	c.stuck = a.sup.stuck.givenUp

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all sync.WaitGroup
	all.Go(func() { a.sup.walls.watch(ctx, a.sup.beat, cfg.Server) })
	all.Go(func() { a.sup.watchGPUs(ctx) })
	all.Go(func() { a.sup.proveGPUs(ctx) })
	all.Go(func() { a.sup.watchEngine(ctx) })
	all.Go(func() { a.sup.quarantine.watch(ctx, a.sup.beat, cfg.Timing.HealthPoll) })
	all.Go(func() { a.sup.sweepNetworks(ctx) })
	all.Go(func() { a.sup.keepNetworks(ctx) })
	all.Go(func() { a.sup.stages.run(ctx, a.sup.beat, cfg.Timing, a.control) })
	all.Go(func() { a.sup.use.run(ctx, a.sup.beat, cfg.Timing, a.control) })
	all.Go(func() { a.sup.host.run(ctx, cfg.Timing, a.control) })
	all.Go(func() { a.sup.disk.run(ctx, a.sup.beat, cfg.Timing.DiskPoll) })
	all.Go(func() { a.sup.lines.run(ctx, a.sup.beat, a.control) })
	all.Go(func() { a.sup.notices.watch(ctx, cfg.Timing.NoticePoll) })
	all.Go(func() { straySweeper{a.sup}.watch(ctx) })
	all.Go(func() { has.watch(ctx, cfg.Timing.ImagePoll) })
	all.Go(func() { a.sup.pulled.watch(ctx, cfg.Timing.ImageSweep) })
	all.Go(func() { a.creds.keep(ctx) })
	all.Go(func() { a.fence.watch(ctx, a.sup.beat, a.control.endSession) })
	// Before the first session: members are started in sessions, and containers of the process
	// before are walled by the rules in the kernel.
	a.sup.walls.restoreFirst(ctx, cfg.Timing)
	err = a.keepSession(ctx)
	cancel()
	all.Wait()
	a.sup.close()
	return err
}

// supervise sets the supervisor, before any other goroutine uses it.
func (a *Agent) supervise(s *Supervisor) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sup = s
}

// keepSession registers and serves one session after the other, until ctx ends or the
// machine is removed.
func (a *Agent) keepSession(ctx context.Context) error {
	var sweeping sync.WaitGroup
	defer sweeping.Wait()
	swept := false
	for ctx.Err() == nil {
		answer, err := a.register(ctx)
		if berth.IsSlug(err, berth.SlugMachineRetired) {
			return lasting{fmt.Errorf("%w: remove %s, or take an empty state folder, and give a new join token",
				err, a.state.credentialPath())}
		}
		if err != nil {
			return nil
		}
		if answer.Cluster != a.control.clusterID() {
			// Containers of the other database are no longer ours to touch.
			a.log.Error("server belongs to another cluster, leaving containers alone",
				"was", a.control.clusterID(), "is", answer.Cluster)
			a.control.setCluster(answer.Cluster)
			a.creds.setCluster(answer.Cluster)
			continue // register again, with that cluster's containers
		}
		over := a.control.begin(answer.Epoch)
		a.log.Info("registered", "epoch", answer.Epoch, "kills", len(answer.Kill))
		if !swept {
			swept = true
			sweeping.Go(func() { a.sup.sweep(ctx, answer.Sync.Assignments) })
		}
		a.serve(ctx, over, answer.Sync)
	}
	return nil
}

// register opens a session and carries out its verdict on the containers here.
func (a *Agent) register(ctx context.Context) (wire.RegisterResponse, error) {
	for wait := a.cfg.Timing.backoff(); ; {
		answer, err := a.tryRegister(ctx)
		if err == nil {
			return answer, nil
		}
		if ctx.Err() != nil {
			return answer, ctx.Err()
		}
		if berth.IsSlug(err, berth.SlugMachineRetired) {
			return answer, err
		}
		if berth.CodeOf(err) == berth.CodeUnauthorized {
			renewed, why := a.creds.recover(ctx)
			if renewed {
				continue
			}
			if berth.IsSlug(why, berth.SlugMachineRetired) {
				return answer, why
			}
		}
		if berth.CodeOf(err) == berth.CodeUnauthorized || berth.CodeOf(err) == berth.CodeForbidden {
			a.log.Error("control plane refuses this machine, containers keep running", "err", err)
			wait.next = wait.max
		} else {
			a.log.Warn("registration failed, will retry", "err", err)
		}
		if err := wait.wait(ctx); err != nil {
			return answer, err
		}
	}
}

// tryRegister makes one attempt to register. It lists the containers before the call, so that the
// server can judge each of them, and adopts or kills them by the answer. An answer from another
// cluster changes nothing: its orders concern no container here.
func (a *Agent) tryRegister(ctx context.Context) (wire.RegisterResponse, error) {
	inv, err := a.inventory(ctx)
	if err != nil {
		return wire.RegisterResponse{}, err
	}
	found, err := a.sup.findContainers(ctx)
	if err != nil {
		return wire.RegisterResponse{}, err
	}
	a.fence.forget(found)
	sent := deadman.Now()
	answer, err := a.control.register(ctx, wire.RegisterRequest{
		HostBoot: a.cfg.HostBoot, AgentBoot: a.control.boot, Inventory: inv, Containers: a.sup.seen(found),
	})
	if err != nil || answer.Cluster != a.control.clusterID() {
		return answer, err
	}
	a.fence.renewed(sent)
	a.belt.renewed()
	a.sup.kept.hear(answer.Sync.Assignments)
	a.sup.adopt(found, answer.Kill, answer.Quarantine)
	return answer, nil
}

// inventory describes the machine to the server: the engine's and the GPUs' accounts,
// with the configuration's overrides.
func (a *Agent) inventory(ctx context.Context) (wire.Inventory, error) {
	info, err := a.cfg.Runtime.Info(ctx)
	if err != nil {
		return wire.Inventory{}, fmt.Errorf("ask the container engine: %w", err)
	}
	gpus, err := a.cfg.GPUs.Devices(ctx)
	if err != nil {
		return wire.Inventory{}, fmt.Errorf("list GPUs: %w", err)
	}
	a.sup.health.note(info)
	a.sup.gpus.note(gpus)
	gpus = a.sup.gpus.report(gpus)
	pick := func(override, found int64) int64 {
		if override > 0 {
			return override
		}
		return found
	}
	labels, away := a.sup.sources.Labels(ctx, info.DataRoot)
	for name, err := range away {
		a.log.Warn("a folder that jobs may read cannot be opened: "+
			"none that needs it is placed here until the agent registers anew", "folder", name, "err", err)
	}
	maps.Copy(labels, a.sup.mountLabels(labels))
	maps.Copy(labels, a.cfg.Labels)
	maps.Copy(labels, a.sup.walls.labels(a.cfg.GangNetwork))
	return wire.Inventory{
		Capacity: berth.Capacity{
			CPUMilli:  pick(a.cfg.Capacity.CPUMilli, info.CPUMilli),
			MemoryMiB: pick(a.cfg.Capacity.MemoryMiB, info.MemoryMiB),
			DiskMiB:   pick(a.cfg.Capacity.DiskMiB, max(0, info.DiskMiB-a.sup.disk.reservedMiB())),
			GPUMilli:  int64(len(gpus)) * 1000,
		},
		Region: a.cfg.Region, Site: a.cfg.Site, Pool: a.cfg.Pool, Labels: labels, Address: a.cfg.Address,
		GPUs: gpus, Declared: a.cfg.GPUs.Declared() && len(gpus) > 0,
		Engine: info.Name + " " + info.Version, Version: a.cfg.Version,
		Fence:   spec.Duration(a.fence.registered()),
		Network: gangNetwork(a.cfg.GangNetwork, info), Ports: a.cfg.GangPorts,
	}, nil
}

// serve runs the two loops of a session until the session ends: one waits for orders, the other
// reports.
func (a *Agent) serve(ctx context.Context, over <-chan struct{}, first wire.SyncResponse) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var loops sync.WaitGroup
	loops.Go(func() {
		select {
		case <-over:
			cancel(errSessionOver)
		case <-ctx.Done():
		}
	})
	inbox := &inbox{sup: a.sup}
	inbox.take(inbox.sent(), first)
	a.sup.notices.reportAgain()
	a.sup.outbox.reportAgain()
	loops.Go(func() { a.poll(ctx, over, inbox) })
	loops.Go(func() { a.report(ctx, over, inbox) })
	loops.Wait()
}

var errSessionOver = errors.New("session is over")

// Pauses between long polls. The cost of an answer grows with its set, and so does the
// pause: an idle machine learns of the next member at once, and a busy one of several
// together.
const (
	pausePerRank = 5 * time.Millisecond
	maxPollPause = 100 * time.Millisecond
)

// pollPause is the least time from one long poll to the next after an answer.
func pollPause(r wire.SyncResponse) time.Duration {
	return min(maxPollPause, pausePerRank*time.Duration(len(r.Assignments)))
}

// poll is the long poll for orders. Each successful call renews the lease.
func (a *Agent) poll(ctx context.Context, over <-chan struct{}, in *inbox) {
	for wait := a.cfg.Timing.backoff(); ctx.Err() == nil; {
		asked, at, sent := time.Now(), deadman.Now(), in.sent()
		answer, err := a.control.sync(ctx, wire.SyncRequest{
			AgentBoot: a.control.boot, Epoch: a.epoch(), Digest: in.digest(),
			WaitMS: int(a.pollWait().Milliseconds()),
		})
		if err == nil {
			wait.reset()
			a.heard(at, answer)
			in.take(sent, answer)
			_ = sleep(ctx, pollPause(answer)-time.Since(asked)) // the loop sees ctx's end
			continue
		}
		if a.broken(ctx, over, asked, wait, err) {
			return
		}
	}
}

// report sends changes, one call at a time. The changes during a call travel together in
// the next one.
func (a *Agent) report(ctx context.Context, over <-chan struct{}, in *inbox) {
	for wait := a.cfg.Timing.reportBackoff(); ; {
		batch, err := a.sup.outbox.next(ctx)
		if err != nil {
			return
		}
		asked, at, sent := time.Now(), deadman.Now(), in.sent()
		_ = failpoint.Hit("agent.report.before")
		req := batch.request()
		req.AgentBoot, req.Epoch, req.Digest, req.Seq = a.control.boot, a.epoch(), in.digest(), a.control.seq.Add(1)
		answer, err := a.control.sync(ctx, req)
		_ = failpoint.Hit("agent.report.after")
		if err == nil {
			wait.reset()
			a.heard(at, answer)
			a.sup.notices.pause(batch.notice)
			a.sup.outbox.delivered(batch, answer.Refused)
			in.take(sent, answer)
			continue
		}
		a.sup.outbox.undelivered(batch)
		if batch.cache != nil && berth.CodeOf(err) == berth.CodeInvalid {
			a.log.Info("server does not support cache reports, pausing them", "err", err)
			a.sup.outbox.refusedHoldings()
			continue
		}
		if a.broken(ctx, over, asked, wait, err) {
			return
		}
	}
}

// pollWait returns how long a poll may take. The lease in the answer counts from the
// question: a long poll must not use up a short fence.
func (a *Agent) pollWait() time.Duration {
	if after := a.cfg.Fence.After; after > 0 {
		return min(a.cfg.Timing.PollWait, after/6)
	}
	return a.cfg.Timing.PollWait
}

// heard takes the lease and the confirmation of a notice from an answer. The lease counts from the
// sending of the question.
func (a *Agent) heard(sent deadman.Instant, answer wire.SyncResponse) {
	if answer.Renewed {
		a.fence.renewed(sent)
		a.belt.renewed()
	}
	a.sup.notices.confirm(answer.Noticed)
}

// broken handles a call that was sent at asked and failed, and reports whether the session is over.
func (a *Agent) broken(
	ctx context.Context, over <-chan struct{}, asked time.Time, wait *backoff, err error,
) bool {
	if ctx.Err() != nil {
		return true
	}
	code := berth.CodeOf(err)
	if berth.IsSlug(err, berth.SlugStaleEpoch) || code == berth.CodeUnauthorized || code == berth.CodeForbidden {
		a.log.Warn("session ended by the control plane", "err", err)
		a.control.end(over)
		return true
	}
	a.log.Warn("control plane unreachable, containers keep running", "err", err)
	return wait.waitSince(ctx, asked) != nil
}

// epoch returns the epoch of the latest session, which may have ended.
func (a *Agent) epoch() int64 {
	a.control.mu.Lock()
	defer a.control.mu.Unlock()
	return a.control.epoch
}

// inbox puts answers into the order of their questions: each carries the full set of
// assignments, and an older set must not undo a newer one.
type inbox struct {
	sup *Supervisor

	mu      sync.Mutex
	asked   int64
	applied int64 // the latest question with an applied set
	has     string
}

// sent returns the number of a request that is about to be sent, counted from 1. take uses the
// numbers to recognize an answer that a later request has overtaken.
func (i *inbox) sent() int64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.asked++
	return i.asked
}

// digest returns the digest of the set of assignments that the machine has applied.
func (i *inbox) digest() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.has
}

// take applies the answer to the request with the number asked. The set of an overtaken answer
// may be older than the applied one: it can only add orders, and must remove no member.
func (i *inbox) take(asked int64, r wire.SyncResponse) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.sup.kept.hear(r.Assignments)
	i.sup.refuse(r.Stale)
	i.sup.ordered(r.Started)
	i.sup.lines.answered()
	switch {
	case !r.Changed:
		return
	case asked < i.applied:
		i.sup.hear(r.Assignments)
		return
	}
	defer i.sup.sessions.take(r.Sessions) // after the set: a member must be known
	i.applied, i.has = asked, r.Digest
	i.sup.assign(r.Assignments)
	i.sup.lines.follow(r.Followed)
}
