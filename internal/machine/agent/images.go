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
)

// images remembers which of its engine's images this machine has for whom: for a
// tenant those of which one of its own jobs has had a container here. An engine
// gives what one tenant has pulled to all of them, so what it has by itself tells
// of others, and is told to nobody.
//
// It is kept in images.json. Where that is missing or damaged nothing is
// remembered: jobs to come bring it back.
type images struct {
	path    string
	runtime node.Runtime
	holds   *holdings
	log     *slog.Logger
	kick    chan struct{} // one was noted that the engine was not asked for

	mu    sync.Mutex
	known map[imageOf]*image
	notes int64 // how often one was noted
	dirty bool  // images.json is not what is known
}

// maxImages bounds what is remembered; the least recently used go. It is more than
// a report holds, since small ones are remembered too.
const maxImages = 512

// imageOf is an image as a tenant's jobs name it.
type imageOf struct {
	Tenant berth.TenantID `json:"tenant"`
	Name   string         `json:"image"`
}

type image struct {
	bytes int64 // 0: the engine has not said yet
	used  time.Time
	noted int64 // images.notes of its last use in this process; 0: none
}

// imageRecord is a line of images.json.
type imageRecord struct {
	imageOf
	Bytes int64     `json:"bytes"`
	Used  time.Time `json:"used"`
}

// openImages reads what an earlier process remembered, and takes it for true
// until the engine is asked.
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
		log.Warn("which images jobs have used is not known any more", "err", err)
		return i
	}
	for _, r := range list[:min(len(list), maxImages)] {
		i.known[r.imageOf] = &image{bytes: max(0, r.Bytes), used: r.Used}
	}
	holds.noteImages(i.told())
	return i
}

// note remembers that a job of the tenant has a container of the image.
func (i *images) note(tenant berth.TenantID, name string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.notes++
	of := imageOf{tenant, name}
	one := i.known[of]
	if one == nil {
		i.makeRoom()
		one = &image{}
		i.known[of], i.dirty = one, true
		i.nudge()
	}
	one.used, one.noted = time.Now().UTC(), i.notes
}

// makeRoom lets those go that were not used for longest; i.mu is held.
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

func (i *images) nudge() {
	select {
	case i.kick <- struct{}{}:
	default:
	}
}

// watch asks the engine which images it still has, now and then, and at once for
// one that is new.
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

// imageErrors is after how many errors in a row an engine is asked no further.
const imageErrors = 3

// look asks the engine for all images, or for those it was not asked for yet, and
// tells and stores what has become of it. Of what the engine does not answer,
// everything stays as it was.
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
		i.log.Warn("the engine does not say whether it has an image", "image", name, "err", err)
		if failed++; failed == imageErrors {
			break
		}
	}
	i.mu.Lock()
	told, records := i.told(), i.records()
	i.mu.Unlock()
	i.holds.noteImages(told)
	if records == nil {
		return
	}
	if err := writeJSON(i.path, records); err != nil {
		i.log.Warn("which images jobs have used is not stored", "err", err)
		i.mu.Lock()
		i.dirty = true
		i.mu.Unlock()
	}
}

// names are the images to ask for, and how many notes there were before.
func (i *images) names(all bool) (names []string, before int64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for of, one := range i.known {
		if all || one.bytes == 0 {
			names = append(names, of.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), i.notes
}

// heard takes the engine's answer. An image that it does not have, and that was
// not noted since it was asked, is forgotten for all.
func (i *images) heard(name string, bytes int64, here bool, before int64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for of, one := range i.known {
		switch {
		case of.Name != name:
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

// told is what the server is to know; i.mu is held, or nobody else has i yet.
func (i *images) told() []berth.CachedData {
	var list []berth.CachedData
	for of, one := range i.known {
		if one.bytes >= berth.MinCachedDataMiB<<20 {
			list = append(list, berth.CachedData{Key: berth.ImageKey(of.Tenant, of.Name), MiB: one.bytes >> 20})
		}
	}
	return list
}

// records are what images.json is to say, nil if it says so already. They count as
// written; i.mu is held.
func (i *images) records() []imageRecord {
	if !i.dirty {
		return nil
	}
	i.dirty = false
	list := []imageRecord{}
	for of, one := range i.known {
		list = append(list, imageRecord{of, one.bytes, one.used})
	}
	return list
}
