package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"berth/activities/node"
)

// imageless is an engine that finds no image.
type imageless struct {
	node.Runtime
	asked []string
}

func (e *imageless) EnsureImage(_ context.Context, ref string, _ *node.RegistryAuth, _ bool) (node.Image, error) {
	e.asked = append(e.asked, ref)
	return node.Image{}, fmt.Errorf("%s: %w", ref, node.ErrImageNotFound)
}

func (e *imageless) ResolveTag(context.Context, string, *node.RegistryAuth) (string, error) {
	return "", fmt.Errorf("nothing: %w", node.ErrImageNotFound)
}

// A name with two digests is no reference: its error would hide that the image is gone.
func TestImageWithADigestGetsNoSecondOne(t *testing.T) {
	t.Parallel()
	fixed := "sha256:" + strings.Repeat("1", 64)
	for image, want := range map[string][]string{
		"example.com/a:1":        {"example.com/a:1@" + fixed},
		"example.com/a@" + fixed: {"example.com/a@" + fixed},
	} {
		engine := &imageless{}
		log := slog.New(slog.DiscardHandler)
		p := &pullPhase{
			core:   &core{identity: &identity{}, log: log, runtime: engine, claim: &claim{}},
			pulled: openPulled(&Config{StateDir: t.TempDir(), Runtime: engine}, nil, nil, log),
		}
		p.claim.Spec.Image, p.claim.ImageDigest = image, fixed
		if _, _, err := p.resolve(t.Context()); !errors.Is(err, node.ErrImageNotFound) || !slices.Equal(engine.asked, want) {
			t.Errorf("%s: asked for %q, want %q; error is %v", image, engine.asked, want, err)
		}
	}
}
