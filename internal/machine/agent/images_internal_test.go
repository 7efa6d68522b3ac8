package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"berth"
	"berth/activities/node"
	"berth/spec"
)

// shelf is an engine of which only the images are asked for.
type shelf struct {
	node.Runtime
	has   map[string]int64 // bytes
	fails error
	mute  []string // of which alone it does not answer
	asked []string
	then  func() // while it answers
}

func (s *shelf) ImageBytes(_ context.Context, ref string) (int64, error) {
	s.asked = append(s.asked, ref)
	if s.then != nil {
		s.then()
	}
	if s.fails != nil {
		return 0, s.fails
	}
	if slices.Contains(s.mute, ref) {
		return 0, errors.New("no answer")
	}
	if n, ok := s.has[ref]; ok {
		return n, nil
	}
	return 0, fmt.Errorf("%s: %w", ref, node.ErrNoImage)
}

// shelved opens the images of a state folder as a process does that begins.
func shelved(dir string, s *shelf) *images {
	return openImages(dir, s, &holdings{}, slog.New(slog.DiscardHandler))
}

func (i *images) wantTold(t *testing.T, when string, want ...spec.CachedData) {
	t.Helper()
	if got := i.holds.now().list; !slices.Equal(got, want) {
		t.Errorf("%s: told is %v, want %v", when, got, want)
	}
}

func ofImage(tenant berth.TenantID, name string, mib int64) spec.CachedData {
	return spec.CachedData{Key: spec.ImageKey(tenant, name), MiB: mib}
}

func TestImagesAreToldOfWhomTheyServedAlone(t *testing.T) {
	t.Parallel()
	engine := &shelf{has: map[string]int64{"cuda:12": 8<<30 + 1, "python:3": 1 << 30, "tiny": 1 << 20}}
	i := shelved(t.TempDir(), engine)
	i.look(t.Context(), true)
	i.wantTold(t, "an engine that has images")
	i.note("red", "cuda:12")
	i.note("blue", "tiny")
	i.wantTold(t, "before the engine is asked")
	i.look(t.Context(), false)
	i.wantTold(t, "one that served red", ofImage("red", "cuda:12", 8192))
	i.note("blue", "cuda:12")
	i.note("blue", "python:3")
	i.note("red", "cuda:12")
	engine.asked = nil
	i.look(t.Context(), false)
	if want := []string{"cuda:12", "python:3"}; !slices.Equal(engine.asked, want) {
		t.Errorf("asked for %q, want those that are new, %q", engine.asked, want)
	}
	want := []spec.CachedData{ofImage("red", "cuda:12", 8192), ofImage("blue", "cuda:12", 8192)}
	slices.SortFunc(want, func(a, b spec.CachedData) int { return map[bool]int{true: -1, false: 1}[a.Key < b.Key] })
	i.wantTold(t, "two that served blue too", append(want, ofImage("blue", "python:3", 1024))...)
}

func TestImagesAreRememberedUntilTheEngineHasThemNoMore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	engine := &shelf{has: map[string]int64{"a": 20 << 20, "b": 30 << 20}}
	i := shelved(dir, engine)
	i.note("red", "a")
	i.note("red", "b")
	i.look(t.Context(), false)
	a, b := ofImage("red", "a", 20), ofImage("red", "b", 30)
	i.wantTold(t, "at first", b, a)

	i = shelved(dir, engine)
	i.wantTold(t, "another process, before it has asked", b, a)
	engine.fails = errors.New("no answer")
	i.look(t.Context(), true)
	i.wantTold(t, "an engine that does not answer", b, a)
	engine.fails = nil
	engine.has = map[string]int64{"a": 40 << 20}
	i.look(t.Context(), true)
	a.MiB = 40
	i.wantTold(t, "one is gone and one is another", a)
	i = shelved(dir, engine)
	i.wantTold(t, "the process after that", a)

	// An image that arrives during a negative answer of the engine stays.
	delete(engine.has, "a")
	engine.then = func() { i.note("red", "a"); engine.has["a"], engine.then = 50<<20, nil }
	engine.fails = fmt.Errorf("a: %w", node.ErrNoImage)
	i.look(t.Context(), true)
	engine.fails = nil
	select {
	case <-i.kick:
	default:
		t.Error("nobody asks for what came meanwhile")
	}
	i.look(t.Context(), false)
	i.wantTold(t, "one that came meanwhile", ofImage("red", "a", 50))
}

func TestImagesOfWhichTheEngineSaysNothingDoNotHideOthers(t *testing.T) {
	t.Parallel()
	engine := &shelf{has: map[string]int64{"c": 20 << 20}, mute: []string{"a", "b"}}
	i := shelved(t.TempDir(), engine)
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		i.note("red", name)
	}
	i.look(t.Context(), true)
	i.wantTold(t, "two that it does not answer for", ofImage("red", "c", 20))
	engine.asked, engine.fails = nil, errors.New("no answer")
	i.look(t.Context(), true)
	if want := []string{"a", "b", "c"}; !slices.Equal(engine.asked, want) {
		t.Errorf("an engine that is away was asked for %q, want %q", engine.asked, want)
	}
}

func TestAnImageRecordThatCouldNotBeWrittenIsWrittenLater(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	i := shelved(dir, &shelf{has: map[string]int64{"a": 20 << 20}})
	i.note("red", "a")
	i.look(t.Context(), false) // there is no such folder
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	i.look(t.Context(), true)
	shelved(dir, &shelf{}).wantTold(t, "a later process", ofImage("red", "a", 20))
}

func TestAnImageRecordThatIsDamagedIsEmpty(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"cut short": `[{"tenant":"red","image":"a","by`, "empty": "", "other": `{"images":3}`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "images.json"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			i := shelved(dir, &shelf{has: map[string]int64{"a": 20 << 20}})
			i.look(t.Context(), true)
			i.wantTold(t, "a damaged record")
			i.note("red", "a")
			i.look(t.Context(), false)
			shelved(dir, &shelf{}).wantTold(t, "after the next job", ofImage("red", "a", 20))
		})
	}
}

func TestTheImagesUsedLastAreRemembered(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	engine := &shelf{has: map[string]int64{}}
	i := shelved(dir, engine)
	for n := range maxImages + 1 {
		name := fmt.Sprint("image:", n)
		engine.has[name] = int64(20+n) << 20
		i.note("red", name)
		i.note("red", "image:0") // used all the time
	}
	i.look(t.Context(), false)
	for _, i := range []*images{i, shelved(dir, engine)} {
		if len(i.known) != maxImages || i.known[imageOf{"red", "image:0"}] == nil || i.known[imageOf{"red", "image:1"}] != nil {
			t.Errorf("%d are remembered, among them the first: %v, the second: %v", len(i.known), i.known[imageOf{"red", "image:0"}] != nil, i.known[imageOf{"red", "image:1"}] != nil)
		}
	}
	if got := i.holds.now().list; len(got) != spec.MaxCachedData || got[0].MiB != 20+maxImages {
		t.Errorf("of them %d are told, the first of %d MiB", len(got), got[0].MiB)
	}
}

// Images and cache entries share the limit of a report; the largest of both are reported.
func TestTheLargestOfImagesAndCacheAreTold(t *testing.T) {
	t.Parallel()
	var told int
	h := &holdings{changed: func() { told++ }}
	var cached, images []spec.CachedData
	for n := range spec.DataKey(spec.MaxCachedData) {
		cached = append(cached, spec.CachedData{Key: 1 + n, MiB: 100 + int64(n)})
	}
	h.noteCache(cached)
	images = append(images, spec.CachedData{Key: -1, MiB: 4096}, spec.CachedData{Key: -2, MiB: 16})
	h.noteImages(images)
	got := h.now()
	if len(got.list) != spec.MaxCachedData || got.list[0].Key != -1 || slices.ContainsFunc(got.list, func(d spec.CachedData) bool { return d.Key == -2 || d.Key == 1 }) {
		t.Errorf("%d are told: %v", len(got.list), got.list)
	}
	h.noteImages(slices.Clone(images))
	if told != 2 || h.now().version != got.version {
		t.Errorf("two lists were told of %d times", told)
	}
	h.noteCache(nil)
	if again := h.now(); again.version == got.version || !slices.Equal(again.list, images) {
		t.Errorf("with an empty cache is told %v", again.list)
	}
}
