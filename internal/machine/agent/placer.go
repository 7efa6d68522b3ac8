package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"berth"
	"berth/failure"
	"berth/internal/lib/archive"
	"berth/internal/machine/fetch"
	"berth/wire"
)

// placer puts the job's code and inputs into the member's folders, from the
// machine's cache or from the control plane's store.
type placer struct {
	*core
	control *control
	cache   *cache
	retry   *retrier
	result  *result
}

// placing is content on its way to a member's folder.
type placing struct {
	what    string // the field that names it
	content content
	folder  *os.Root
	own     bool           // the container may write there
	address *berth.Address // of the content, if content.of names it only once
}

// place puts content into a folder, from the machine's cache.
func (l *placer) place(ctx context.Context, p placing) error {
	entry, cached, err := l.cache.use(ctx, l.claim.Tenant, p.content, func(tree *os.Root) (cacheEntry, error) {
		// An earlier process may have come half way.
		if err := archive.Clear(p.folder, ".berth"); err != nil {
			return cacheEntry{}, err
		}
		sum, err := l.put(p, tree)
		return cacheEntry{Bytes: sum.Bytes, Files: sum.Files}, err
	})
	if err != nil {
		return err
	}
	address := p.content.of
	if p.address != nil {
		address = *p.address
	}
	f := wire.Fetched{What: p.what, Address: address, Files: entry.Files, Bytes: entry.Bytes, Cached: cached}
	l.log.Info("content in place",
		"what", f.What, "address", f.Address, "files", f.Files, "bytes", f.Bytes, "cached", cached)
	l.reports.edit(later, func(r *wire.RankReport) { r.Fetched = append(slices.Clone(r.Fetched), f) })
	return nil
}

// put fills the folder of a placing. Files that the container may change belong to its user.
func (l *placer) put(p placing, tree *os.Root) (archive.Summary, error) {
	if !p.own {
		return archive.Share(p.folder, tree)
	}
	l.claim.own(p.folder, ".")
	return archive.Copy(p.folder, tree, func(name string) { l.claim.own(p.folder, name) })
}

// failed turns a failed placement into the member's exit. It separates faults of the
// content and of its author from faults that another machine, or another time, may
// not have.
func (l *placer) failed(ctx context.Context, what string, err error) (phase, error) {
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	_, damaged := errors.AsType[damage](err)
	_, refusal := errors.AsType[fetch.Refused](err)
	missing := berth.CodeOf(err) == berth.CodeNotFound && answered(err)
	cause := failure.CauseInputUnavailable
	if damaged || refusal || archive.IsRefused(err) || missing {
		cause = failure.CauseInputInvalid
	}
	x := notStarted(cause, fmt.Sprintf("%s: %v", what, err))
	if w, ok := errors.AsType[witness](err); ok {
		x.Unresolved = &w.unresolved
	}
	return l.result.end(x)
}

// archived returns the content of an archive in the control plane's store.
func (l *placer) archived(a berth.Address, limits archive.Limits) content {
	return content{of: a, fetch: func(ctx context.Context, to *os.Root) (cacheEntry, error) {
		l.reports.enter(slow, berth.PhaseRestoring)
		sum, err := l.unpack(ctx, to, a, limits)
		if err != nil {
			return cacheEntry{}, fmt.Errorf("%s: %w", a.Short(), err)
		}
		if sum.Address != a {
			return cacheEntry{}, damage{fmt.Sprintf("what is stored as %s has the address %s", a, sum.Address)}
		}
		return cacheEntry{Bytes: sum.Bytes, Files: sum.Files}, nil
	}}
}

// unpack fetches an archive into an empty folder. It repeats a transfer that breaks
// off, as long as a store is waited for.
func (l *placer) unpack(
	ctx context.Context, to *os.Root, a berth.Address, limits archive.Limits,
) (sum archive.Summary, err error) {
	err = l.retry.patiently(ctx, func() error {
		if err := archive.Clear(to, ""); err != nil {
			return fetch.Local{Err: err}
		}
		in, err := l.control.getUpload(ctx, l.alloc, a)
		if err != nil {
			return err
		}
		defer in.Close()
		sum, err = archive.Unpack(in, to, limits)
		if _, disk := errors.AsType[*os.PathError](err); disk {
			return fetch.Local{Err: err}
		}
		return err
	})
	return sum, err
}
