package agent

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"berth"
	"berth/activities/node"
	"berth/internal/machine/diskuse"
	"berth/spec"
)

// pulledImages removes images when the disk of the container engine fills, the least recently used
// first. Only images that this agent has pulled are removed: the others are the operator's.
//
//	free share of the disk    the image                               action
//	at least the mark         any                                     none
//	less than the mark        wanted: a member prepares, or runs      stays
//	                          wanted by none                          removed, until the free share
//	                                                                  exceeds the mark by imageRelief
//	                          a container of others was created from  stays, since the engine refuses
//
// A member wants the repository of its image before it asks the engine for the image, and until it ends.
// want waits while an image of that repository is being removed, so that no member finds an image that is
// gone before its container exists. A repository and not an image is wanted, because an engine removes
// the digest of an image with the last tag.
//
// The record is kept in pulled.json. Without it, no image is removed that an earlier process pulled.
type pulledImages struct {
	path    string
	runtime node.Runtime
	space   func() (diskuse.Space, error) // of the engine's disk
	mark    int                           // percent; 0: no image is removed
	removed func(ref string)              // called after a removal
	log     *slog.Logger

	mu     sync.Mutex
	known  map[string]time.Time                   // last use, by reference
	wanted map[berth.AllocationID]map[string]bool // repositories, by member
	going  map[string]chan struct{}               // repositories of images being removed; closed at the end
	dirty  bool                                   // pulled.json is out of date
	told   bool                                   // that nothing is left to remove
}

const (
	// maxPulled bounds the record; the least recently used images are dropped from it, and stay.
	maxPulled = 2048

	// imageRelief is the percentage of the disk by which a sweep exceeds the mark.
	imageRelief = 5

	// leastAboveReserve is the least distance of the mark from the reserve of the disk, below which
	// members are ended.
	leastAboveReserve = 5
)

// openPulled reads the record of an earlier process.
func openPulled(
	cfg *Config, space func() (diskuse.Space, error), removed func(ref string), log *slog.Logger,
) *pulledImages {
	p := &pulledImages{
		path: filepath.Join(cfg.StateDir, "pulled.json"), runtime: cfg.Runtime, space: space,
		removed: removed, log: log, known: map[string]time.Time{},
		wanted: map[berth.AllocationID]map[string]bool{}, going: map[string]chan struct{}{},
	}
	if cfg.ImageMark > 0 {
		p.mark = max(cfg.ImageMark, cfg.DiskReserve+leastAboveReserve)
	}
	text, err := os.ReadFile(p.path)
	if err == nil {
		err = json.Unmarshal(text, &p.known)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		log.Warn("cannot read the record of pulled images, these images will stay", "err", err)
	}
	if err != nil || p.known == nil {
		p.known = map[string]time.Time{}
	}
	return p
}

// want keeps the images of a repository until leave is called for the member. It returns the
// cause of ctx's end if that comes before the removal of such an image ends.
func (p *pulledImages) want(ctx context.Context, member berth.AllocationID, ref string) error {
	repository := repositoryOf(ref)
	for {
		p.mu.Lock()
		going, busy := p.going[repository]
		if !busy {
			if p.wanted[member] == nil {
				p.wanted[member] = map[string]bool{}
			}
			p.wanted[member][repository] = true
			p.use(ref)
		}
		p.mu.Unlock()
		if !busy {
			return nil
		}
		select {
		case <-going:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// leave ends the wants of a member.
func (p *pulledImages) leave(member berth.AllocationID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for ref := range p.known {
		if p.wanted[member][repositoryOf(ref)] {
			p.use(ref)
		}
	}
	delete(p.wanted, member)
}

// use notes the use of an image, if this agent has pulled it. p.mu is held.
func (p *pulledImages) use(ref string) {
	if _, ours := p.known[ref]; ours {
		p.known[ref], p.dirty = time.Now().UTC(), true
	}
}

// pulled records an image that the engine has just pulled for this agent.
func (p *pulledImages) pulled(ref string) {
	p.mu.Lock()
	p.known[ref], p.dirty = time.Now().UTC(), true
	for len(p.known) > maxPulled {
		delete(p.known, p.oldest(func(string) bool { return true }))
	}
	p.mu.Unlock()
	p.store()
}

// store writes the record if it has changed.
func (p *pulledImages) store() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.dirty {
		return
	}
	if err := writeJSON(p.path, p.known); err != nil {
		p.log.Warn("cannot store the record of pulled images", "err", err)
		return
	}
	p.dirty = false
}

// oldest returns the least recently used of the images that may be taken; "" if there is none.
// p.mu is held.
func (p *pulledImages) oldest(may func(ref string) bool) string {
	oldest := ""
	for ref, used := range p.known {
		if may(ref) && (oldest == "" || used.Before(p.known[oldest])) {
			oldest = ref
		}
	}
	return oldest
}

// watch sweeps periodically until ctx ends.
func (p *pulledImages) watch(ctx context.Context, b beat, every time.Duration) {
	for b.sleep(ctx, every) == nil {
		p.sweep(ctx)
		p.store()
	}
}

// sweep removes images if the free share of the disk is below the mark.
func (p *pulledImages) sweep(ctx context.Context) {
	if p.mark == 0 || !p.below(p.mark) {
		p.told = false
		return
	}
	kept := map[string]bool{} // images that the engine did not remove
	for ctx.Err() == nil && p.below(p.mark+imageRelief) {
		ref := p.take(kept)
		if ref == "" {
			if !p.told {
				p.log.Warn("disk is nearly full, and no image is left that may be removed", "mark_percent", p.mark)
			}
			p.told = true
			return
		}
		err := p.runtime.RemoveImage(ctx, ref)
		gone := err == nil || errors.Is(err, node.ErrNoImage)
		p.put(ref, gone, errors.Is(err, node.ErrImageInUse))
		switch {
		case err == nil:
			p.log.Info("image removed, since the disk is nearly full", "image", ref)
			p.removed(ref)
		case errors.Is(err, node.ErrImageInUse):
			p.log.Debug("image is in use and stays", "image", ref, "err", err)
		case !gone && ctx.Err() == nil:
			p.log.Warn("cannot remove an image", "image", ref, "err", err)
		}
		kept[ref] = true
	}
}

// below reports whether the free share of the disk is less than a percentage. A disk that cannot be
// measured is taken to have room.
func (p *pulledImages) below(percent int) bool {
	s, err := p.space()
	if err != nil {
		p.log.Warn("cannot measure the disk of images, will retry", "err", err)
		return false
	}
	return 100*s.FreeShare() < float64(percent)
}

// take returns the next image to remove, whose repository nobody wants and nobody can want before
// put; "" if there is none.
func (p *pulledImages) take(kept map[string]bool) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	wanted := map[string]bool{}
	for _, repositories := range p.wanted {
		for r := range repositories {
			wanted[r] = true
		}
	}
	ref := p.oldest(func(ref string) bool { return !kept[ref] && !wanted[repositoryOf(ref)] })
	if ref != "" {
		p.going[repositoryOf(ref)] = make(chan struct{})
	}
	return ref
}

// put ends the removal of an image. An image that is gone leaves the record, and one that a container
// needs counts as used now.
func (p *pulledImages) put(ref string, gone, inUse bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.going[repositoryOf(ref)])
	delete(p.going, repositoryOf(ref))
	switch {
	case gone:
		delete(p.known, ref)
		p.dirty = true
	case inUse:
		p.use(ref)
	}
}

// repositoryOf returns the repository of an image, or the reference itself if that names none.
func repositoryOf(ref string) string {
	if name, ok := spec.ImageName(ref); ok {
		return name
	}
	return ref
}
