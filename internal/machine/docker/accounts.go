package docker

import (
	"archive/tar"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/client"

	"berth/activities/node"
)

// accounts caches the accounts of images. An engine gives files of an image only by a container, which is
// created, read and removed, and never started.
type accounts struct {
	api  *client.Client
	log  *slog.Logger
	turn chan struct{} // holds one token; taken while an image is read

	mu    sync.Mutex
	known map[string]node.Accounts // by the engine's id of the image, which is a hash of its content
}

const (
	// accountsLabel marks the containers from which accounts are read.
	accountsLabel = "berth.accounts"
	// mostAccounts bounds the cache; a full cache is emptied.
	mostAccounts = 256
	// accountsLeft is the age at which a container is a leftover of a process that was killed.
	accountsLeft = 10 * time.Minute
)

func newAccounts(api *client.Client, log *slog.Logger) *accounts {
	return &accounts{api: api, log: log, turn: make(chan struct{}, 1), known: map[string]node.Accounts{}}
}

// get returns the cached accounts of an image.
func (a *accounts) get(id string) (node.Accounts, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	found, ok := a.known[id]
	return found, ok
}

// put adds the accounts of an image to the cache.
func (a *accounts) put(id string, found node.Accounts) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.known) >= mostAccounts {
		clear(a.known)
	}
	a.known[id] = found
}

// Accounts returns the accounts of an image; see node.AccountReader. It returns ErrBadCommand for an image with which
// no container can start.
func (r *execs) Accounts(ctx context.Context, image string) (node.Accounts, error) {
	e := r.engine
	info, err := e.api.ImageInspect(ctx, canonical(image))
	if err != nil {
		if cerrdefs.IsNotFound(err) {
			err = fmt.Errorf("%w: %w", node.ErrImageUnavailable, err)
		}
		return node.Accounts{}, fmt.Errorf("read the accounts of image %s: %w", image, err)
	}
	if found, ok := e.accounts.get(info.ID); ok {
		return found, nil
	}
	select {
	case e.accounts.turn <- struct{}{}:
		defer func() { <-e.accounts.turn }()
	case <-ctx.Done():
		return node.Accounts{}, context.Cause(ctx)
	}
	if found, ok := e.accounts.get(info.ID); ok { // another call was faster
		return found, nil
	}
	found, err := e.accounts.read(ctx, info.ID)
	if err != nil {
		return node.Accounts{}, fmt.Errorf("read the accounts of image %s: %w", image, err)
	}
	e.accounts.put(info.ID, found)
	return found, nil
}

// read reads the accounts of an image by a container of its own.
func (a *accounts) read(ctx context.Context, id string) (found node.Accounts, err error) {
	a.removeLeft(ctx)
	made, err := a.api.ContainerCreate(ctx,
		&container.Config{Image: id, Entrypoint: []string{"-"}, Labels: map[string]string{accountsLabel: "1"}},
		&container.HostConfig{NetworkMode: network.NetworkNone}, nil, nil, "berth-accounts-"+rand.Text())
	if err != nil {
		return found, err
	}
	defer func() {
		// Also after ctx: a leftover would keep the image from being removed.
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
		defer cancel()
		err = errors.Join(err, a.remove(last, made.ID))
	}()
	for _, path := range []string{"/etc/passwd", "/etc/group"} {
		if err := a.readable(ctx, made.ID, path); err != nil {
			return found, err
		}
	}
	if found.Passwd, err = a.file(ctx, made.ID, "/etc/passwd"); err == nil {
		found.Group, err = a.file(ctx, made.ID, "/etc/group")
	}
	return found, err
}

// readable refuses a pipe or a device at the path of accounts, also behind a link. The engine itself reads the file of
// the image at each start, without a limit of time: it would wait for a writer without end, and each list of
// containers for this start.
func (a *accounts) readable(ctx context.Context, id, path string) error {
	w := &walk{api: a.api, id: id}
	at, err := w.ask(ctx, path)
	if err == nil && at.Mode&fs.ModeSymlink != 0 { // the engine has followed all links of the target
		at, err = w.ask(ctx, at.LinkTarget)
	}
	if err != nil {
		return fmt.Errorf("look at %s: %w", path, err)
	}
	if at.Name != "" && !at.Mode.IsRegular() && !at.Mode.IsDir() {
		return fmt.Errorf("%s of the image is neither a file nor a folder: %w", path, node.ErrBadCommand)
	}
	return nil
}

// remove removes a container from which accounts were read.
func (a *accounts) remove(ctx context.Context, id string) error {
	err := a.api.ContainerRemove(ctx, id, container.RemoveOptions{Force: true, RemoveVolumes: true})
	if err != nil && !cerrdefs.IsNotFound(err) {
		return fmt.Errorf("remove container %s: %w", id, err)
	}
	return nil
}

// removeLeft removes containers that killed processes have left. A failure delays the removal until the
// next image.
func (a *accounts) removeLeft(ctx context.Context) {
	left, err := a.api.ContainerList(ctx, container.ListOptions{
		All: true, Filters: filters.NewArgs(filters.Arg("label", accountsLabel)),
	})
	for _, c := range left {
		if err == nil && time.Since(time.Unix(c.Created, 0)) > accountsLeft {
			err = a.remove(ctx, c.ID)
		}
	}
	if err != nil {
		a.log.WarnContext(ctx, "leftover containers not removed, will retry", "err", err)
	}
}

// file returns a file of a container, or nothing for a path that is absent, no regular file or larger than
// node.MaxAccounts.
func (a *accounts) file(ctx context.Context, id, path string) ([]byte, error) {
	in, _, err := a.api.CopyFromContainer(ctx, id, path)
	if err != nil {
		if cerrdefs.IsNotFound(err) || leadsNowhere(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	defer in.Close()
	files := tar.NewReader(in)
	h, err := files.Next()
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if h.Typeflag != tar.TypeReg || h.Size > node.MaxAccounts {
		return nil, nil
	}
	content, err := io.ReadAll(files)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return content, nil
}
