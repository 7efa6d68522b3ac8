package agent

import (
	"cmp"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"berth"
	"berth/spec"
)

// holdings are the data on this machine that jobs may need, as reported to the server:
// the largest of the cache's entries and of the engine's images together.
type holdings struct {
	changed func() // called after each change of the list; set before the first note

	mu      sync.Mutex
	version int64 // grows with each other list
	list    []spec.CachedData
	cached  []spec.CachedData
	images  []spec.CachedData
}

// noteCache takes the cache's part, the largest entries first.
func (h *holdings) noteCache(list []spec.CachedData) { h.note(&h.cached, list) }

// noteImages takes the images' part, in any order.
func (h *holdings) noteImages(list []spec.CachedData) { h.note(&h.images, list) }

// note replaces one part of the holdings, the cache's or the images', and wakes the outbox if the
// list to report has changed.
func (h *holdings) note(part *[]spec.CachedData, list []spec.CachedData) {
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

// holding is one list with its version. The list is never changed in place.
type holding struct {
	version int64
	list    []spec.CachedData
}

// now returns the present list and its version, 0 before the first note.
func (h *holdings) now() holding {
	h.mu.Lock()
	defer h.mu.Unlock()
	return holding{h.version, h.list}
}

// largest sorts a list in place, largest first, and cuts the list to the size of a report.
func largest(list []spec.CachedData) []spec.CachedData {
	slices.SortFunc(list, func(a, b spec.CachedData) int {
		return cmp.Or(cmp.Compare(b.MiB, a.MiB), cmp.Compare(a.Key, b.Key))
	})
	return list[:min(len(list), spec.MaxCachedData)]
}

// held returns the largest entries under the keys that jobs name. If a key has several,
// as a bucket that has changed does, the one used last counts.
func held(all []kept) []spec.CachedData {
	latest := map[spec.DataKey]kept{}
	for _, one := range all {
		key := one.source
		if a, err := berth.ParseAddress("sha256:" + filepath.Base(one.folder)); err == nil {
			key = spec.ArchiveKey(berth.TenantID(filepath.Base(filepath.Dir(one.folder))), a)
		}
		o, ok := latest[key]
		if key != 0 && one.bytes >= spec.MinCachedDataMiB<<20 && (!ok || one.used.After(o.used)) {
			latest[key] = one
		}
	}
	list := make([]spec.CachedData, 0, len(latest))
	for key, one := range latest {
		list = append(list, spec.CachedData{Key: key, MiB: one.bytes >> 20})
	}
	return largest(list)
}

// holdingsSync is the state of reporting the holdings in one session. Its lock is
// the outbox's.
type holdingsSync struct {
	reported int64     // version that the server has; 0: none in this session
	next     time.Time // no report before
}
