package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"berth"
	"berth/spec"
)

// cache keeps the unpacked code and inputs of jobs, by content, for later jobs with the
// same content:
//
//	cache/<tenant>/<key>/tree        the unpacked files, which never change
//	cache/<tenant>/<key>/entry.json  its size; the file's time is its last use
//	cache/.new-…                     being unpacked
//	cache/.gone-…                    being removed
//
// The key of an archive is the hash of its content; for other inputs see content.
// Containers get copies or, where they cannot write, hard links to the same files. So an
// entry may be evicted while they use it, and the cache needs no record of them after a
// restart.
//
// An entry appears at once, when it is complete and verified. The next start removes the
// half-made entries of a killed process. A crash of the host may cut files short, so every
// use compares the files with the recorded size.
//
// Tenants share nothing: a tenant must not learn which content another tenant has. All
// methods may be called concurrently. Only calls for the same content wait for each other.
type cache struct {
	dir   string
	limit int64 // bytes of all entries; the least recently used are evicted
	log   *slog.Logger

	mu    sync.Mutex
	users map[string]int           // of entries in use, by folder; they stay
	busy  map[string]chan struct{} // holds one token; taken while an entry is fetched

	holds *holdings // receives the list of entries after each change
}

// DefaultCache is the default size of a machine's cache, in bytes.
const DefaultCache = 20 << 30

// cacheEntry is the size of an entry's unpacked content.
type cacheEntry struct {
	Bytes int64 `json:"bytes"`
	Files int   `json:"files"`
}

// cacheRecord is the content of entry.json.
type cacheRecord struct {
	cacheEntry
	Source spec.DataKey `json:"source,omitempty"` // see content
}

// openCache opens the folder and removes half-made entries.
func openCache(state string, limit int64, holds *holdings, log *slog.Logger) (*cache, error) {
	c := &cache{
		dir: filepath.Join(state, "cache"), limit: limit, holds: holds, log: log,
		users: map[string]int{}, busy: map[string]chan struct{}{},
	}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return nil, fmt.Errorf("open cache: %w", err)
	}
	left, err := filepath.Glob(filepath.Join(c.dir, ".*-*"))
	if err != nil {
		return nil, fmt.Errorf("open cache: %w", err)
	}
	for _, folder := range left {
		if err := os.RemoveAll(folder); err != nil {
			return nil, fmt.Errorf("open cache: %w", err)
		}
	}
	all, _, err := c.entries()
	if err != nil {
		return nil, fmt.Errorf("open cache: %w", err)
	}
	c.holds.noteCache(held(all))
	return c, nil
}

// content is one thing that the cache may keep.
type content struct {
	kind   string        // "" for archives; addresses of other kinds hash something else
	of     berth.Address // names it: equal addresses of one kind are equal content
	source spec.DataKey  // the key that jobs name; 0 for archives
	fetch  func(ctx context.Context, to *os.Root) (cacheEntry, error)
}

// folder returns the folder of an entry. Tenants share no folder, even for equal content.
func (c *cache) folder(tenant berth.TenantID, what content) string {
	return filepath.Join(c.dir, string(tenant), what.kind+what.of.Hex())
}

// use calls do with the unpacked content, which the cache fetches first if necessary. do returns
// the size that it has found, which must be the recorded one. Of several calls for the same
// content one fetches. cached reports that this call needed no fetch.
func (c *cache) use(
	ctx context.Context, tenant berth.TenantID, what content, do func(tree *os.Root) (cacheEntry, error),
) (entry cacheEntry, cached bool, err error) {
	folder := c.folder(tenant, what)
	c.hold(folder)
	defer c.release(folder)
	for {
		if entry, cached = c.look(folder); !cached {
			if entry, cached, err = c.fill(ctx, folder, what); err != nil {
				return entry, false, err
			}
		}
		found, err := within(folder, do)
		switch {
		case err != nil:
			return entry, cached, err
		case found == entry:
			return entry, cached, nil
		case !cached:
			return entry, false, fmt.Errorf("%d files of %d bytes were fetched, and %d of %d are there",
				entry.Files, entry.Bytes, found.Files, found.Bytes)
		}
		c.log.Warn("cached content damaged, fetching it again", "folder", folder, "want", entry, "found", found)
		if err := c.discard(folder); err != nil {
			return entry, true, err
		}
	}
}

// within calls do with the content of an entry's folder, which do cannot leave.
func within(folder string, do func(tree *os.Root) (cacheEntry, error)) (cacheEntry, error) {
	tree, err := os.OpenRoot(filepath.Join(folder, "tree"))
	if err != nil {
		return cacheEntry{}, fmt.Errorf("open cached content: %w", err)
	}
	defer tree.Close()
	return do(tree)
}

// look returns an entry, and records the time of its use for the eviction.
func (c *cache) look(folder string) (entry cacheEntry, ok bool) {
	at := filepath.Join(folder, "entry.json")
	text, err := os.ReadFile(at)
	if err != nil || json.Unmarshal(text, &entry) != nil {
		return cacheEntry{}, false
	}
	now := time.Now()
	_ = os.Chtimes(at, now, now) // on failure it may be evicted a little too early
	return entry, true
}

// fill makes an entry, or waits for a call that does.
func (c *cache) fill(ctx context.Context, folder string, what content) (cacheEntry, bool, error) {
	turn := c.turn(folder)
	select {
	case turn <- struct{}{}:
		defer func() { <-turn }()
	case <-ctx.Done():
		return cacheEntry{}, false, context.Cause(ctx)
	}
	if entry, ok := c.look(folder); ok { // another call was faster
		return entry, true, nil
	}
	half, err := os.MkdirTemp(c.dir, ".new-")
	if err != nil {
		return cacheEntry{}, false, err
	}
	defer os.RemoveAll(half)
	entry, err := fetchInto(ctx, half, what)
	if err != nil {
		return cacheEntry{}, false, err
	}
	if err := os.MkdirAll(filepath.Dir(folder), 0o700); err != nil {
		return cacheEntry{}, false, err
	}
	if err := os.RemoveAll(folder); err != nil { // one without its entry.json
		return cacheEntry{}, false, err
	}
	if err := os.Rename(half, folder); err != nil {
		return cacheEntry{}, false, err
	}
	return entry, false, nil
}

// fetchInto fetches content into half, a new folder that no other call uses yet, and records its
// size next to the content. The record is written last, so a folder without one is incomplete.
func fetchInto(ctx context.Context, half string, what content) (cacheEntry, error) {
	tree := filepath.Join(half, "tree")
	if err := os.Mkdir(tree, 0o700); err != nil {
		return cacheEntry{}, err
	}
	root, err := os.OpenRoot(tree)
	if err != nil {
		return cacheEntry{}, err
	}
	defer root.Close()
	entry, err := what.fetch(ctx, root)
	if err != nil {
		return cacheEntry{}, err
	}
	return entry, writeJSON(filepath.Join(half, "entry.json"), cacheRecord{entry, what.source})
}

// turn returns the semaphore of an entry: its one token admits one fetch at a time.
func (c *cache) turn(folder string) chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy[folder] == nil {
		c.busy[folder] = make(chan struct{}, 1)
	}
	return c.busy[folder]
}

// hold begins the use of an entry, which protects the entry from eviction until giveBack.
func (c *cache) hold(folder string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.users[folder]++
}

// release ends the use of an entry, and evicts others if the cache is too large. The
// removal takes long, so it holds no lock.
func (c *cache) release(folder string) {
	gone, err := c.giveBack(folder)
	for _, g := range gone {
		err = errors.Join(err, os.RemoveAll(g))
	}
	if err != nil {
		c.log.Warn("cannot keep the cache within its limit", "err", err)
	}
}

// giveBack ends the use of an entry and returns the folders to remove.
func (c *cache) giveBack(folder string) (gone []string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.users[folder]--; c.users[folder] == 0 {
		delete(c.users, folder)
		delete(c.busy, folder)
	}
	return c.evict()
}

// discard removes an entry, even an entry in use.
func (c *cache) discard(folder string) error {
	c.mu.Lock()
	gone, err := c.strike(folder)
	c.mu.Unlock()
	if errors.Is(err, os.ErrNotExist) { // another call has found the damage, too
		return nil
	}
	if err != nil {
		return err
	}
	return os.RemoveAll(gone)
}

// strike takes an entry out of the cache with one rename, and returns its new folder.
// c.mu is held.
func (c *cache) strike(folder string) (gone string, err error) {
	at, err := os.MkdirTemp(c.dir, ".gone-")
	if err != nil {
		return "", err
	}
	if err := os.Rename(folder, filepath.Join(at, "entry")); err != nil {
		return "", errors.Join(err, os.Remove(at))
	}
	return at, nil
}

// evict takes out the least recently used entries, down to the limit. c.mu is held, so
// that no call begins to use an entry that is taken out.
func (c *cache) evict() (gone []string, err error) {
	all, total, err := c.entries()
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b kept) int { return a.used.Compare(b.used) })
	for i, one := range all {
		if total <= c.limit {
			break
		}
		if c.users[one.folder] > 0 {
			continue
		}
		at, err := c.strike(one.folder)
		if err != nil {
			return gone, err
		}
		gone = append(gone, at)
		c.log.Info("cached content evicted", "folder", one.folder, "bytes", one.bytes)
		total -= one.bytes
		all[i].bytes = 0
	}
	c.holds.noteCache(held(all))
	return gone, nil
}

// kept is an entry in a list. An entry of 0 bytes has no record, or has been evicted.
type kept struct {
	folder string
	bytes  int64
	source spec.DataKey
	used   time.Time
}

// entries lists all entries, and the sum of their bytes.
func (c *cache) entries() (all []kept, total int64, err error) {
	files, err := filepath.Glob(filepath.Join(c.dir, "*", "*", "entry.json"))
	if err != nil {
		return nil, 0, err
	}
	for _, at := range files {
		if strings.HasPrefix(filepath.Base(filepath.Dir(filepath.Dir(at))), ".") {
			continue // a file of that name in a folder of an entry that comes or goes
		}
		info, err := os.Stat(at)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, 0, err
		}
		one := kept{folder: filepath.Dir(at), used: info.ModTime()}
		text, err := os.ReadFile(at)
		var entry cacheRecord
		if err == nil && json.Unmarshal(text, &entry) == nil {
			one.bytes, one.source = entry.Bytes, entry.Source
		}
		total += one.bytes
		all = append(all, one)
	}
	return all, total, nil
}
