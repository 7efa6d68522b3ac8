package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"berth"
	"berth/activities/node"
	"berth/internal/machine/diskuse"
)

// imageDisk is an engine on a disk of 100 GiB. Each of its images has 4 GiB.
type imageDisk struct {
	node.Runtime
	mu     sync.Mutex
	has    map[string]bool
	used   map[string]bool // by containers
	others int64           // GiB
	gone   []string        // in the order of their removal
	before func(ref string)
}

func (d *imageDisk) space() (diskuse.Space, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return diskuse.Space{
		Total: 100 << 30, Free: 100<<30 - d.others<<30 - int64(len(d.has))*4<<30, Inodes: 100, FreeInodes: 100,
	}, nil
}

func (d *imageDisk) RemoveImage(_ context.Context, ref string) error {
	if d.before != nil {
		d.before(ref)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.used[ref]:
		return fmt.Errorf("%s: %w", ref, node.ErrImageInUse)
	case !d.has[ref]:
		return fmt.Errorf("%s: %w", ref, node.ErrNoImage)
	}
	delete(d.has, ref)
	d.gone = append(d.gone, ref)
	return nil
}

// full returns a disk with ten images, of which the agent has pulled all but the first, in their order.
// mark is --image-disk-mark. 60 GiB are free, less what others use.
func full(t *testing.T, mark int, others int64) (*imageDisk, *pulledImages) {
	t.Helper()
	d := &imageDisk{has: map[string]bool{}, used: map[string]bool{}, others: others}
	p := openPulled(&Config{StateDir: t.TempDir(), Runtime: d, ImageMark: mark, DiskReserve: 5}, d.space, func(string) {},
		slog.New(slog.DiscardHandler))
	for i := range 10 {
		ref := imageNumber(i)
		d.has[ref] = true
		if i > 0 {
			p.known[ref] = time.Now().Add(time.Duration(i-100) * time.Hour)
		}
	}
	return d, p
}

func imageNumber(i int) string { return fmt.Sprintf("registry.test/team/i%d:1", i) }

func wantGone(t *testing.T, d *imageDisk, numbers ...int) {
	t.Helper()
	var want []string
	for _, n := range numbers {
		want = append(want, imageNumber(n))
	}
	if !slices.Equal(d.gone, want) {
		t.Errorf("removed are %v, want %v", d.gone, want)
	}
}

func TestAFullDiskLosesTheLeastRecentlyUsedImages(t *testing.T) {
	t.Parallel()
	d, p := full(t, 15, 44) // 16 GiB are free
	p.sweep(t.Context())
	wantGone(t, d)
	d.others = 46 // 14 GiB
	p.sweep(t.Context())
	wantGone(t, d, 1, 2) // to 22 GiB, beyond 20
	p.sweep(t.Context())
	wantGone(t, d, 1, 2)
	// The use of an image counts, not its pull.
	if err := p.want(t.Context(), 7, imageNumber(3)); err != nil {
		t.Fatal(err)
	}
	p.leave(7)
	d.others = 54
	p.sweep(t.Context())
	wantGone(t, d, 1, 2, 4, 5)
}

// Images that somebody else put on the machine stay, as images that are wanted or in use. The
// engine's refusal counts as a use.
func TestOnlyIdleImagesOfTheAgentAreRemoved(t *testing.T) {
	t.Parallel()
	d, p := full(t, 15, 60) // 0 GiB are free, and stay so
	d.others = 1000
	d.used[imageNumber(2)] = true
	if err := p.want(t.Context(), 7, "registry.test/team/i3@sha256:abc"); err != nil { // another name in the same repository
		t.Fatal(err)
	}
	p.sweep(t.Context())
	wantGone(t, d, 1, 4, 5, 6, 7, 8, 9)
	if !p.told {
		t.Error("it does not say that nothing is left to remove")
	}
	if age := time.Since(p.known[imageNumber(2)]); age > time.Hour {
		t.Errorf("the image in use counts as used %s ago", age)
	}
	p.leave(7)
	delete(d.used, imageNumber(2))
	p.sweep(t.Context())
	wantGone(t, d, 1, 4, 5, 6, 7, 8, 9, 2, 3)
}

func TestNoImageIsRemovedWithoutAMarkOrAMeasurement(t *testing.T) {
	t.Parallel()
	d, p := full(t, 0, 1000)
	p.sweep(t.Context())
	wantGone(t, d)
	d, p = full(t, 15, 1000)
	p.space = func() (diskuse.Space, error) { return diskuse.Space{}, errors.New("no answer") }
	p.sweep(t.Context())
	wantGone(t, d)
	if p.mark = 0; full2(t) != 45 {
		t.Error("the mark is not above the reserve")
	}
}

// full2 returns the mark of an agent with a mark of 15 and a reserve of 40 percent.
func full2(t *testing.T) int {
	t.Helper()
	return openPulled(&Config{StateDir: t.TempDir(), ImageMark: 15, DiskReserve: 40}, nil, nil, slog.New(slog.DiscardHandler)).mark
}

// A member that comes while its image is being removed waits, and then finds that the image must
// be pulled. It never finds an image that is gone a moment later.
func TestAMemberWaitsForTheRemovalOfItsImage(t *testing.T) {
	t.Parallel()
	d, p := full(t, 15, 46)
	removing, proceed := make(chan struct{}), make(chan struct{})
	d.before = func(ref string) {
		if ref == imageNumber(1) {
			close(removing)
			<-proceed
		}
	}
	var all sync.WaitGroup
	all.Go(func() { p.sweep(t.Context()) })
	<-removing
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errAbandoned)
	if err := p.want(ctx, 8, imageNumber(1)); !errors.Is(err, errAbandoned) {
		t.Errorf("a member that is abandoned meanwhile: %v", err)
	}
	if err := p.want(t.Context(), 9, imageNumber(5)); err != nil { // another image is free
		t.Error(err)
	}
	found := make(chan bool)
	all.Go(func() {
		if err := p.want(t.Context(), 7, imageNumber(1)); err != nil {
			t.Error(err)
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		found <- d.has[imageNumber(1)]
	})
	close(proceed)
	if <-found {
		t.Error("the member has not waited for the removal")
	}
	all.Wait()
}

func TestTheRecordOfPulledImagesOutlivesTheProcess(t *testing.T) {
	t.Parallel()
	_, p := full(t, 15, 0)
	p.pulled("registry.test/new:1")
	again := openPulled(&Config{StateDir: filepath.Dir(p.path)}, p.space, nil, p.log)
	if len(again.known) != 10 || !slices.Equal(slices.Sorted(maps.Keys(again.known)), slices.Sorted(maps.Keys(p.known))) {
		t.Errorf("known are %v", again.known)
	}
	for _, damage := range []string{"{", "null", "[]"} {
		if err := os.WriteFile(p.path, []byte(damage), 0o600); err != nil {
			t.Fatal(err)
		}
		damaged := openPulled(&Config{StateDir: filepath.Dir(p.path)}, p.space, nil, p.log)
		damaged.pulled("registry.test/new:1") // and goes on
		if len(damaged.known) != 1 {
			t.Errorf("after %s known are %v", damage, damaged.known)
		}
	}
	for i := range maxPulled + 5 {
		p.mu.Lock()
		p.known[fmt.Sprint("registry.test/many:", i)] = time.Now()
		p.mu.Unlock()
	}
	p.pulled("registry.test/last:1")
	if _, kept := p.known["registry.test/last:1"]; len(p.known) != maxPulled || !kept {
		t.Errorf("%d are known, want %d with the last", len(p.known), maxPulled)
	}
	p.leave(berth.AllocationID(99)) // a member that wants nothing
}
