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
)

// cache keeps what was unpacked for jobs, by content, for the next one that
// needs the same:
//
//	cache/<tenant>/<key>/tree        what was unpacked, never changed again
//	cache/<tenant>/<key>/entry.json  its size; the file's time is its last use
//	cache/.new-…                     being unpacked
//	cache/.gone-…                    being removed
//
// The key of an archive is the hash of its content; of other inputs see
// content. Containers get copies or, where they cannot write, further names of
// the same files: so an entry may go while they use it, and nothing needs to be
// known of them after a restart.
//
// An entry appears at once, when all of it is there and was verified. What a
// killed process was at goes at the next start. After a crash of the host files
// may be cut short, so that whoever uses an entry compares what it finds with
// what there was.
//
// Tenants share nothing: that somebody else has the same content is nobody's to
// know. All methods may be called concurrently; only those that want the very
// same content wait for each other.
type cache struct {
	dir   string
	limit int64 // bytes of all entries; the least recently used go
	log   *slog.Logger

	mu    sync.Mutex
	users map[string]int           // of entries in use, by folder; those stay
	busy  map[string]chan struct{} // holds one token; taken while an entry is fetched

	holds *holdings // told what the entries are
}

// DefaultCache is how much a machine keeps of what its jobs have needed.
const DefaultCache = 20 << 30

type cacheEntry struct {
	Bytes int64 `json:"bytes"`
	Files int   `json:"files"`
}

// cacheRecord is what entry.json says.
type cacheRecord struct {
	cacheEntry
	Source berth.DataKey `json:"source,omitempty"` // see content
}

// openCache opens the folder and removes what was left half made.
func openCache(state string, limit int64, holds *holdings, log *slog.Logger) (*cache, error) {
	c := &cache{dir: filepath.Join(state, "cache"), limit: limit, holds: holds, log: log, users: map[string]int{}, busy: map[string]chan struct{}{}}
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

// content is what may be kept.
type content struct {
	kind   string        // "" of archives; others are told apart, since their addresses are hashes of something else
	of     berth.Address // names it: equal addresses of one kind are equal content
	source berth.DataKey // of what is no archive: by what jobs ask for it
	fetch  func(ctx context.Context, to *os.Root) (cacheEntry, error)
}

func (c *cache) folder(tenant berth.TenantID, what content) string {
	return filepath.Join(c.dir, string(tenant), what.kind+what.of.Hex())
}

// use calls do with the unpacked content, which is fetched unless it is here,
// and which do must find to be what was fetched. Of many that want the same, one
// fetches it. cached reports that nobody had to for this call.
func (c *cache) use(ctx context.Context, tenant berth.TenantID, what content, do func(tree *os.Root) (cacheEntry, error)) (entry cacheEntry, cached bool, err error) {
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
			return entry, false, fmt.Errorf("%d files of %d bytes were fetched, and %d of %d are there", entry.Files, entry.Bytes, found.Files, found.Bytes)
		}
		c.log.Warn("cached content is damaged, and fetched again", "folder", folder, "want", entry, "found", found)
		if err := c.discard(folder); err != nil {
			return entry, true, err
		}
	}
}

func within(folder string, do func(tree *os.Root) (cacheEntry, error)) (cacheEntry, error) {
	tree, err := os.OpenRoot(filepath.Join(folder, "tree"))
	if err != nil {
		return cacheEntry{}, fmt.Errorf("open cached content: %w", err)
	}
	defer tree.Close()
	return do(tree)
}

// look finds an entry, and notes that it is used.
func (c *cache) look(folder string) (entry cacheEntry, ok bool) {
	at := filepath.Join(folder, "entry.json")
	text, err := os.ReadFile(at)
	if err != nil || json.Unmarshal(text, &entry) != nil {
		return cacheEntry{}, false
	}
	now := time.Now()
	_ = os.Chtimes(at, now, now) // it may go a little too early
	return entry, true
}

// fill makes an entry, or waits for whoever does.
func (c *cache) fill(ctx context.Context, folder string, what content) (cacheEntry, bool, error) {
	turn := c.turn(folder)
	select {
	case turn <- struct{}{}:
		defer func() { <-turn }()
	case <-ctx.Done():
		return cacheEntry{}, false, context.Cause(ctx)
	}
	if entry, ok := c.look(folder); ok { // somebody else was faster
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

func (c *cache) turn(folder string) chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy[folder] == nil {
		c.busy[folder] = make(chan struct{}, 1)
	}
	return c.busy[folder]
}

func (c *cache) hold(folder string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.users[folder]++
}

// release gives an entry back, and makes room where there is too much. Removing
// takes long; nobody waits for it.
func (c *cache) release(folder string) {
	gone, err := c.giveBack(folder)
	for _, g := range gone {
		err = errors.Join(err, os.RemoveAll(g))
	}
	if err != nil {
		c.log.Warn("cache not kept within its limit", "err", err)
	}
}

// giveBack returns what is to be removed.
func (c *cache) giveBack(folder string) (gone []string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.users[folder]--; c.users[folder] == 0 {
		delete(c.users, folder)
		delete(c.busy, folder)
	}
	return c.evict()
}

// discard removes an entry whatever uses it.
func (c *cache) discard(folder string) error {
	c.mu.Lock()
	gone, err := c.strike(folder)
	c.mu.Unlock()
	if errors.Is(err, os.ErrNotExist) { // somebody else has found it damaged, too
		return nil
	}
	if err != nil {
		return err
	}
	return os.RemoveAll(gone)
}

// strike takes an entry out of the cache, at once and whole, and says where it
// is now. c.mu is held.
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

// evict takes the entries out that were not used for longest, down to the limit;
// c.mu is held, so that nobody begins to use one that goes.
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
		c.log.Info("cached content goes to make room", "folder", one.folder, "bytes", one.bytes)
		total -= one.bytes
		all[i].bytes = 0
	}
	c.holds.noteCache(held(all))
	return gone, nil
}

// kept is an entry. One of no bytes is of no use to anybody.
type kept struct {
	folder string
	bytes  int64
	source berth.DataKey
	used   time.Time
}

// entries lists what there is, and its bytes.
func (c *cache) entries() (all []kept, total int64, err error) {
	files, err := filepath.Glob(filepath.Join(c.dir, "*", "*", "entry.json"))
	if err != nil {
		return nil, 0, err
	}
	for _, at := range files {
		if strings.HasPrefix(filepath.Base(filepath.Dir(filepath.Dir(at))), ".") { // a file of that name in a folder that comes or goes
			continue
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
