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

	"berth/activities/node"
	"berth/internal/machine/diskuse"
	"berth/spec"
)

// pulledImages removes images when the disk of the container engine fills, the least recently used
// first. Only images that this agent has pulled are removed: the others are the operator's.
//
//	free share of the disk    the image                               action
//	at least the mark         any                                     none
//	less than the mark        a member prepares to run it             stays
//	                          a container was created from it         stays, since the engine refuses
//	                          its name means another image by now     stays, and leaves the record
//	                          none of these                           removed, until the free share
//	                                                                  exceeds the mark by imageRelief
//
// A member holds the repository of its image from the moment it looks up the image until its container
// exists. hold waits while an image of that repository is being removed, so a member never finds an image
// that is about to be removed. The unit is the repository, because an engine removes the digests of an image
// with its last tag.
//
// pulled.json stores the record. If it is lost, images pulled by earlier processes stay.
type pulledImages struct {
	path    string
	runtime node.Runtime
	space   func() (diskuse.Space, error) // of the engine's disk
	mark    int                           // percent; 0: no image is removed
	removed func(ref string)              // called after a removal
	log     *slog.Logger
	kick    chan struct{} // the disk may have filled

	mu    sync.Mutex
	known map[string]pulledImage   // by reference
	users map[*identity]*imageUser // members
	going map[string]chan struct{} // repositories of images being removed; closed at the end
	dirty bool                     // pulled.json is out of date
	told  bool                     // that nothing is left to remove
}

// pulledImage is an image that this agent has pulled under a name.
type pulledImage struct {
	ID     string    `json:"id"` // the engine's
	Digest string    `json:"digest,omitempty"`
	Used   time.Time `json:"used"` // last
}

// imageUser is a member with the images that it uses.
type imageUser struct {
	refs  map[string]bool
	holds bool // their repositories
}

const (
	// maxPulled bounds the record; the least recently used images are dropped from it, and stay.
	maxPulled = 2048

	// imageRelief is the percentage of the disk by which a sweep exceeds the mark.
	imageRelief = 5

	// restShare divides the interval of sweeps: after a sweep, watch rests for that part, 10 s of a minute.
	restShare = 6

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
		removed: removed, log: log, kick: make(chan struct{}, 1),
		known: map[string]pulledImage{}, users: map[*identity]*imageUser{}, going: map[string]chan struct{}{},
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
		p.known = map[string]pulledImage{}
	}
	return p
}

// hold keeps the images of a repository until free or leave is called for the member. It returns the
// cause of ctx's end if that comes before the removal of such an image ends.
func (p *pulledImages) hold(ctx context.Context, member *identity, ref string) error {
	for {
		p.mu.Lock()
		going, busy := p.going[repositoryOf(ref)]
		if !busy {
			p.user(member, ref).holds = true
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

// adopt notes that a container of the member was created from an image.
func (p *pulledImages) adopt(member *identity, ref string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.user(member, ref)
}

// free ends the hold of a member whose container exists: from now on the engine keeps the image.
func (p *pulledImages) free(member *identity) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if u := p.users[member]; u != nil {
		u.holds = false
	}
}

// leave ends the uses of a member.
func (p *pulledImages) leave(member *identity) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if u := p.users[member]; u != nil {
		for ref := range u.refs {
			p.use(ref)
		}
	}
	delete(p.users, member)
}

// user notes the use of an image by a member. p.mu is held.
func (p *pulledImages) user(member *identity, ref string) *imageUser {
	u := p.users[member]
	if u == nil {
		u = &imageUser{refs: map[string]bool{}}
		p.users[member] = u
	}
	u.refs[ref] = true
	p.use(ref)
	return u
}

// use sets the last use of an image, if this agent has pulled it. p.mu is held.
func (p *pulledImages) use(ref string) {
	if one, ours := p.known[ref]; ours {
		one.Used = time.Now().UTC()
		p.known[ref], p.dirty = one, true
	}
}

// pulled records an image that the engine has just pulled for this agent. If the name meant another image
// before, that one has only its digest left as a name.
func (p *pulledImages) pulled(ref string, found node.Image) {
	p.mu.Lock()
	before, moved := p.known[ref]
	if moved = moved && before.ID != found.ID && before.Digest != "" && !spec.PinnedImage(ref); moved {
		p.known[repositoryOf(ref)+"@"+before.Digest] = before
	}
	p.known[ref], p.dirty = pulledImage{ID: found.ID, Digest: found.Digest, Used: time.Now().UTC()}, true
	for len(p.known) > maxPulled {
		delete(p.known, p.oldest(func(string) bool { return true }))
	}
	p.mu.Unlock()
	p.store()
	p.nudge()
}

// nudge has watch look at the disk at once. It never blocks.
func (p *pulledImages) nudge() {
	select {
	case p.kick <- struct{}{}:
	default:
	}
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
	for ref, one := range p.known {
		if may(ref) && (oldest == "" || one.Used.Before(p.known[oldest].Used)) {
			oldest = ref
		}
	}
	return oldest
}

// watch sweeps periodically, and after a nudge, until ctx ends. It rests after each sweep: a sweep asks the
// engine about each image in use, and a full disk nudges each second.
func (p *pulledImages) watch(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-p.kick:
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		p.sweep(ctx)
		p.store()
		if sleep(ctx, every/restShare) != nil {
			return
		}
	}
}

// sweep removes images if the free share of the disk is below the mark. It ends at the first error of
// the engine.
func (p *pulledImages) sweep(ctx context.Context) {
	if p.mark == 0 || !p.below(p.mark) {
		p.told = false
		return
	}
	kept := map[string]bool{} // images that the engine did not remove
	for ctx.Err() == nil && p.below(p.mark+imageRelief) {
		ref, id := p.take(kept)
		if ref == "" {
			if !p.told {
				p.log.Warn("disk is nearly full, no removable image is left", "mark_percent", p.mark)
			}
			p.told = true
			return
		}
		err := p.runtime.RemoveImage(ctx, ref, id)
		inUse, gone := errors.Is(err, node.ErrImageInUse), err == nil || errors.Is(err, node.ErrNoImage)
		p.put(ref, gone, inUse)
		kept[ref] = true
		switch {
		case err == nil:
			p.log.Info("image removed, since the disk is nearly full", "image", ref)
			p.removed(ref)
		case inUse, gone:
			p.log.Debug("image is not removed", "image", ref, "err", err)
		default:
			if ctx.Err() == nil {
				p.log.Warn("cannot remove an image, will retry", "image", ref, "err", err)
			}
			return
		}
	}
}

// below reports whether the free share of the disk is less than a percentage. A disk that cannot be
// measured is taken to have room.
func (p *pulledImages) below(percent int) bool {
	s, err := p.space()
	if err != nil {
		p.log.Debug("cannot measure the disk of images, will retry", "err", err)
		return false
	}
	return 100*s.FreeShare() < float64(percent)
}

// take returns the next image to remove, whose repository no member holds and none can hold before
// put; "" if there is none.
func (p *pulledImages) take(kept map[string]bool) (ref, id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	held := map[string]bool{}
	for _, u := range p.users {
		for ref := range u.refs {
			held[repositoryOf(ref)] = held[repositoryOf(ref)] || u.holds
		}
	}
	ref = p.oldest(func(ref string) bool { return !kept[ref] && !held[repositoryOf(ref)] })
	if ref != "" {
		p.going[repositoryOf(ref)] = make(chan struct{})
	}
	return ref, p.known[ref].ID
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
