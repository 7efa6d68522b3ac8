package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"berth"
	"berth/activities/node"
	"berth/spec"
)

// images records the images that each tenant's jobs have used on this machine and that the
// engine still has. An engine offers every image to all tenants, so its own list would
// reveal the images of other tenants, and is not reported.
//
// The record is kept in images.json. If that is missing or damaged, the record starts
// empty, and later jobs fill it.
type images struct {
	path    string
	runtime node.Runtime
	holds   *holdings
	log     *slog.Logger
	kick    chan struct{} // an image was noted that the engine was not asked for

	mu    sync.Mutex
	known map[imageOf]*image
	notes int64 // number of notes so far
	dirty bool  // images.json is out of date
}

// maxImages bounds the record; the least recently used images are dropped. It exceeds the
// size of a report, since the record also holds small images.
const maxImages = 512

// imageOf names an image by tenant and by the name in the tenant's jobs.
type imageOf struct {
	Tenant berth.TenantID `json:"tenant"`
	Name   string         `json:"image"`
}

// image is the state of one image of one tenant.
type image struct {
	ref   string // by which the engine has it: the name, or with its digest if it was pulled by that
	bytes int64  // 0: the engine has not said yet
	used  time.Time
	noted int64 // images.notes of its last use in this process; 0: none
}

// imageRecord is a line of images.json.
type imageRecord struct {
	imageOf
	Ref   string    `json:"ref,omitempty"` // "": the name
	Bytes int64     `json:"bytes"`
	Used  time.Time `json:"used"`
}

// openImages reads the record of an earlier process. The record counts as true until the first
// answer of the engine.
func openImages(state string, runtime node.Runtime, holds *holdings, log *slog.Logger) *images {
	i := &images{
		path: filepath.Join(state, "images.json"), runtime: runtime, holds: holds, log: log,
		kick: make(chan struct{}, 1), known: map[imageOf]*image{},
	}
	var list []imageRecord
	text, err := os.ReadFile(i.path)
	if err == nil {
		err = json.Unmarshal(text, &list)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		log.Warn("cannot read the record of used images", "err", err)
		return i
	}
	for _, r := range list[:min(len(list), maxImages)] {
		i.known[r.imageOf] = &image{ref: cmp.Or(r.Ref, r.Name), bytes: max(0, r.Bytes), used: r.Used}
	}
	holds.noteImages(i.reported())
	return i
}

// note records that a job of the tenant has a container of the image, which the engine has by its name.
func (i *images) note(tenant berth.TenantID, name string) { i.noteBy(tenant, name, name) }

// noteAgain is note for a container of an earlier process, whose record of the image counts if there is one.
func (i *images) noteAgain(tenant berth.TenantID, name string) {
	ref := name
	i.mu.Lock()
	if one := i.known[imageOf{tenant, name}]; one != nil {
		ref = one.ref
	}
	i.mu.Unlock()
	i.noteBy(tenant, name, ref)
}

// noteBy is note for an image that the engine has by another reference than its name.
func (i *images) noteBy(tenant berth.TenantID, name, ref string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.notes++
	of := imageOf{tenant, name}
	one := i.known[of]
	if one == nil {
		i.makeRoom()
		one = &image{ref: ref}
		i.known[of], i.dirty = one, true
		i.nudge()
	}
	if one.ref != ref { // another content, of another size
		one.ref, one.bytes, i.dirty = ref, 0, true
		i.nudge()
	}
	one.used, one.noted = time.Now().UTC(), i.notes
}

// makeRoom drops the least recently used images. i.mu is held.
func (i *images) makeRoom() {
	for len(i.known) >= maxImages {
		var oldest imageOf
		var last *image
		for of, one := range i.known {
			if last == nil || cmp.Or(cmp.Compare(one.noted, last.noted), one.used.Compare(last.used)) < 0 {
				oldest, last = of, one
			}
		}
		delete(i.known, oldest)
	}
}

// nudge makes watch ask the engine at once. It never blocks.
func (i *images) nudge() {
	select {
	case i.kick <- struct{}{}:
	default:
	}
}

// watch asks the engine periodically which of the known images still exist, and at once about a
// new one.
func (i *images) watch(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for all := true; ; {
		i.look(ctx, all)
		select {
		case <-i.kick:
			all = false
		case <-tick.C:
			all = true
		case <-ctx.Done():
			return
		}
	}
}

// imageErrors is the number of errors in a row after which a look ends.
const imageErrors = 3

// look asks the engine about all images, or about the ones without an answer so far. It
// reports and stores the record. Images without an answer stay as they are.
func (i *images) look(ctx context.Context, all bool) {
	names, before := i.names(all)
	failed := 0 // in a row
	for _, name := range names {
		bytes, err := i.runtime.ImageBytes(ctx, name)
		if err == nil || errors.Is(err, node.ErrNoImage) {
			i.heard(name, bytes, err == nil, before)
			failed = 0
			continue
		}
		if ctx.Err() != nil {
			break
		}
		i.log.Warn("cannot look up an image in the engine", "image", name, "err", err)
		if failed++; failed == imageErrors {
			break
		}
	}
	i.mu.Lock()
	report, records := i.reported(), i.records()
	i.mu.Unlock()
	i.holds.noteImages(report)
	if records == nil {
		return
	}
	if err := writeJSON(i.path, records); err != nil {
		i.log.Warn("cannot store the record of used images", "err", err)
		i.mu.Lock()
		i.dirty = true
		i.mu.Unlock()
	}
}

// names returns the references of the images to ask for, and the number of notes so far.
func (i *images) names(all bool) (names []string, before int64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, one := range i.known {
		if all || one.bytes == 0 {
			names = append(names, one.ref)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), i.notes
}

// heard takes the engine's answer. It drops an image that the engine does not have,
// unless the image was noted after the question.
func (i *images) heard(name string, bytes int64, here bool, before int64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for of, one := range i.known {
		switch {
		case one.ref != name:
		case here:
			bytes = max(1, bytes)
			i.dirty = i.dirty || one.bytes != bytes
			one.bytes = bytes
		case one.noted > before: // pulled meanwhile
			one.bytes = 0
			i.nudge()
		default:
			delete(i.known, of)
			i.dirty = true
		}
	}
}

// gone takes the news that the engine has removed an image. The next look asks whether another name keeps it.
func (i *images) gone(name string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for of, one := range i.known {
		if of.Name == name || one.ref == name {
			one.bytes, i.dirty = 0, true
			i.nudge()
		}
	}
}

// reported returns the images for the server. i.mu is held, or i is not shared yet.
func (i *images) reported() []spec.CachedData {
	var list []spec.CachedData
	for of, one := range i.known {
		if one.bytes >= spec.MinCachedDataMiB<<20 {
			list = append(list, spec.CachedData{Key: spec.ImageKey(of.Tenant, of.Name), MiB: one.bytes >> 20})
		}
	}
	return list
}

// records returns the content of images.json; nil: the file is up to date. They count as
// written. i.mu is held.
func (i *images) records() []imageRecord {
	if !i.dirty {
		return nil
	}
	i.dirty = false
	list := []imageRecord{}
	for of, one := range i.known {
		record := imageRecord{imageOf: of, Bytes: one.bytes, Used: one.used}
		if one.ref != of.Name {
			record.Ref = one.ref
		}
		list = append(list, record)
	}
	return list
}
