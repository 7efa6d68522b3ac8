package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/registry"
	"github.com/docker/docker/client"

	"berth/activities/node"
)

// images are the images of an engine. They implement the part of node.Runtime that is
// about images.
type images struct {
	api   *client.Client
	log   *slog.Logger
	pulls pulls
	meter pullMeter
}

// EnsureImage pulls an image that the machine does not have. Callers for the same image with the
// same login share one pull, which goes on until the last of them has given up.
func (m *images) EnsureImage(ctx context.Context, ref string, auth *node.RegistryAuth) (string, error) {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return "", fmt.Errorf("image reference %q: %w: %w", ref, node.ErrImageNotFound, err)
	}
	digest, err := m.localDigest(ctx, ref, named)
	if err == nil || !cerrdefs.IsNotFound(err) {
		return digest, err
	}
	login := ""
	if auth != nil {
		login, err = registry.EncodeAuthConfig(registry.AuthConfig{
			Username:      auth.Username,
			Password:      auth.Password,
			ServerAddress: reference.Domain(named),
		})
		if err != nil {
			return "", fmt.Errorf("pull image %s: encode login: %w", ref, err)
		}
	}
	err = m.pulls.do(ctx, canonical(ref)+" "+login, func(ctx context.Context) error {
		return m.pull(ctx, ref, login)
	})
	if err != nil {
		return "", classifyPull(ref, err)
	}
	digest, err = m.localDigest(ctx, ref, named)
	if cerrdefs.IsNotFound(err) { // pruned between the two calls
		return "", fmt.Errorf("image %s is gone right after its pull: %w: %w", ref, node.ErrImageUnavailable, err)
	}
	return digest, err
}

// ImageBytes asks for the size of an image that is here. Layers that several
// images have in common count for each.
func (m *images) ImageBytes(ctx context.Context, ref string) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	found, err := m.api.ImageInspect(ctx, canonical(ref))
	if cerrdefs.IsNotFound(err) {
		return 0, fmt.Errorf("inspect image %s: %w: %w", ref, node.ErrNoImage, err)
	}
	if err != nil {
		return 0, fmt.Errorf("inspect image %s: %w", ref, err)
	}
	return found.Size, nil
}

// localDigest returns the digest under which the image's own repository serves the image, "" for
// an image from no registry: the id of an image that was built or imported on this machine does
// not identify the image of that name on another machine.
func (m *images) localDigest(ctx context.Context, ref string, named reference.Named) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	found, err := m.api.ImageInspect(ctx, canonical(ref))
	if cerrdefs.IsNotFound(err) {
		return "", err
	}
	if err != nil {
		return "", fmt.Errorf("inspect image %s: %w: %w", ref, node.ErrImageUnavailable, err)
	}
	if asked, ok := named.(reference.Digested); ok {
		return asked.Digest().String(), nil
	}
	for _, repo := range found.RepoDigests {
		r, err := reference.ParseNormalizedNamed(repo)
		if err != nil {
			continue
		}
		if d, ok := r.(reference.Digested); ok && r.Name() == named.Name() {
			return d.Digest().String(), nil
		}
	}
	return "", nil
}

// pull asks the engine to pull and reads its progress to the end, where errors
// may hide behind a status of 200.
func (m *images) pull(ctx context.Context, ref, login string) error {
	body, err := m.api.ImagePull(ctx, canonical(ref), image.PullOptions{RegistryAuth: login})
	if err != nil {
		return err
	}
	defer body.Close()
	meter, end := m.meter.begin(canonical(ref))
	defer end()
	for progress := json.NewDecoder(body); ; {
		var line struct {
			layerStatus
			ErrorDetail *struct{ Message string } `json:"errorDetail"`
			Error       string                    `json:"error"`
		}
		switch err := progress.Decode(&line); {
		case errors.Is(err, io.EOF):
			m.log.InfoContext(ctx, "image pulled", "image", ref)
			return nil
		case err != nil:
			return fmt.Errorf("read pull progress: %w", err)
		case line.ErrorDetail != nil:
			return errors.New(line.ErrorDetail.Message)
		case line.Error != "":
			return errors.New(line.Error)
		}
		meter.note(line.layerStatus)
	}
}

// canonical returns the reference in the one spelling that all calls use. It drops the tag of
// name:tag@digest: the digest decides, and old engines find no image by both.
func canonical(ref string) string {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return ref
	}
	if d, ok := named.(reference.Digested); ok {
		if pinned, err := reference.WithDigest(reference.TrimNamed(named), d.Digest()); err == nil {
			return pinned.String()
		}
	}
	return reference.TagNameOnly(named).String()
}
