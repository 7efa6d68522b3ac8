package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"berth"
	"berth/wire"
)

// keptFolders keeps the folders of failed members for the debug jobs that hold them (docs/adr/0112). The
// order to forget such a member asks for it. Its folder then moves to kept/ALLOC, and the debug job moves
// it on to its own name. Each move is one rename, so only one member ever has a folder. All methods may be
// called concurrently.
type keptFolders struct {
	state string // the agent's folder

	mu     sync.Mutex
	wanted map[berth.AllocationID]bool // members whose folders are to be kept
}

// keptFor is how long a folder waits for its debug job, which waits for its machine only a minute.
const keptFor = 10 * time.Minute

func newKeptFolders(state string) *keptFolders {
	return &keptFolders{state: state, wanted: map[berth.AllocationID]bool{}}
}

// hear notes the members of a set whose folders are to be kept. It must come before anything that
// abandons a member, since an abandoned member removes its folder.
func (k *keptFolders) hear(set []wire.Assignment) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, a := range set {
		if a.Orders.Forget && a.Orders.Keep {
			k.wanted[a.Alloc] = true
		}
	}
}

// wants reports whether the folder of a member is to be kept.
func (k *keptFolders) wants(id berth.AllocationID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.wanted[id]
}

// drop forgets the wish for a member that has left nothing here.
func (k *keptFolders) drop(id berth.AllocationID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.wanted, id)
}

// dir returns the place of a member's kept folder.
func (k *keptFolders) dir(id berth.AllocationID) string {
	return filepath.Join(k.state, "kept", strconv.FormatInt(int64(id), 10))
}

// put moves the folder of a member, whose container is gone, to its kept place. Only the folders that its
// container had mounted stay. A repeated put changes nothing.
func (k *keptFolders) put(name string, id berth.AllocationID) error {
	from := scratchDir(k.state, name)
	entries, err := os.ReadDir(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // moved before, or never created
	}
	if err != nil {
		return fmt.Errorf("keep the folder: %w", err)
	}
	for _, e := range entries {
		if e.Name() == "workspace" || e.Name() == "checkpoint" || strings.HasPrefix(e.Name(), "input-") {
			continue
		}
		if err := os.RemoveAll(filepath.Join(from, e.Name())); err != nil {
			return fmt.Errorf("keep the folder: %w", err)
		}
	}
	now := time.Now() // from which on the sweep counts
	err = errors.Join(os.Chtimes(from, now, now), os.MkdirAll(filepath.Dir(k.dir(id)), 0o700))
	if err == nil {
		err = os.Rename(from, k.dir(id))
	}
	if err != nil {
		return fmt.Errorf("keep the folder: %w", err)
	}
	return nil
}

// take moves the kept folder of a member to the folder of the debug job with this name. ok is false while
// there is none. A repeated take finds the folder that it has moved.
func (k *keptFolders) take(id berth.AllocationID, name string) (ok bool, err error) {
	to := scratchDir(k.state, name)
	if _, err := os.Stat(to); err == nil {
		return true, nil
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return false, fmt.Errorf("take over the kept folder: %w", err)
	}
	err = os.Rename(k.dir(id), to)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("take over the kept folder: %w", err)
	}
	return true, nil
}

// sweep deletes the folders that no debug job has taken for age.
func (k *keptFolders) sweep(ctx context.Context, age time.Duration) (removed int, err error) {
	entries, err := os.ReadDir(filepath.Join(k.state, "kept"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	for _, e := range entries {
		info, lost := e.Info()
		if lost != nil || time.Since(info.ModTime()) < age || ctx.Err() != nil {
			continue // taken since, or too young
		}
		if gone := os.RemoveAll(filepath.Join(k.state, "kept", e.Name())); gone != nil {
			err = errors.Join(err, gone)
			continue
		}
		removed++
	}
	return removed, err
}
