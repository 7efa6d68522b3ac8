package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"berth"
	"berth/activities/node"
	"berth/internal/lib/failpoint"
)

// execute takes the rank from its claim to its end, or to the knowledge that it
// will never begin. An error is errAbandoned or errAgentStops.
func (r *member) execute() (berth.Exit, error) {
	if r.withdrawn {
		return notStarted(berth.CauseNotStarted, "its job ended before this machine took it"), nil
	}
	if err := r.take(); errors.Is(err, errStopped) {
		return notStarted(berth.CauseNotStarted, "stopped before its container was made"), nil
	} else if err != nil {
		return berth.Exit{}, err
	}
	if r.claim.Phase == berth.PhaseSealed { // only the order to forget it is missing
		r.reports.record()
		<-r.ctx.Done()
		return berth.Exit{}, context.Cause(r.ctx)
	}
	var err error
	if r.scratch, err = openScratch(r.sup.cfg.StateDir, r.name(), r.claim.Spec.Checkpoint != nil); err != nil {
		return notStarted(berth.CauseEngine, err.Error()), nil
	}
	if c := r.claim.Spec.Checkpoint; c != nil {
		r.keeper = newKeeper(r)
	}
	r.shipper = newShipper(r)
	found, err := r.find()
	if err != nil {
		return berth.Exit{}, err
	}
	if found == nil && r.alone() {
		if err := r.sup.fence.demand(r.ctx); err != nil && r.ctx.Err() == nil {
			return notStarted(berth.CauseEngine, "at_most_one work is refused: "+err.Error()), nil
		}
	}
	if found == nil {
		if ended := r.vanished(); ended != nil {
			return *ended, nil
		}
		if exit, err := r.prepare(); exit != nil || err != nil {
			return deref(exit), err
		}
		found = &node.Container{State: node.ContainerCreated}
	} else {
		r.fenceIt(*found)
		r.noteImage()
		m := r.scratch.memo()
		r.fate = fate{cause: m.Intent, at: m.IntentAt, says: m.IntentSays, begun: found.StartedAt}
		r.tellRestored(m)
		if r.keeper != nil {
			r.keeper.skip(m.Restored)
		}
	}
	if found.State == node.ContainerCreated {
		if exit, err := r.awaitStart(); exit != nil || err != nil {
			return deref(exit), err
		}
	}
	exit, err := r.watch()
	if err != nil {
		return exit, err
	}
	return exit, r.awaitOrder()
}

func deref(x *berth.Exit) berth.Exit {
	if x == nil {
		return berth.Exit{}
	}
	return *x
}

// notStarted is the end of a rank whose process never ran.
func notStarted(cause berth.ExitCause, message string) berth.Exit {
	return berth.Exit{Cause: cause, Message: message, FinishedAt: time.Now().UTC()}
}

// find looks for a container that an earlier process made. A rank that begins
// here has none: the engine's name check tells otherwise at its creation. One
// that has begun by the record is looked for, whoever it was that took it up:
// its end is not to be told while it lives.
func (r *member) find() (*node.Container, error) {
	if !r.adopts && r.claim.Phase == berth.PhaseClaimed && !r.claim.Orders.Start {
		return nil, nil
	}
	for wait := r.timing().backoff(); ; {
		c, err := r.runtime().Inspect(r.ctx, r.name())
		switch {
		case err == nil && r.owns(c):
			return &c, nil
		case err == nil:
			r.log.Error("container name is taken by a foreign container", "container", c.Name)
			return nil, nil // its creation will fail, and say so
		case errors.Is(err, node.ErrNoContainer):
			return nil, nil
		case r.ctx.Err() != nil:
			return nil, context.Cause(r.ctx)
		}
		r.log.Warn("container engine does not answer; tried again", "err", err)
		if err := wait.wait(r.ctx); err != nil {
			return nil, err
		}
	}
}

// vanished is the end of a rank that must have had a container and has none.
func (r *member) vanished() *berth.Exit {
	had := r.claim.Phase == berth.PhaseRunning || r.claim.Phase == berth.PhaseExited || r.claim.Orders.Start || r.scratch.memo().Begun
	if !had {
		return nil
	}
	x := notStarted(berth.CauseVanished, "its container is gone, and nobody saw it end")
	return &x
}

// prepare makes everything ready and creates the container. It returns an exit
// if the rank will not begin.
func (r *member) prepare() (*berth.Exit, error) {
	patience := r.timing().PreparePatience
	limited, free := context.WithTimeoutCause(r.ctx, patience, errTooSlow)
	defer free()
	ctx, cancel := context.WithCancelCause(limited)
	defer cancel(nil)
	watched := make(chan struct{})
	go func() { // an order to stop cancels a pull or a restore
		defer close(watched)
		for {
			if stops(r.orders.standing()) {
				cancel(errStopped)
				return
			}
			select {
			case <-r.orders.kick:
			case <-ctx.Done():
				return
			}
		}
	}()
	exit, err := r.prepareUntilStopped(ctx)
	cancel(nil)
	<-watched
	r.orders.nudge() // it may have taken a kick that was not for it
	switch {
	case r.ctx.Err() != nil:
		return nil, context.Cause(r.ctx)
	case err != nil && errors.Is(context.Cause(ctx), errStopped):
		x := notStarted(berth.CauseNotStarted, "stopped while it was prepared")
		return &x, nil
	case err != nil && errors.Is(context.Cause(ctx), errTooSlow):
		x := notStarted(berth.CauseEngine, fmt.Sprintf("was not prepared within %s, and is still %s", patience, r.reports.phase()))
		if r.reports.phase() == berth.PhasePulling {
			x.Cause = berth.CauseImageUnavailable
		}
		return &x, nil
	}
	return exit, err
}

func (r *member) prepareUntilStopped(ctx context.Context) (*berth.Exit, error) {
	if exit := r.withheld(); exit != nil {
		return exit, nil
	}
	var image string
	var restored *int64
	for _, part := range []struct {
		name   string
		wanted bool
		do     func(context.Context) (*berth.Exit, error)
	}{
		{"pull", true, func(ctx context.Context) (exit *berth.Exit, err error) {
			image, exit, err = r.pull(ctx)
			return exit, err
		}},
		{"workdir", r.claim.Spec.Workdir != "", r.workdir},
		{"inputs", len(r.claim.Spec.Inputs) > 0, r.inputs},
		{"restore", r.restores(), func(ctx context.Context) (exit *berth.Exit, err error) {
			restored, exit, err = r.restore(ctx)
			return exit, err
		}},
	} {
		if !part.wanted {
			continue
		}
		if exit, err := r.part(ctx, part.name, part.do); exit != nil || err != nil {
			return exit, err
		}
	}
	if r.keeper != nil {
		r.keeper.skip(restored)
	}
	if restored != nil {
		if err := r.scratch.remember(memo{Restored: restored}); err != nil {
			x := notStarted(berth.CauseEngine, err.Error())
			return &x, nil
		}
		_ = failpoint.Hit("agent.restore.after")
		r.reports.edit(later, func(p *berth.RankReport) { p.Restored = restored })
	}
	return r.part(ctx, "create", func(ctx context.Context) (*berth.Exit, error) { return r.create(ctx, image, restored) })
}

// pull makes the image usable: the one that its name meant when the job first
// ran. A name that means another image by now is not followed.
func (r *member) pull(ctx context.Context) (image string, exit *berth.Exit, err error) {
	r.reports.enter(slow, berth.PhasePulling)
	image = r.claim.Spec.Image
	_ = failpoint.Hit("agent.pull.before")
	digest, err := r.ensureImage(ctx, image)
	_ = failpoint.Hit("agent.pull.after")
	if want := r.claim.ImageDigest; err == nil && want != "" && digest != want {
		image += "@" + want
		if digest, err = r.ensureImage(ctx, image); err != nil {
			err = fmt.Errorf("%s is not the image any more that this job began with: %w", r.claim.Spec.Image, err)
		}
	}
	cause := berth.CauseImageUnavailable
	switch {
	case err == nil:
		r.reports.edit(later, func(p *berth.RankReport) { p.ImageDigest = digest })
		return image, nil, nil
	case ctx.Err() != nil:
		return "", nil, err
	case errors.Is(err, node.ErrImageNotFound):
		cause = berth.CauseImageNotFound
	case errors.Is(err, node.ErrImageMismatch):
		r.log.Error("image content does not match its digest", "image", image, "err", err)
		cause = berth.CauseImageMismatch
	}
	x := notStarted(cause, err.Error())
	return "", &x, nil
}

// pullTries is how often this machine asks for an image that may yet come,
// before another one does.
const pullTries = 5

func (r *member) ensureImage(ctx context.Context, image string) (digest string, err error) {
	wait := &backoff{min: r.timing().PullPause, max: 16 * r.timing().PullPause}
	for try := 1; ; try++ {
		digest, err = r.runtime().EnsureImage(ctx, image, r.login())
		if err == nil || try == pullTries || ctx.Err() != nil || !errors.Is(err, node.ErrImageUnavailable) {
			return digest, err
		}
		r.log.Warn("image not pulled; tried again", "image", image, "try", try, "err", err)
		if err := wait.wait(ctx); err != nil {
			return "", err
		}
	}
}

// create makes the container, or adopts the one of the same name. What an
// engine cannot do now it may be able to do in a moment.
func (r *member) create(ctx context.Context, image string, restored *int64) (*berth.Exit, error) {
	spec := r.containerSpec(image, restored)
	if err := r.addSecrets(&spec); err != nil {
		x := notStarted(berth.CauseEngine, "give it its secrets: "+err.Error())
		return &x, nil
	}
	if err := r.joinNetwork(&spec); err != nil {
		x := notStarted(berth.CauseEngine, err.Error())
		return &x, nil
	}
	patience := time.Now().Add(r.timing().EnginePatience)
	for wait := r.timing().backoff(); ; {
		c, err := r.ask(ctx, spec)
		cause := berth.CauseEngine
		switch {
		case err == nil, errors.Is(err, node.ErrExists) && r.owns(c):
			r.fenceIt(c)
			r.noteImage()
			return nil, nil
		case ctx.Err() != nil:
			return nil, err
		case errors.Is(err, node.ErrExists):
			err = fmt.Errorf("the name %s is taken by a container that is not this machine's: %w", spec.Name, err)
		case errors.Is(err, node.ErrBadCommand):
			cause = berth.CauseBadCommand
		case errors.Is(err, node.ErrDevice):
			cause = berth.CauseDevice
		case errors.Is(err, node.ErrImageUnavailable):
			cause = berth.CauseImageUnavailable
		case berth.CodeOf(err) != berth.CodeInvalid && time.Now().Before(patience):
			r.log.Warn("container not created; tried again", "err", err)
			if err := wait.wait(ctx); err != nil {
				return nil, err
			}
			continue
		}
		x := notStarted(cause, err.Error())
		return &x, nil
	}
}

// ask has the engine create the container, and the network of its gang first. It
// returns when ctx ends, but the engine's answer is awaited all the same: what was
// asked for is made, wanted or not, and a removal before that finds nothing. So
// the rank's leftovers are removed only after the answer.
func (r *member) ask(ctx context.Context, spec node.ContainerSpec) (node.Container, error) {
	done, err := r.sup.turns.take(ctx)
	if err != nil {
		return node.Container{}, err
	}
	_ = failpoint.Hit("agent.create.before")
	type answer struct {
		c   node.Container
		err error
	}
	answered := make(chan answer, 1)
	r.helpers.Go(func() { // run waits for helpers before it removes anything
		defer done()
		patient, cancel := context.WithCancel(r.sup.ctx)
		defer cancel()
		defer context.AfterFunc(ctx, func() { _ = sleep(patient, r.timing().LatePatience); cancel() })()
		var a answer
		if r.network != "" {
			a.err = r.ensureNetwork(patient)
		}
		if a.err == nil {
			a.c, a.err = r.runtime().Create(patient, spec)
		}
		_ = failpoint.Hit("agent.create.after")
		answered <- a
	})
	select {
	case a := <-answered:
		return a.c, a.err
	case <-ctx.Done():
		return node.Container{}, context.Cause(ctx)
	}
}

// noteImage remembers the image for the job's tenant: its container exists.
func (r *member) noteImage() { r.sup.images.note(r.claim.Tenant, r.claim.Spec.Image) }

// masterPort is where the one member of a job finds itself; its container has a
// network of its own.
const masterPort = "29500"

func (r *member) containerSpec(image string, restored *int64) node.ContainerSpec {
	c := r.claim
	labels := r.labels()
	labels[berth.LabelSpecHash] = c.SpecHash
	env := maps.Clone(c.Spec.Env)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, map[string]string{
		"BERTH_JOB_ID":         string(c.Job),
		"BERTH_ATTEMPT":        strconv.Itoa(c.Attempt),
		"BERTH_MEMBER":         strconv.Itoa(c.Rank),
		"BERTH_MEMBERS":        strconv.Itoa(c.Members),
		"BERTH_GPUS":           strings.Join(c.GPUs, ","),
		"BERTH_RESTORED_STEP":  "",
		"BERTH_CHECKPOINT_DIR": "",
		"NODE_RANK":            strconv.Itoa(c.Rank),
		"NNODES":               strconv.Itoa(c.Members),
	})
	maps.Copy(env, r.rendezvous())
	mounts := []node.Mount{{Host: filepath.Join(r.scratch.dir, "workspace"), Target: "/workspace"}}
	if p := c.Spec.Checkpoint; p != nil {
		env["BERTH_CHECKPOINT_DIR"] = p.Path
		mounts = append(mounts, node.Mount{Host: filepath.Join(r.scratch.dir, "checkpoint"), Target: p.Path})
	}
	mounts = append(mounts, r.inputMounts()...)
	if restored != nil {
		env["BERTH_RESTORED_STEP"] = strconv.FormatInt(*restored, 10)
	}
	folder := "" // the image's own
	if c.Spec.Workdir != "" {
		folder = "/workspace"
	}
	return node.ContainerSpec{
		Name: r.name(), Labels: labels, Image: image, WorkingDir: folder,
		Entrypoint: c.Spec.Entrypoint, Command: c.Spec.Command, Env: env,
		CPUMilli: c.CPUMilli, MemoryMiB: c.MemoryMiB, ShmMiB: int64(c.Spec.Resources.ShmSize),
		GPUs: r.engineGPUs(), Mounts: mounts,
	}
}

func (r *member) tellRestored(m memo) {
	if m.Restored != nil {
		r.reports.edit(later, func(p *berth.RankReport) { p.Restored = m.Restored })
	}
}
