package volumes

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"berth"
	"berth/spec"
)

// ErrNoRoom reports that the volumes of a member do not fit into the tenant's total on this machine.
var ErrNoRoom = errors.New("the volumes that the tenant's jobs use on this machine leave no room")

// Want is one volume that a member asks for.
type Want struct {
	Name string
	Size int64 // bytes that the volume may have; at least 1
}

// Options are the limits of a store.
type Options struct {
	Dir   string        // of the agent alone
	Total int64         // bytes: the greatest sum of the sizes of one tenant's volumes
	Age   time.Duration // since the last use, after which a sweep removes a volume; 0: no limit
	Log   *slog.Logger
}

// Store holds the volumes below one folder. Its methods may be called concurrently. No two stores may have the same
// folder.
type Store struct {
	Options

	mu    sync.Mutex // held while a name below Dir changes, except below .gone-…
	users map[volume]*use
}

// volume names a volume. Tenants share none.
type volume struct {
	tenant berth.TenantID
	name   string
}

// String describes the volume for a log.
func (v volume) String() string { return string(v.tenant) + "/" + v.name }

// use is the use of a volume by members.
type use struct {
	sizes map[berth.AllocationID]int64 // that each member asked for
	measured
}

// size returns the bytes that the volume may have: the greatest size that one of its members asked for.
func (u *use) size() (most int64) {
	for _, s := range u.sizes {
		most = max(most, s)
	}
	return most
}

// record is the content of volume.json.
type record struct {
	Size int64 `json:"size"`
	// Over is set once the volume was measured beyond its size. Such a volume is removed after its last use: the next
	// job would end for it.
	Over bool `json:"over,omitempty"`
}

// Open opens a store. The volumes of an earlier process stay; half-created ones are removed.
func Open(o Options) (*Store, error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("open volumes: %w", err)
	}
	half, err := filepath.Glob(filepath.Join(o.Dir, ".new-*"))
	if err != nil {
		return nil, fmt.Errorf("open volumes: %w", err)
	}
	for _, h := range half {
		if err := os.RemoveAll(h); err != nil {
			return nil, fmt.Errorf("open volumes: %w", err)
		}
	}
	return &Store{Options: o, users: map[volume]*use{}}, nil
}

// Acquire begins the use of volumes by a member, creates the missing ones for owner, and returns their folders in the
// order of want. It may be repeated. Volumes of the tenant without a user make room, the least recently used first.
// The error is ErrNoRoom if that is not enough; the member then uses none.
func (s *Store) Acquire(
	member berth.AllocationID, tenant berth.TenantID, owner spec.UserID, want []Want,
) (folders []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.makeRoom(member, tenant, want); err != nil {
		return nil, err
	}
	for _, w := range want {
		v := volume{tenant, w.Name}
		folder, err := s.ready(v, owner, w.Size)
		if err != nil {
			s.drop(member)
			return nil, fmt.Errorf("volume %s: %w", w.Name, err)
		}
		s.join(member, v, w.Size)
		folders = append(folders, folder)
	}
	return folders, nil
}

// Adopt notes the use of volumes by a member whose container an earlier process has created. It changes no file. The
// caller adopts all containers before the first sweep.
func (s *Store) Adopt(member berth.AllocationID, tenant berth.TenantID, want []Want) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range want {
		s.join(member, volume{tenant, w.Name}, w.Size)
	}
}

// Release ends the use of all volumes by a member whose container is gone. It may be repeated.
func (s *Store) Release(member berth.AllocationID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(member)
}

// join notes the use of a volume. s.mu is held.
func (s *Store) join(member berth.AllocationID, v volume, size int64) {
	if s.users[v] == nil {
		s.users[v] = &use{sizes: map[berth.AllocationID]int64{}}
	}
	s.users[v].sizes[member] = size
}

// drop ends the use of all volumes by a member. s.mu is held.
func (s *Store) drop(member berth.AllocationID) {
	for v, u := range s.users {
		if _, ok := u.sizes[member]; !ok {
			continue
		}
		if delete(u.sizes, member); len(u.sizes) == 0 {
			delete(s.users, v)
		}
		now := time.Now()
		_ = os.Chtimes(s.at(v, "volume.json"), now, now) // on failure it may be removed a little too early
	}
}

// at returns the path of a file of a volume; "": its folder.
func (s *Store) at(v volume, file string) string {
	return filepath.Join(s.Dir, string(v.tenant), v.name, file)
}

// ready returns the folder of a volume for containers. A volume without a user is replaced by an empty one if it is
// not as a job may have it: of another user, since the name of a deleted tenant was given again, or beyond its size.
// s.mu is held.
func (s *Store) ready(v volume, owner spec.UserID, size int64) (folder string, err error) {
	folder = s.at(v, "data")
	r, err := s.read(v)
	switch used := s.users[v]; {
	case used != nil && r.Over:
		return "", errors.New("it is beyond its size, and the jobs that use it have not ended yet")
	case err == nil && s.ownedBy(folder, owner) && used != nil:
		size = max(size, used.size())
	case used != nil:
		return "", errors.New("another job uses it, and it is not of this tenant's user")
	case err != nil || r.Over || !s.ownedBy(folder, owner):
		if err := s.strike(v); err != nil {
			return "", err
		}
		return folder, s.create(v, owner, size)
	}
	return folder, s.write(v, record{Size: size})
}

// ownedBy reports whether a path is a folder of the user itself, and no link.
func (s *Store) ownedBy(folder string, owner spec.UserID) bool {
	info, err := os.Lstat(folder)
	if err != nil || !info.IsDir() {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == owner.UID
}

// create makes an empty volume, which appears with its record at once. s.mu is held.
func (s *Store) create(v volume, owner spec.UserID, size int64) error {
	half, err := os.MkdirTemp(s.Dir, ".new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(half)
	data := filepath.Join(half, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		return err
	}
	// Unlike a workspace it outlives the job, so without the right to give it away there is no volume.
	if err := os.Lchown(data, owner.UID, owner.GID); err != nil {
		return err
	}
	if err := writeRecord(half, record{Size: size}); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(s.Dir, string(v.tenant)), 0o700); err != nil {
		return err
	}
	return os.Rename(half, s.at(v, ""))
}

// strike takes a volume out of the store with one rename. A sweep removes the files. An absent volume is no error.
// s.mu is held.
func (s *Store) strike(v volume) error {
	gone, err := os.MkdirTemp(s.Dir, ".gone-")
	if err != nil {
		return err
	}
	err = os.Rename(s.at(v, ""), filepath.Join(gone, "volume"))
	if err == nil {
		return nil
	}
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, os.Remove(gone))
}

// makeRoom takes out volumes of the tenant without a user, the least recently used first, until the sizes of the
// others and of the wanted ones fit into the total. s.mu is held.
func (s *Store) makeRoom(member berth.AllocationID, tenant berth.TenantID, want []Want) error {
	var sum int64
	wanted := map[string]bool{}
	for _, w := range want {
		size := w.Size
		if u := s.users[volume{tenant, w.Name}]; u != nil {
			size = max(size, u.size())
		}
		wanted[w.Name], sum = true, sum+size
	}
	for v, u := range s.users {
		if v.tenant == tenant && !wanted[v.name] {
			sum += u.size()
		}
	}
	if sum > s.Total {
		return fmt.Errorf("%w: they have %s together with this job's; allowed are %s", ErrNoRoom,
			berth.BytesText(sum), berth.BytesText(s.Total))
	}
	idle, err := s.idle()
	if err != nil {
		return err
	}
	idle = slices.DeleteFunc(idle, func(i idleVolume) bool { return i.tenant != tenant || wanted[i.name] })
	for _, i := range idle {
		sum += i.Size
	}
	for _, i := range idle {
		if sum <= s.Total {
			break
		}
		if err := s.strike(i.volume); err != nil {
			return err
		}
		s.Log.Info("volume removed, its tenant needs room for another one", "volume", i.String(), "for", member)
		sum -= i.Size
	}
	return nil
}

// idleVolume is a volume without a user.
type idleVolume struct {
	volume
	record
	used time.Time
}

// idle lists the volumes without a user, the least recently used first. A volume without a readable record counts as
// one that was never used. s.mu is held.
func (s *Store) idle() (list []idleVolume, err error) {
	folders, err := filepath.Glob(filepath.Join(s.Dir, "*", "*"))
	if err != nil {
		return nil, err
	}
	for _, f := range folders {
		v := volume{berth.TenantID(filepath.Base(filepath.Dir(f))), filepath.Base(f)}
		if strings.HasPrefix(string(v.tenant), ".") || s.users[v] != nil {
			continue
		}
		i := idleVolume{volume: v}
		if r, err := s.read(v); err == nil {
			i.record = r
			if info, err := os.Stat(s.at(v, "volume.json")); err == nil {
				i.used = info.ModTime()
			}
		}
		list = append(list, i)
	}
	slices.SortFunc(list, func(a, b idleVolume) int { return a.used.Compare(b.used) })
	return list, nil
}

// read returns the record of a volume.
func (s *Store) read(v volume) (r record, err error) {
	text, err := os.ReadFile(s.at(v, "volume.json"))
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	return r, err
}

// write replaces the record of a volume.
func (s *Store) write(v volume, r record) error { return writeRecord(s.at(v, ""), r) }

// writeRecord writes volume.json of a folder at once: a crash leaves the earlier record or the new one.
func writeRecord(folder string, r record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	next := filepath.Join(folder, "volume.json.next")
	if err := os.WriteFile(next, text, 0o600); err != nil {
		return err
	}
	return os.Rename(next, filepath.Join(folder, "volume.json"))
}
