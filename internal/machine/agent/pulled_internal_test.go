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
	fails  error
}

func (d *imageDisk) space() (diskuse.Space, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return diskuse.Space{
		Total: 100 << 30, Free: 100<<30 - d.others<<30 - int64(len(d.has))*4<<30, Inodes: 100, FreeInodes: 100,
	}, nil
}

func (d *imageDisk) RemoveImage(_ context.Context, ref, id string) error {
	if d.before != nil {
		d.before(ref)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.used[ref]:
		return fmt.Errorf("%s: %w", ref, node.ErrImageInUse)
	case d.fails != nil:
		return d.fails
	case !d.has[ref] || id != "id of "+ref:
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
			p.known[ref] = pulledImage{ID: "id of " + ref, Used: time.Now().Add(time.Duration(i-100) * time.Hour)}
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
	user := &identity{alloc: 7}
	if err := p.hold(t.Context(), user, imageNumber(3)); err != nil {
		t.Fatal(err)
	}
	p.leave(user)
	d.others = 54
	p.sweep(t.Context())
	wantGone(t, d, 1, 2, 4, 5)
}

// Images that somebody else put on the machine stay, as images that are held or in use, and names that mean
// another image by now. The engine's refusal counts as a use.
func TestOnlyIdleImagesOfTheAgentAreRemoved(t *testing.T) {
	t.Parallel()
	d, p := full(t, 15, 1000) // no image makes enough room
	d.used[imageNumber(2)] = true
	other := p.known[imageNumber(4)]
	other.ID = "id of an image that the operator has replaced"
	p.known[imageNumber(4)] = other
	user := &identity{alloc: 7}
	if err := p.hold(t.Context(), user, "registry.test/team/i3@sha256:abc"); err != nil { // another name in the same repository
		t.Fatal(err)
	}
	p.sweep(t.Context())
	wantGone(t, d, 1, 5, 6, 7, 8, 9)
	if !p.told {
		t.Error("it does not say that nothing is left to remove")
	}
	if age := time.Since(p.known[imageNumber(2)].Used); age > time.Hour {
		t.Errorf("the image in use counts as used %s ago", age)
	}
	// Once its container exists, a member holds no older image of its repository.
	p.free(user)
	delete(d.used, imageNumber(2))
	p.sweep(t.Context())
	wantGone(t, d, 1, 5, 6, 7, 8, 9, 3, 2)
	p.leave(user)
	if len(p.known)+len(p.users) != 0 {
		t.Errorf("left are %v and %v", p.known, p.users)
	}
}

// A sweep ends at the first error: an engine that hangs takes minutes to answer.
func TestASweepEndsWithTheEnginesFirstError(t *testing.T) {
	t.Parallel()
	d, p := full(t, 15, 1000)
	calls := 0
	d.before, d.fails = func(string) { calls++ }, errors.New("no answer")
	p.sweep(t.Context())
	if calls != 1 || len(p.known) != 9 {
		t.Errorf("%d calls, %d images are known", calls, len(p.known))
	}
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
}

func TestTheMarkOfImagesIsAboveTheReserve(t *testing.T) {
	t.Parallel()
	for reserve, want := range map[int]int{0: 15, 5: 15, 10: 15, 40: 45} {
		p := openPulled(&Config{StateDir: t.TempDir(), ImageMark: 15, DiskReserve: reserve}, nil, nil, slog.New(slog.DiscardHandler))
		if p.mark != want {
			t.Errorf("reserve %d: the mark is %d, want %d", reserve, p.mark, want)
		}
	}
}

// The image that a name meant before has only its digest left as a name, by which it is removed.
func TestTheImageOfAMovedTagIsRecordedByItsDigest(t *testing.T) {
	t.Parallel()
	_, p := full(t, 15, 0)
	const tag = "registry.test/team/moved:1"
	p.pulled(tag, node.Image{ID: "a", Digest: "sha256:aa"})
	p.pulled(tag, node.Image{ID: "a", Digest: "sha256:aa"})
	p.pulled(tag, node.Image{ID: "b", Digest: "sha256:bb"})
	if old, now := p.known["registry.test/team/moved@sha256:aa"], p.known[tag]; len(p.known) != 11 || old.ID != "a" || now.ID != "b" {
		t.Errorf("%d are known, the old one as %+v, the new one as %+v", len(p.known), old, now)
	}
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
	if err := p.hold(ctx, &identity{alloc: 8}, imageNumber(1)); !errors.Is(err, errAbandoned) {
		t.Errorf("a member that is abandoned meanwhile: %v", err)
	}
	if err := p.hold(t.Context(), &identity{alloc: 9}, imageNumber(5)); err != nil { // another image is free
		t.Error(err)
	}
	found := make(chan bool)
	all.Go(func() {
		if err := p.hold(t.Context(), &identity{alloc: 7}, imageNumber(1)); err != nil {
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
	p.pulled("registry.test/new:1", node.Image{ID: "n"})
	again := openPulled(&Config{StateDir: filepath.Dir(p.path)}, p.space, nil, p.log)
	if len(again.known) != 10 || !slices.Equal(slices.Sorted(maps.Keys(again.known)), slices.Sorted(maps.Keys(p.known))) {
		t.Errorf("known are %v", again.known)
	}
	for _, damage := range []string{"{", "null", "[]"} {
		if err := os.WriteFile(p.path, []byte(damage), 0o600); err != nil {
			t.Fatal(err)
		}
		damaged := openPulled(&Config{StateDir: filepath.Dir(p.path)}, p.space, nil, p.log)
		damaged.pulled("registry.test/new:1", node.Image{ID: "n"}) // and goes on
		if len(damaged.known) != 1 {
			t.Errorf("after %s known are %v", damage, damaged.known)
		}
	}
	for i := range maxPulled + 5 {
		p.mu.Lock()
		p.known[fmt.Sprint("registry.test/many:", i)] = pulledImage{Used: time.Now()}
		p.mu.Unlock()
	}
	p.pulled("registry.test/last:1", node.Image{ID: "l"})
	if _, kept := p.known["registry.test/last:1"]; len(p.known) != maxPulled || !kept {
		t.Errorf("%d are known, want %d with the last", len(p.known), maxPulled)
	}
	p.leave(&identity{}) // a member that wants nothing
}
