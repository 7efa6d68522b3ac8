package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"berth"
	"berth/activities/node"
	"berth/failure"
	"berth/internal/lib/archive"
	"berth/internal/lib/failpoint"
	"berth/internal/machine/fetch"
	"berth/internal/machine/mounts"
	"berth/spec"
	"berth/wire"
)

// inputsPhase puts each of the job's inputs into a folder of its own.
type inputsPhase struct {
	placer
	stage   *stager
	sources *fetch.Sources
	mounts  *mounts.Table
	scratch *scratch
	spans   spans
}

// Do fetches the inputs in a span of its own, if the job has any.
func (p *inputsPhase) Do(ctx context.Context) (phase, error) {
	if len(p.claim.Spec.Inputs) == 0 {
		return phaseRestore, nil
	}
	return p.spans.step(ctx, "inputs", p.result, p.all)
}

// all places the inputs one after the other, in the order of the job's specification.
func (p *inputsPhase) all(ctx context.Context) (phase, error) {
	if p.claim.mounts() { // an earlier process may have come half way
		if err := p.mounts.Remove(ctx, p.name()); err != nil {
			return p.failed(ctx, "inputs", p.unmountable(err))
		}
	}
	for i, in := range p.claim.Spec.Inputs {
		p.stage.input(i)
		what := fmt.Sprintf("inputs[%d]", i)
		put := p.fill
		switch {
		case in.Mounted():
			put = p.mount
		case p.claim.Held != nil:
			continue // it came with the folder of the failed member
		}
		_ = failpoint.Hit("agent.input.before")
		err := put(ctx, i, in, what)
		_ = failpoint.Hit("agent.input.after")
		if scratch, ok := errors.AsType[localError](err); ok {
			return p.result.notStarted(failure.CauseEngine, scratch.Error())
		}
		if err != nil {
			return p.failed(ctx, what, p.witnessed(ctx, err))
		}
	}
	return phaseRestore, nil
}

// fill places the i-th input in a folder of the member.
func (p *inputsPhase) fill(ctx context.Context, i int, in spec.Input, what string) error {
	folder, err := openShared(p.scratch.input(i))
	if err != nil {
		return localError{err}
	}
	defer folder.Close()
	return p.one(ctx, i, in, placing{what: what, folder: folder})
}

// mount mounts the shared folder of the i-th input where the container engine finds it. The mount has
// no version: its files may change at any time.
func (p *inputsPhase) mount(ctx context.Context, i int, in spec.Input, what string) error {
	v, err := p.permitted(in)
	if err != nil {
		return err
	}
	p.reports.enter(slow, berth.PhaseRestoring)
	var folder *os.File
	err = p.retry.patiently(ctx, func() (err error) {
		folder, err = p.sources.Folder(ctx, in)
		return err
	})
	if err != nil {
		return err
	}
	defer func() { go folder.Close() }() // for which a dead file server may never answer
	if err := p.mounts.Add(p.name(), i, folder); err != nil {
		return p.unmountable(err)
	}
	p.log.Info("folder mounted", "what", what, "folder", v)
	f := wire.Fetched{What: what, Address: wire.Mounted}
	p.reports.edit(later, func(r *wire.RankReport) { r.Fetched = append(slices.Clone(r.Fetched), f) })
	return nil
}

// unmountable is the error of a mount for users. Its text has no path of this machine.
func (p *inputsPhase) unmountable(err error) error {
	p.log.Warn("cannot mount a shared folder", "err", err)
	why := "see the log of its agent"
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		why = errno.Error()
	}
	return fetch.Local{Err: berth.Errorf(berth.CodeUnavailable, "this machine cannot mount the folder: %s", why)}
}

// permitted returns the volume of an input if this tenant's jobs may read the volume, as of the claim.
func (p *inputsPhase) permitted(in spec.Input) (spec.Volume, error) {
	v, _, err := spec.ParseFile(in.From)
	if err != nil || !slices.Contains(p.claim.Volumes, v) {
		return "", damage{fmt.Sprintf(
			"the operator of this cluster does not let jobs of tenant %s read the folder %s any more",
			p.claim.Tenant, v)}
	}
	return v, nil
}

// one places the i-th input.
func (p *inputsPhase) one(ctx context.Context, i int, in spec.Input, to placing) error {
	switch kind := in.Kind(); kind {
	case spec.InputFolder:
		if a, err := berth.ParseAddress(in.From); err == nil {
			to.content, to.own = p.archived(a, archive.Default), true
			return p.place(ctx, to)
		}
	case spec.InputOutput:
		at := slices.IndexFunc(p.claim.Inputs, func(c wire.ClaimInput) bool { return c.Input == i })
		if at >= 0 {
			to.content = p.archived(p.claim.Inputs[at].Address, archive.Output)
			return p.place(ctx, to)
		}
	case spec.InputS3, spec.InputGS, spec.InputAzure, spec.InputHTTPS:
		return p.elsewhere(ctx, in, to)
	case spec.InputFile:
		if _, err := p.permitted(in); err != nil {
			return err
		}
		return p.elsewhere(ctx, in, to)
	case spec.InputUnknown: // a newer server let it through, and a newer agent may know it
		scheme, _, _ := strings.Cut(in.From, "://")
		return fmt.Errorf("this machine's agent knows no inputs from %.40s://", scheme)
	default:
		panic(fmt.Sprintf("unknown kind of input %d", kind))
	}
	return damage{fmt.Sprintf("this machine cannot fetch %.200q", in.From)} // no server should have let it through
}

// changes is how often the fetch of an input is tried when the source changes during the fetch.
const changes = 3

// elsewhere places an input that the machine fetches by itself. It asks the source
// for the present version each time, so that content in the machine's cache reaches
// only jobs with access to the source.
func (p *inputsPhase) elsewhere(ctx context.Context, in spec.Input, to placing) error {
	var login spec.Sensitive
	for _, l := range p.claim.InputLogins {
		if l.Name == in.Secret {
			login = l.Value
		}
	}
	for try := 1; ; try++ {
		var found *fetch.Found
		err := p.retry.patiently(ctx, func() (err error) {
			found, err = p.sources.Find(ctx, in, login)
			return err
		})
		if err != nil {
			return err
		}
		var once berth.Address
		to.content = p.fetched(found, &once)
		if found.Once {
			to.address = &once
		} else {
			to.content.source = in.SourceKey(p.claim.Tenant)
		}
		err = p.place(ctx, to)
		if found.Once {
			err = errors.Join(err, p.cache.discard(p.cache.folder(p.claim.Tenant, to.content)))
		}
		if _, changed := errors.AsType[fetch.Changed](err); !changed || try == changes || ctx.Err() != nil {
			return err
		}
		p.log.Warn("input changed during the fetch, resolving it again", "what", to.what, "err", err)
	}
}

// fetched returns the content of a source. The fetch stores the content's address in *address.
func (p *inputsPhase) fetched(found *fetch.Found, address *berth.Address) content {
	get := func(ctx context.Context, to *os.Root) (cacheEntry, error) {
		p.reports.enter(slow, berth.PhaseRestoring)
		progress := &fetch.Progress{}
		p.stage.measure(progress.Percent)
		sum, err := found.Fetch(fetch.WithProgress(ctx, progress), to, p.retry.patiently)
		*address = sum.Address
		return cacheEntry{Bytes: sum.Bytes, Files: sum.Files}, err
	}
	return content{kind: found.Kind, of: found.Address, fetch: get}
}

// inputMounts returns the inputs as mounts for the container. The container may change a folder
// of its user. Content from elsewhere is read-only, since containers may share it. shared returns the
// place of a mounted folder.
func inputMounts(jobSpec spec.Job, s *scratch, shared func(i int) string) []node.Mount {
	var list []node.Mount
	for i, in := range jobSpec.Inputs {
		m := node.Mount{Host: s.input(i), Target: in.To, ReadOnly: in.Kind() != spec.InputFolder}
		switch {
		case in.Mounted():
			m.Host = shared(i)
		case in.OneFile():
			m.Host = filepath.Join(m.Host, fetch.FileName)
		}
		list = append(list, m)
	}
	return list
}
