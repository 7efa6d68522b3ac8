package agent

import (
	"context"
	"io"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"berth/wire"
)

const (
	smallManifest   = 1 << 20
	smallManifests  = 128 << 20 // of small manifests
	largeManifests  = 256 << 20 // of all others
	unknownManifest = -1        // size of a manifest whose size the server does not send
)

// manifestRoom bounds the manifests that all restores of an agent hold in memory at once, in bytes of JSON. A decoded
// manifest needs about as much again. Users choose the size of their manifests, and a machine may have hundreds of
// members. Small manifests have room of their own, so that a common restore does not wait for the restores of a job
// with many files. A nil room has no bound.
type manifestRoom struct{ small, large *semaphore.Weighted }

func newManifestRoom() *manifestRoom {
	return &manifestRoom{small: semaphore.NewWeighted(smallManifests), large: semaphore.NewWeighted(largeManifests)}
}

// of returns the room for a manifest of this size.
func (r *manifestRoom) of(bytes int64) *semaphore.Weighted {
	if bytes <= smallManifest {
		return r.small
	}
	return r.large
}

// manifestPlace is the room that one restore has for one manifest. The zero place has none.
type manifestPlace struct {
	room  *manifestRoom
	bytes int64
}

// try takes room for a manifest, and reports false if others have it. A place that is large enough stays as it is.
func (m *manifestPlace) try(bytes int64) bool {
	if m.room == nil || bytes <= m.bytes {
		return true
	}
	m.leave()
	if !m.room.of(bytes).TryAcquire(bytes) {
		return false
	}
	m.bytes = bytes
	return true
}

// wait takes room for a manifest, as soon as others have left enough. It holds no other room meanwhile.
func (m *manifestPlace) wait(ctx context.Context, bytes int64) error {
	m.leave()
	if err := m.room.of(bytes).Acquire(ctx, bytes); err != nil {
		return err
	}
	m.bytes = bytes
	return nil
}

// leave gives the room back.
func (m *manifestPlace) leave() {
	if m.bytes > 0 {
		m.room.of(m.bytes).Release(m.bytes)
		m.bytes = 0
	}
}

// withFiles calls use with the checked list of a part's files. The list is in memory only during the call, and use
// must not keep it.
func (p *restorePhase) withFiles(ctx context.Context, part savedPart, use func([]wire.CheckpointFile) error) error {
	place := &manifestPlace{room: p.manifests}
	defer place.leave()
	m, err := p.manifest(ctx, part, place)
	if err != nil {
		return err
	}
	return use(m.Files)
}

// openManifest opens a manifest for which place has room. It sets progress once it has waited for room: such a wait is
// no silence of the store.
func (p *restorePhase) openManifest(
	ctx context.Context, point wire.RestorePoint, place *manifestPlace, progress *atomic.Int64,
) (io.ReadCloser, int64, error) {
	for {
		in, size, err := p.control.getObject(ctx, point.Manifest, false)
		if err != nil || size > maxManifest || size <= unknownManifest || place.try(size) {
			return in, size, err
		}
		_ = in.Close() // the server would break the connection during a long wait
		p.log.Info("restore waits for memory for a manifest", "step", point.Step, "bytes", size)
		if err := place.wait(ctx, size); err != nil {
			return nil, 0, err
		}
		progress.Store(time.Now().UnixNano())
	}
}
