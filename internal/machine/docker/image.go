package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

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
	api     *client.Client
	log     *slog.Logger
	mirrors []Mirror
	pulls   pulls
	meter   pullMeter
}

// EnsureImage pulls an image that the machine does not have, or with fresh any image. Callers for the
// same image with the same login share one pull, which goes on until the last of them has given up.
func (m *images) EnsureImage(ctx context.Context, ref string, auth *node.RegistryAuth, fresh bool) (node.Image, error) {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return node.Image{}, fmt.Errorf("image reference %q: %w: %w", ref, node.ErrImageNotFound, err)
	}
	if !fresh {
		found, _, err := m.local(ctx, ref, named)
		if err == nil || !cerrdefs.IsNotFound(err) {
			return node.Image{Digest: found}, err
		}
	}
	login, err := encodeLogin(named, auth)
	if err != nil {
		return node.Image{}, fmt.Errorf("pull image %s: %w", ref, err)
	}
	err = m.pulls.do(ctx, canonical(ref)+" "+login, func(ctx context.Context) error {
		return m.pull(ctx, named, login)
	})
	if err != nil {
		return node.Image{}, classifyPull(ref, err)
	}
	digest, id, err := m.local(ctx, ref, named)
	if cerrdefs.IsNotFound(err) { // pruned between the two calls
		return node.Image{}, fmt.Errorf("image %s is gone right after its pull: %w: %w", ref,
			node.ErrImageUnavailable, err)
	}
	return node.Image{Digest: digest, Pulled: true, ID: id}, err
}

// CheckImage has the engine fetch the manifest, so that the request takes the same way as a pull:
// the engine's proxies, certificates and list of registries without TLS.
func (m *images) CheckImage(ctx context.Context, ref, digest string, auth *node.RegistryAuth) error {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return fmt.Errorf("image reference %q: %w: %w", ref, node.ErrImageNotFound, err)
	}
	pinned, err := reference.ParseNormalizedNamed(named.Name() + "@" + digest)
	if err != nil {
		return fmt.Errorf("image %s with digest %q: %w: %w", ref, digest, node.ErrImageNotFound, err)
	}
	login, err := encodeLogin(named, auth)
	if err != nil {
		return fmt.Errorf("check image %s: %w", ref, err)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if _, err := m.api.DistributionInspect(ctx, pinned.String(), login); err != nil {
		return classifyPull(ref, err)
	}
	return nil
}

// ResolveTag has the engine ask the registry, as CheckImage does.
func (m *images) ResolveTag(ctx context.Context, ref string, auth *node.RegistryAuth) (string, error) {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return "", fmt.Errorf("image reference %q: %w: %w", ref, node.ErrImageNotFound, err)
	}
	login, err := encodeLogin(named, auth)
	if err != nil {
		return "", fmt.Errorf("resolve image %s: %w", ref, err)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	found, err := m.api.DistributionInspect(ctx, reference.TagNameOnly(named).String(), login)
	if err != nil {
		return "", classifyPull(ref, err)
	}
	return found.Descriptor.Digest.String(), nil
}

// encodeLogin returns a login in the form of the engine's API, "" for no login.
func encodeLogin(named reference.Named, auth *node.RegistryAuth) (string, error) {
	if auth == nil {
		return "", nil
	}
	login, err := registry.EncodeAuthConfig(registry.AuthConfig{
		Username:      auth.Username,
		Password:      auth.Password,
		ServerAddress: reference.Domain(named),
	})
	if err != nil {
		return "", fmt.Errorf("encode login: %w", err)
	}
	return login, nil
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

// RemoveImage removes one name of an image. The engine removes the content with the last name, and
// refuses while a container was created from it. A digest that a tag of the same repository needs stays:
// without it the image would count as one of no registry, which every tenant may run. With its images in
// containerd, the engine would remove all tags together with the digest.
func (m *images) RemoveImage(ctx context.Context, ref, id string) error {
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return fmt.Errorf("image reference %q: %w: %w", ref, node.ErrNoImage, err)
	}
	found, err := m.api.ImageInspect(ctx, canonical(ref))
	if err == nil && found.ID != id {
		return fmt.Errorf("remove image %s: it is %s by now, not %s: %w", ref, found.ID, id, node.ErrNoImage)
	}
	if _, pinned := named.(reference.Digested); err == nil && pinned && hasTag(found.RepoTags, named.Name()) {
		return fmt.Errorf("remove image %s: a tag needs it: %w", ref, node.ErrImageInUse)
	}
	if err == nil {
		_, err = m.api.ImageRemove(ctx, canonical(ref), image.RemoveOptions{PruneChildren: true})
	}
	switch {
	case err == nil:
		m.log.InfoContext(ctx, "image removed", "image", ref)
		return nil
	case cerrdefs.IsNotFound(err):
		return fmt.Errorf("remove image %s: %w: %w", ref, node.ErrNoImage, err)
	case cerrdefs.IsConflict(err):
		return fmt.Errorf("remove image %s: %w: %w", ref, node.ErrImageInUse, err)
	default:
		return fmt.Errorf("remove image %s: %w", ref, err)
	}
}

// hasTag reports whether one of the tags belongs to a repository.
func hasTag(tags []string, repository string) bool {
	return slices.ContainsFunc(tags, func(tag string) bool {
		named, err := reference.ParseNormalizedNamed(tag)
		return err == nil && named.Name() == repository
	})
}

// removeTimeout bounds the removal of an image. Large images have hundreds of thousands of files.
const removeTimeout = 10 * time.Minute

// local returns the engine's id of an image and the digest under which the image's own repository serves
// it, "" for an image from no registry: the id of an image that was built or imported on this machine
// does not identify the image of that name on another machine.
func (m *images) local(ctx context.Context, ref string, named reference.Named) (digest, id string, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	found, err := m.api.ImageInspect(ctx, canonical(ref))
	if cerrdefs.IsNotFound(err) {
		return "", "", err
	}
	if err != nil {
		return "", "", fmt.Errorf("inspect image %s: %w: %w", ref, node.ErrImageUnavailable, err)
	}
	if asked, ok := named.(reference.Digested); ok {
		return asked.Digest().String(), found.ID, nil
	}
	for _, repo := range found.RepoDigests {
		r, err := reference.ParseNormalizedNamed(repo)
		if err != nil {
			continue
		}
		if d, ok := r.(reference.Digested); ok && r.Name() == named.Name() {
			return d.Digest().String(), found.ID, nil
		}
	}
	return "", found.ID, nil
}

// pull pulls an image from its registry, and before that its content from a mirror, if there is one.
func (m *images) pull(ctx context.Context, named reference.Named, login string) error {
	ref := canonical(named.String())
	meter, end := m.meter.begin(ref)
	defer end()
	if mirrored := m.fromMirror(ctx, named, login, meter); mirrored != "" {
		defer m.forgetMirrored(ctx, mirrored)
	}
	if err := m.fetch(ctx, ref, login, meter); err != nil {
		return err
	}
	m.log.InfoContext(ctx, "image pulled", "image", ref)
	return nil
}

// fetch asks the engine to pull from one source and reads its progress to the end, where errors may hide
// behind a status of 200.
func (m *images) fetch(ctx context.Context, ref, login string, meter *pullShare) error {
	body, err := m.api.ImagePull(ctx, ref, image.PullOptions{RegistryAuth: login})
	if err != nil {
		return err
	}
	defer body.Close()
	for progress := json.NewDecoder(body); ; {
		var line struct {
			layerStatus
			ErrorDetail *struct{ Message string } `json:"errorDetail"`
			Error       string                    `json:"error"`
		}
		switch err := progress.Decode(&line); {
		case errors.Is(err, io.EOF):
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
