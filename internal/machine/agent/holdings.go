package agent

import (
	"cmp"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"berth"
)

// holdings are what the server is to know of what jobs need and this machine
// has: the largest of its cache's entries and of its engine's images together.
type holdings struct {
	changed func() // called when there is another list; set before anything is noted

	mu      sync.Mutex
	version int64 // grows with each other list
	list    []berth.CachedData
	cached  []berth.CachedData
	images  []berth.CachedData
}

// noteCache takes what is to be told of the cache, the largest first.
func (h *holdings) noteCache(list []berth.CachedData) { h.note(&h.cached, list) }

// noteImages takes what is to be told of images, in any order.
func (h *holdings) noteImages(list []berth.CachedData) { h.note(&h.images, list) }

func (h *holdings) note(part *[]berth.CachedData, list []berth.CachedData) {
	h.mu.Lock()
	*part = list
	now := largest(slices.Concat(h.cached, h.images))
	same := h.version > 0 && slices.Equal(h.list, now)
	if !same {
		h.version++
		h.list = now
	}
	h.mu.Unlock()
	if !same && h.changed != nil {
		h.changed()
	}
}

// holding is one list, which nobody changes.
type holding struct {
	version int64
	list    []berth.CachedData
}

func (h *holdings) now() holding {
	h.mu.Lock()
	defer h.mu.Unlock()
	return holding{h.version, h.list}
}

// largest cuts a list that it may change down to what a report holds.
func largest(list []berth.CachedData) []berth.CachedData {
	slices.SortFunc(list, func(a, b berth.CachedData) int {
		return cmp.Or(cmp.Compare(b.MiB, a.MiB), cmp.Compare(a.Key, b.Key))
	})
	return list[:min(len(list), berth.MaxCachedData)]
}

// held is the largest entries by the keys that jobs ask by. Of several under one
// key, as of a bucket that has changed, the one that was used last is told.
func held(all []kept) []berth.CachedData {
	latest := map[berth.DataKey]kept{}
	for _, one := range all {
		key := one.source
		if a, err := berth.ParseAddress("sha256:" + filepath.Base(one.folder)); err == nil {
			key = berth.ArchiveKey(berth.TenantID(filepath.Base(filepath.Dir(one.folder))), a)
		}
		if o, ok := latest[key]; key != 0 && one.bytes >= berth.MinCachedDataMiB<<20 && (!ok || one.used.After(o.used)) {
			latest[key] = one
		}
	}
	list := make([]berth.CachedData, 0, len(latest))
	for key, one := range latest {
		list = append(list, berth.CachedData{Key: key, MiB: one.bytes >> 20})
	}
	return largest(list)
}

// holdingsSync is the state of reporting the holdings in one session. Its lock is
// the outbox's.
type holdingsSync struct {
	reported int64     // version that the server has; 0: none in this session
	next     time.Time // no report before
}
