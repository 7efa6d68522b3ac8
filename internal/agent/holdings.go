package agent

import (
	"cmp"
	"path/filepath"
	"slices"
	"time"

	"berth"
)

// holdings are what the server is to know of the cache.
type holdings struct {
	version int64 // grows with each other list
	list    []berth.CachedData
}

// note works out anew what is told of the cache, from all its entries, the least
// recently used first or in any order. Its callers are alone, by c.mu or since
// nobody else has the cache yet.
func (c *cache) note(all []kept) {
	now := &holdings{version: 1, list: held(all)}
	if was := c.holds.Load(); was != nil {
		if slices.Equal(was.list, now.list) {
			return
		}
		now.version += was.version
	}
	c.holds.Store(now)
	if c.changed != nil {
		c.changed()
	}
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
	slices.SortFunc(list, func(a, b berth.CachedData) int {
		return cmp.Or(cmp.Compare(b.MiB, a.MiB), cmp.Compare(a.Key, b.Key))
	})
	return list[:min(len(list), berth.MaxCachedData)]
}

// telling is what the server was told of the cache. Its lock is the
// supervisor's.
type telling struct {
	told  int64     // version; 0: nothing in this session
	next  time.Time // not before
	muted bool      // the server does not want to know, in this session
}

// tellsCache adds what is to be told of the cache to a call, or returns when it
// will be due; zero: once it has changed. s.mu is held.
func (s *Supervisor) tellsCache(b *batch, now time.Time) (due time.Time) {
	h := s.cache.holds.Load()
	if s.telling.muted || h.version == s.telling.told {
		return time.Time{}
	}
	if now.Before(s.telling.next) {
		return s.telling.next
	}
	b.cache = h
	return time.Time{}
}

// toldCache notes that the server has taken it. What follows waits a while: it
// may come with each job.
func (s *Supervisor) toldCache(b batch) {
	if b.cache != nil {
		s.telling.told, s.telling.next = b.cache.version, time.Now().Add(s.cfg.Timing.CachePause)
	}
}

// mute tells no more of the cache in this session: the server refuses it.
func (s *Supervisor) mute() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.telling.muted = true
}
