package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"berth"
	"berth/internal/machine/diskuse"
)

const (
	// patience bounds one measurement. The result is then a lower bound.
	patience = 10 * time.Second
	// rest is the number of times its own duration for which a measurement is not repeated, so that a volume with very
	// many files costs at most a tenth of a core.
	rest = 9
	// bytesPerFile and leastFiles limit the number of files of a volume by its size: one for 16 KiB, as ext4 has
	// inodes, and some for small volumes. Without it a volume of empty files could use up all inodes of the machine.
	bytesPerFile = 16 << 10
	leastFiles   = 10_000
)

// measured is the last measurement of a volume in use.
type measured struct {
	at   time.Time
	took time.Duration
}

// Excess is a volume beyond its size, with the members that use it.
type Excess struct {
	Members []berth.AllocationID
	Says    string // for users, without a path of this machine
}

// Measure measures the volumes in use that are due, and returns the ones beyond their sizes. A measurement is no
// moment: it counts a folder twice that is moved meanwhile. So a second measurement must find the same.
func (s *Store) Measure(ctx context.Context) (over []Excess) {
	for _, v := range s.due(time.Now()) {
		if ctx.Err() != nil {
			return over
		}
		says := s.beyond(ctx, v)
		if says != "" {
			says = s.beyond(ctx, v)
		}
		if says == "" {
			continue
		}
		if e := s.condemn(v, says); len(e.Members) > 0 {
			over = append(over, e)
		}
	}
	return over
}

// due returns the volumes in use whose last measurement is long enough ago.
func (s *Store) due(now time.Time) (list []volume) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for v, u := range s.users {
		if now.Sub(u.at) >= rest*u.took {
			list = append(list, v)
		}
	}
	return list
}

// beyond measures a volume and says how it exceeds its size; "": it does not, or has no user now.
func (s *Store) beyond(ctx context.Context, v volume) string {
	s.mu.Lock()
	u := s.users[v]
	var size int64
	if u != nil {
		size = u.size()
	}
	s.mu.Unlock()
	if u == nil {
		return ""
	}
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	begun := time.Now()
	found, err := diskuse.Tree(limited, s.at(v, "data"), size)
	s.mu.Lock()
	u.at, u.took = time.Now(), time.Since(begun)
	s.mu.Unlock()
	files := size/bytesPerFile + leastFiles
	switch {
	case found.Bytes > size:
		return fmt.Sprintf("volume %s used more than its size of %s", v.name, berth.BytesText(size))
	case found.Inodes > files:
		return fmt.Sprintf("volume %s has more than %d files and folders, the limit of a volume of %s", v.name, files,
			berth.BytesText(size))
	case errors.Is(err, diskuse.ErrTooDeep):
		return fmt.Sprintf("volume %s cannot be measured: %v", v.name, diskuse.ErrTooDeep)
	case err != nil && ctx.Err() == nil:
		s.Log.Debug("volume measured in part", "volume", v.String(), "err", err)
	}
	return ""
}

// condemn marks a volume as beyond its size, so that it is removed after its last use, and returns its members.
func (s *Store) condemn(v volume, says string) (e Excess) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.users[v]
	if u == nil {
		return e
	}
	if err := s.write(v, record{Size: u.size(), Over: true}); err != nil {
		s.Log.Warn("cannot mark a volume beyond its size, its next job may end for it, too", "volume", v.String(),
			"err", err)
	}
	e.Says = says
	for member := range u.sizes {
		e.Members = append(e.Members, member)
	}
	return e
}

// Sweep removes volumes without a user. It first removes the files of volumes that were taken out earlier, then volumes
// beyond their size and volumes older than Age. While short reports that the disk is too full, it also removes the
// least recently used ones. One sweep at a time may run.
func (s *Store) Sweep(ctx context.Context, short func() bool) error {
	err := s.clear()
	for ctx.Err() == nil {
		taken, fault := s.takeIdle(time.Now(), short)
		err = errors.Join(err, fault)
		if !taken || fault != nil {
			return err
		}
		if fault := s.clear(); fault != nil {
			return errors.Join(err, fault)
		}
	}
	return err
}

// takeIdle takes out one volume that a sweep removes. taken is false if there is none.
func (s *Store) takeIdle(now time.Time, short func() bool) (taken bool, err error) {
	full := short() // it may ask the kernel, so it holds no lock
	s.mu.Lock()
	defer s.mu.Unlock()
	list, err := s.idle()
	if err != nil {
		return false, err
	}
	for _, i := range list {
		why := ""
		switch {
		case i.Over:
			why = "it is beyond its size"
		case s.Age > 0 && now.Sub(i.used) > s.Age:
			why = "no job has used it for long"
		case full:
			why = "the disk is nearly full"
		default:
			continue
		}
		s.Log.Info("volume removed", "volume", i.String(), "why", why)
		return true, s.strike(i.volume)
	}
	return false, nil
}

// clear removes the files of volumes that were taken out. It lists them under the lock: strike makes a folder before it
// moves the volume there.
func (s *Store) clear() error {
	s.mu.Lock()
	gone, err := filepath.Glob(filepath.Join(s.Dir, ".gone-*"))
	s.mu.Unlock()
	if err != nil {
		return err
	}
	for _, g := range gone {
		err = errors.Join(err, os.RemoveAll(g))
	}
	if err != nil {
		return fmt.Errorf("remove volumes: %w", err)
	}
	return nil
}
