package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"berth"
	"berth/activities/node"
	"berth/internal/lib/archive"
	"berth/internal/lib/failpoint"
	"berth/internal/machine/fetch"
)

// inputs puts the job's inputs into folders of its own.
func (r *member) inputs(ctx context.Context) (*berth.Exit, error) {
	for i, in := range r.claim.Spec.Inputs {
		what := fmt.Sprintf("inputs[%d]", i)
		folder, err := openShared(r.inputFolder(i))
		if err != nil {
			x := notStarted(berth.CauseEngine, err.Error())
			return &x, nil
		}
		_ = failpoint.Hit("agent.input.before")
		err = r.input(ctx, i, in, placing{what: what, folder: folder})
		_ = failpoint.Hit("agent.input.after")
		_ = folder.Close()
		if err != nil {
			return r.notFetched(ctx, what, err)
		}
	}
	return nil, nil
}

func (r *member) input(ctx context.Context, i int, in berth.Input, p placing) error {
	switch kind := in.Kind(); kind {
	case berth.InputFolder:
		if a, err := berth.ParseAddress(in.From); err == nil {
			p.content, p.own = r.archived(a, archive.Default), true
			return r.place(ctx, p)
		}
	case berth.InputOutput:
		at := slices.IndexFunc(r.claim.Inputs, func(c berth.ClaimInput) bool { return c.Input == i })
		if at >= 0 {
			p.content = r.archived(r.claim.Inputs[at].Address, archive.Output)
			return r.place(ctx, p)
		}
	case berth.InputS3, berth.InputGS, berth.InputAzure, berth.InputHTTPS:
		return r.elsewhere(ctx, in, p)
	case berth.InputFile:
		v, _, err := berth.ParseFile(in.From)
		if err != nil || !slices.Contains(r.claim.Volumes, v) {
			return damage{fmt.Sprintf("the operator of this cluster does not let jobs of tenant %s read the folder %s any more", r.claim.Tenant, v)}
		}
		return r.elsewhere(ctx, in, p)
	case berth.InputUnknown: // a newer server let it through, and a newer agent may know it
		scheme, _, _ := strings.Cut(in.From, "://")
		return fmt.Errorf("this machine's agent knows no inputs from %.40s://", scheme)
	default:
		panic(fmt.Sprintf("unknown kind of input %d", kind))
	}
	return damage{fmt.Sprintf("this machine cannot fetch %.200q", in.From)} // no server should have let it through
}

// changes is how often an input is looked for that changes while it is fetched.
const changes = 3

// elsewhere puts an input in place that the machine fetches by itself. What it
// is now is asked for each time, so that only who may read it gets at what the
// machine has kept of it.
func (r *member) elsewhere(ctx context.Context, in berth.Input, p placing) error {
	var login berth.Sensitive
	for _, l := range r.claim.InputLogins {
		if l.Name == in.Secret {
			login = l.Value
		}
	}
	for try := 1; ; try++ {
		var found *fetch.Found
		err := r.patiently(ctx, func() (err error) {
			found, err = r.sup.sources.Find(ctx, in, login)
			return err
		})
		if err != nil {
			return err
		}
		var once berth.Address
		p.content = content{kind: found.Kind, of: found.Address, fetch: func(ctx context.Context, to *os.Root) (cacheEntry, error) {
			r.reports.enter(slow, berth.PhaseRestoring)
			sum, err := found.Fetch(ctx, to, r.patiently)
			once = sum.Address
			return cacheEntry{Bytes: sum.Bytes, Files: sum.Files}, err
		}}
		if found.Once {
			p.address = &once
		} else {
			p.content.source = in.SourceKey(r.claim.Tenant)
		}
		err = r.place(ctx, p)
		if found.Once {
			err = errors.Join(err, r.sup.cache.discard(r.sup.cache.folder(r.claim.Tenant, p.content)))
		}
		if _, changed := errors.AsType[fetch.Changed](err); !changed || try == changes || ctx.Err() != nil {
			return err
		}
		r.log.Warn("an input changed while it was fetched; looked for again", "what", p.what, "err", err)
	}
}

func (r *member) inputFolder(i int) string {
	return filepath.Join(r.scratch.dir, fmt.Sprintf("input-%d", i))
}

// inputMounts are the inputs as the container sees them. A folder of the user's
// is the container's to change; what comes from elsewhere the machine may share
// among containers.
func (r *member) inputMounts() []node.Mount {
	var mounts []node.Mount
	for i, in := range r.claim.Spec.Inputs {
		m := node.Mount{Host: r.inputFolder(i), Target: in.To, ReadOnly: in.Kind() != berth.InputFolder}
		if in.OneFile() {
			m.Host = filepath.Join(m.Host, fetch.FileName)
		}
		mounts = append(mounts, m)
	}
	return mounts
}

// placing is content on its way to a rank's folder.
type placing struct {
	what    string // the field that names it
	content content
	folder  *os.Root
	own     bool           // the container may write there
	address *berth.Address // of the content, where content.of names it once only
}

// place puts content into a folder, from the machine's cache.
func (r *member) place(ctx context.Context, p placing) error {
	entry, cached, err := r.sup.cache.use(ctx, r.claim.Tenant, p.content, func(tree *os.Root) (cacheEntry, error) {
		// An earlier process may have come half way.
		if err := archive.Clear(p.folder, ".berth"); err != nil {
			return cacheEntry{}, err
		}
		put := archive.Share
		if p.own {
			put = archive.Copy
		}
		sum, err := put(p.folder, tree)
		return cacheEntry{Bytes: sum.Bytes, Files: sum.Files}, err
	})
	if err != nil {
		return err
	}
	address := p.content.of
	if p.address != nil {
		address = *p.address
	}
	f := berth.Fetched{What: p.what, Address: address, Files: entry.Files, Bytes: entry.Bytes, Cached: cached}
	r.log.Info("content is in place", "what", f.What, "address", f.Address, "files", f.Files, "bytes", f.Bytes, "cached", cached)
	r.reports.edit(later, func(p *berth.RankReport) { p.Fetched = append(slices.Clone(p.Fetched), f) })
	return nil
}

// notFetched tells what is the content's or its user's fault from what another
// machine, or another time, may cure.
func (r *member) notFetched(ctx context.Context, what string, err error) (*berth.Exit, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	_, damaged := errors.AsType[damage](err)
	_, refusal := errors.AsType[fetch.Refused](err)
	cause := berth.CauseInputUnavailable
	if damaged || refusal || archive.IsRefused(err) || berth.CodeOf(err) == berth.CodeNotFound && answered(err) {
		cause = berth.CauseInputInvalid
	}
	x := notStarted(cause, fmt.Sprintf("%s: %v", what, err))
	return &x, nil
}

// archived is the content of an archive that the server has.
func (r *member) archived(a berth.Address, l archive.Limits) content {
	return content{of: a, fetch: func(ctx context.Context, to *os.Root) (cacheEntry, error) {
		r.reports.enter(slow, berth.PhaseRestoring)
		sum, err := r.fetchArchive(ctx, to, a, l)
		if err != nil {
			return cacheEntry{}, fmt.Errorf("%s: %w", a.Short(), err)
		}
		if sum.Address != a {
			return cacheEntry{}, damage{fmt.Sprintf("what is stored as %s has the address %s", a, sum.Address)}
		}
		return cacheEntry{Bytes: sum.Bytes, Files: sum.Files}, nil
	}}
}

// fetchArchive unpacks an archive into an empty folder. A line that breaks is
// tried again, as long as a store is waited for.
func (r *member) fetchArchive(ctx context.Context, to *os.Root, a berth.Address, l archive.Limits) (sum archive.Summary, err error) {
	err = r.patiently(ctx, func() error {
		if err := archive.Clear(to, ""); err != nil {
			return fetch.Local{Err: err}
		}
		in, err := r.sup.control.getUpload(ctx, r.alloc, a)
		if err != nil {
			return err
		}
		defer in.Close()
		sum, err = archive.Unpack(in, to, l)
		if _, disk := errors.AsType[*os.PathError](err); disk {
			return fetch.Local{Err: err}
		}
		return err
	})
	return sum, err
}
