package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"berth"
	"berth/activities/node"
	"berth/failure"
	"berth/internal/lib/failpoint"
	"berth/internal/machine/mounts"
	"berth/spec"
)

// createPhase creates the container, or adopts one of the same name and labels. It
// repeats requests that the engine may grant in a moment.
type createPhase struct {
	*core
	cfg      *Config
	agent    context.Context // ends when the agent stops
	recipe   *recipe
	scratch  *scratch
	vault    vaultDir
	accounts *accountFiles
	mounts   *mounts.Table
	network  *string // receives the network made for the job on this engine
	walls    *walls
	turns    turns
	images   *images
	pulled   *pulledImages
	fencing  *fencing
	proof    *deviceProof
	helpers  *sync.WaitGroup
	spans    spans
	result   *result

	ahead *node.Network // taken out of the pool for this job; nil: none
}

// Do creates the container in a span of its own.
func (p *createPhase) Do(ctx context.Context) (phase, error) {
	return p.spans.step(ctx, "create", p.result, p.create)
}

// create creates the container, or takes an existing one with this member's labels. From the first
// error on it retries until EnginePatience is over, except for errors that the specification causes.
func (p *createPhase) create(ctx context.Context) (phase, error) {
	given := p.containerSpec()
	if _, err := p.claim.owner(); err != nil {
		return p.result.notStarted(failure.CauseEngine, err.Error())
	}
	if err := p.addSecrets(&given); err != nil {
		return p.result.notStarted(failure.CauseEngine, "provide the secrets: "+err.Error())
	}
	if err := p.walls.permits(p.claim.Spec.Network); err != nil {
		return p.result.notStarted(failure.CauseInputInvalid, err.Error())
	}
	if err := p.joinNetwork(&given); err != nil {
		return p.result.notStarted(failure.CauseNetwork, err.Error())
	}
	var patience time.Time
	for wait := p.timing.backoff(); ; {
		answer := p.ask(ctx, given, !patience.IsZero())
		c, err := answer.c, answer.err
		p.result.imageRoot = p.result.imageRoot || answer.imageRoot
		cause := failure.CauseEngine
		if err != nil && patience.IsZero() { // a slow engine is no faulty one
			patience = time.Now().Add(p.timing.EnginePatience)
		}
		switch {
		case err == nil, errors.Is(err, node.ErrExists) && p.owns(c):
			p.keepNetwork(c)
			p.fencing.list(c)
			p.proof.contains(p.alloc, c.ID)
			p.images.noteBy(p.claim.Tenant, p.claim.Spec.Image, p.recipe.held)
			p.pulled.free(p.identity)
			return phaseGive, nil
		case ctx.Err() != nil:
			return "", err
		case errors.Is(err, node.ErrExists):
			err = fmt.Errorf("the name %s is taken by a container that is not this machine's: %w", given.Name, err)
		case errors.Is(err, node.ErrBadImage):
			cause = failure.CauseImageInvalid
		case errors.Is(err, node.ErrBadCommand):
			cause = failure.CauseBadCommand
		case errors.Is(err, node.ErrUnmappedUser):
			cause = failure.CauseUnmappedUser
		case errors.Is(err, node.ErrDevice):
			cause = failure.CauseDevice
		case errors.Is(err, node.ErrImageUnavailable):
			cause = failure.CauseImageUnavailable
		case berth.CodeOf(err) != berth.CodeInvalid && time.Now().Before(patience):
			p.log.Warn("container create failed, will retry", "err", err)
			if err := wait.wait(ctx); err != nil {
				return "", err
			}
			continue
		}
		if errors.Is(err, node.ErrNoNetwork) {
			cause = failure.CauseNetwork
		}
		return p.result.notStarted(cause, err.Error())
	}
}

// created is the engine's answer to a creation.
type created struct {
	c         node.Container
	imageRoot bool // see failure.Exit
	err       error
}

// ask has the engine create the network of the job, then has the kernel take the network's
// rules, and then has the engine create the container. It
// returns when ctx ends, but the engine's answer is still awaited: the engine creates
// the container all the same, and a removal before that finds nothing. So the
// member's leftovers are removed only after the answer. again states that an earlier request failed.
func (p *createPhase) ask(ctx context.Context, given node.ContainerSpec, again bool) created {
	done, err := p.turns.take(ctx)
	if err != nil {
		return created{err: err}
	}
	_ = failpoint.Hit("agent.create.before")
	answered := make(chan created, 1)
	p.helpers.Go(func() { // the phase remove waits for helpers before it removes anything
		defer done()
		patient, cancel := context.WithCancel(p.agent)
		defer cancel()
		defer context.AfterFunc(ctx, func() { _ = sleep(patient, p.timing.LatePatience); cancel() })()
		var a created
		if *p.network != "" {
			given.Resolvers, a.err = p.ensureNetwork(patient, again)
		}
		if a.err == nil {
			a.imageRoot, a.err = p.settleUser(patient, &given)
		}
		if a.err == nil {
			a.c, a.err = p.runtime.Create(patient, given)
		}
		_ = failpoint.Hit("agent.create.after")
		answered <- a
	})
	select {
	case a := <-answered:
		return a
	case <-ctx.Done():
		return created{err: context.Cause(ctx)}
	}
}

// masterPort is where the only member of a job finds itself. Its container has a
// network of its own.
const masterPort = "29500"

// containerSpec returns the container as the engine is asked for it, without secrets and without
// the gang's network.
func (p *createPhase) containerSpec() node.ContainerSpec {
	c := p.claim
	labels := p.labels()
	labels[berth.LabelSpecHash] = c.SpecHash
	list := []node.Mount{{Host: filepath.Join(p.scratch.dir, "workspace"), Target: "/workspace"}}
	if folder := c.checkpoints(); folder != "" {
		list = append(list, node.Mount{Host: filepath.Join(p.scratch.dir, "checkpoint"), Target: folder})
	}
	shared := func(i int) string { return p.mounts.Path(p.name(), i) }
	list = append(list, inputMounts(c.Spec, p.scratch, shared)...)
	folder := "" // the image's own
	if c.Spec.Workdir != "" {
		folder = "/workspace"
	}
	return node.ContainerSpec{
		Name: p.name(), Labels: labels, Image: p.recipe.image, WorkingDir: folder,
		Entrypoint: c.Spec.Entrypoint, Command: c.Spec.Command, Env: p.environment(),
		CPUMilli: c.CPUMilli, MemoryMiB: c.MemoryMiB, ShmMiB: int64(c.Spec.Resources.ShmSize),
		GPUs: p.engineGPUs(), Mounts: list,
		ReadOnlyRoot: c.Spec.ReadOnlyRoot, TmpMiB: int64(spec.TmpOf(c.Spec)),
	}
}

// environment is the job's own environment with Berth's variables.
func (p *createPhase) environment() map[string]string {
	c := p.claim
	env := maps.Clone(c.Spec.Env)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, map[string]string{
		"BERTH_JOB_ID":           string(c.Job),
		"BERTH_ATTEMPT":          strconv.Itoa(c.Attempt),
		"BERTH_MEMBER":           strconv.Itoa(c.Rank),
		"BERTH_MEMBERS":          strconv.Itoa(c.Members),
		"BERTH_GPUS":             strings.Join(c.GPUs, ","),
		"BERTH_RESTORED_STEP":    "",
		"BERTH_RESTORED_MEMBERS": "",
		"NODE_RANK":              strconv.Itoa(c.Rank),
		"NNODES":                 strconv.Itoa(c.Members),
	})
	maps.Copy(env, p.rendezvous())
	env["BERTH_CHECKPOINT_DIR"] = c.checkpoints()
	if restored := p.recipe.restored; restored != nil {
		env["BERTH_RESTORED_STEP"] = strconv.FormatInt(*restored, 10)
		if p.recipe.parts > 0 {
			env["BERTH_RESTORED_MEMBERS"] = strconv.Itoa(p.recipe.parts)
		}
	}
	return env
}

// rendezvous returns the variables by which the members of a gang find each other.
func (p *createPhase) rendezvous() map[string]string {
	if !p.claim.gang() {
		return map[string]string{
			"BERTH_PEERS": "127.0.0.1:" + masterPort, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": masterPort,
		}
	}
	peers := make([]string, len(p.claim.Peers))
	for i, peer := range p.claim.Peers {
		peers[i] = peer.Endpoint(p.job, p.attempt)
	}
	first := p.claim.Peers[0]
	return map[string]string{
		"BERTH_PEERS": strings.Join(peers, ","),
		"MASTER_ADDR": first.Host(p.job, p.attempt),
		"MASTER_PORT": strconv.Itoa(first.Port),
	}
}

// engineGPUs returns the devices for the engine. Declared devices exist on paper only.
func (p *createPhase) engineGPUs() []string {
	if p.cfg.GPUs.Declared() {
		return nil
	}
	return slices.Clone(p.claim.GPUs)
}

// addSecrets gives the container the secrets that its job names, in the form that the
// job asks for.
func (p *createPhase) addSecrets(given *node.ContainerSpec) error {
	as := p.claim.Spec.SecretsAs
	if len(p.claim.Secrets) == 0 {
		return nil
	}
	if as != spec.SecretsFile {
		for _, s := range p.claim.Secrets {
			given.Env[s.Name] = string(s.Value)
		}
	}
	if as != spec.SecretsEnv {
		dir, err := p.vault.put(p.name(), p.claim.Secrets)
		if err != nil {
			return err
		}
		given.Mounts = append(given.Mounts, node.Mount{Host: dir, Target: spec.SecretsPath, ReadOnly: true})
	}
	return nil
}

// joinNetwork connects the container to its network. On a machine that enforces policies this is
// a network for the job alone. Members of a gang use the network that their peers use: one of
// this engine for the gang alone, which joinNetwork records, or one of the operator's.
func (p *createPhase) joinNetwork(given *node.ContainerSpec) error {
	if p.claim.gang() {
		own := p.claim.Peers[p.number].Network
		for _, peer := range p.claim.Peers {
			if peer.Network != own {
				return berth.Errorf(berth.CodeInvalid,
					"member %d on machine %s uses network %q and this member uses %q: they cannot reach each other",
					peer.Rank, peer.Machine, peer.Network, own)
			}
		}
		if given.Network = p.cfg.GangNetwork; given.Network != "" {
			if p.claim.Spec.Network.Strict() {
				return berth.Errorf(berth.CodeInvalid, "network.egress: %s: members of gangs use the network %s of "+
					"this machine, on which no policy is enforced", p.claim.Spec.Network.Egress, given.Network)
			}
			return nil
		}
	}
	if strict := p.claim.Spec.Network.Strict(); strict && !p.walls.held() {
		// Placement avoids such machines, so this one has changed since.
		return berth.Errorf(berth.CodeInvalid, "network.egress: %s: this machine enforces no policies",
			p.claim.Spec.Network.Egress)
	}
	if p.claim.Spec.Network.Named() && p.walls.Names == nil {
		return berth.Errorf(berth.CodeInvalid,
			"network.allow: this machine does not restrict jobs to the names of a list")
	}
	if !p.claim.gang() && !p.walls.held() {
		return nil
	}
	if n, ok := p.takeNetwork(); ok {
		*p.network, p.ahead = n.Name, &n
	} else {
		*p.network = berth.GangNetworkName(p.job, p.attempt)
	}
	given.Network, given.Labels[berth.LabelNetwork] = *p.network, *p.network
	record, err := p.poolLabels()
	maps.Copy(given.Labels, record)
	return err
}
