package fakeruntime

import (
	"context"
	"fmt"
	"strings"

	"berth/activities/node"
)

// Absent makes the engine lack an image until EnsureImage pulls it.
func (f *Faults) Absent(ref string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.absent[ref] = true
}

// KeepsDataIn sets the folder of the engine's data, of which Info names none at first.
func (f *Faults) KeepsDataIn(folder string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.data = folder
}

// root returns the folder of the engine's data.
func (f *Faults) root() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.data
}

// fetch makes an image exist and reports whether it did not exist before.
func (f *Faults) fetch(ref string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	pulled := f.absent[ref]
	delete(f.absent, ref)
	return pulled
}

// here reports whether the engine has an image. A reference with a digest stands for the image of the name.
func (f *Faults) here(ref string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.images[ref] == nil && !f.absent[ref] && !f.absent[unpinned(ref)]
}

// unpinned returns a reference without its digest.
func unpinned(ref string) string {
	name, _, _ := strings.Cut(ref, "@")
	return name
}

// RemoveImage removes an image that no container was created from.
func (e *execs) RemoveImage(ctx context.Context, ref, id string) error {
	f := e.fake
	if err := f.allow(ctx, Call{Method: "RemoveImage", Subject: ref}); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.here(ref) || id != imageDigest(ref) {
		return fmt.Errorf("remove image %s: %w", ref, node.ErrNoImage)
	}
	for _, c := range f.containers {
		if unpinned(c.spec.Image) == unpinned(ref) {
			return fmt.Errorf("remove image %s: container %s: %w", ref, c.spec.Name, node.ErrImageInUse)
		}
	}
	f.Absent(ref)
	return nil
}

// ResolveTag returns the digest that EnsureImage gives, unless FailImage has set a fault of the image.
func (e *execs) ResolveTag(ctx context.Context, ref string, _ *node.RegistryAuth) (string, error) {
	if err := e.fake.allow(ctx, Call{Method: "ResolveTag", Subject: ref}); err != nil {
		return "", err
	}
	if err := e.fake.imageError(ref); err != nil {
		return "", fmt.Errorf("resolve image %s: %w", ref, err)
	}
	return imageDigest(ref), nil
}
