package docker

import (
	"archive/tar"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
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
	turn chan struct{} // holds one token; taken while an image is read

	mu    sync.Mutex
	known map[string]node.Accounts // by the engine's id of the image, which is a hash of its content
}

const (
	// accountsLabel marks the containers from which accounts are read.
	accountsLabel = "berth.accounts"
	// mostAccounts bounds the cache; a full cache is emptied.
	mostAccounts = 256
	// accountsLeft is the age at which a container is a leftover: longer than a call of any agent of the machine takes.
	accountsLeft = 20 * time.Minute
)

func newAccounts(api *client.Client) *accounts {
	return &accounts{api: api, turn: make(chan struct{}, 1), known: map[string]node.Accounts{}}
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
	_, found, err := r.engine.accounts.describe(ctx, image, r.engine.bounds)
	return found, err
}

// describe returns the configuration and the accounts of an image.
func (a *accounts) describe(ctx context.Context, image string, most bounds) (imageConfig, node.Accounts, error) {
	asking, cancel := context.WithTimeout(ctx, most.call)
	defer cancel()
	info, err := a.api.ImageInspect(asking, canonical(image))
	if err != nil {
		if cerrdefs.IsNotFound(err) {
			err = fmt.Errorf("%w: %w", node.ErrImageUnavailable, err)
		}
		return imageConfig{}, node.Accounts{}, fmt.Errorf("read the accounts of image %s: %w", image, err)
	}
	c := configOf(info)
	if found, ok := a.get(info.ID); ok {
		return c, found, nil
	}
	select {
	case a.turn <- struct{}{}:
		defer func() { <-a.turn }()
	case <-ctx.Done():
		return c, node.Accounts{}, context.Cause(ctx)
	}
	if found, ok := a.get(info.ID); ok { // another call was faster
		return c, found, nil
	}
	found, err := a.read(ctx, most, info.ID, c)
	if err != nil {
		return c, node.Accounts{}, fmt.Errorf("read the accounts of image %s: %w", image, err)
	}
	found.Root = c.root()
	a.put(info.ID, found)
	return c, found, nil
}

// read reads the accounts of an image by a container of its own, within a bounded time. A container whose creation
// the engine did not answer may come later: SweepAccounts removes it.
func (a *accounts) read(ctx context.Context, most bounds, id string, c imageConfig) (found node.Accounts, err error) {
	// Some engines copy the whole image for a container.
	creating, cancel := context.WithTimeout(ctx, most.create)
	defer cancel()
	host := &container.HostConfig{NetworkMode: network.NetworkNone, Mounts: c.withoutCopies()}
	made, err := a.api.ContainerCreate(creating,
		&container.Config{Image: id, Entrypoint: []string{"-"}, Labels: map[string]string{accountsLabel: "1"}},
		host, nil, nil, "berth-accounts-"+rand.Text())
	if err != nil {
		return found, classifyStart(err)
	}
	defer func() {
		// Also after ctx: a leftover would keep the image from being removed.
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), most.call)
		defer cancel()
		err = errors.Join(err, a.remove(last, made.ID))
	}()
	reading, cancel := context.WithTimeout(ctx, most.accounts)
	defer cancel()
	for _, path := range []string{"/etc/passwd", "/etc/group"} {
		if err := a.readable(reading, made.ID, path); err != nil {
			return found, err
		}
	}
	if found.Passwd, err = a.file(reading, made.ID, "/etc/passwd"); err == nil {
		found.Group, err = a.file(reading, made.ID, "/etc/group")
	}
	if err == nil { // the engine answers for a container that was removed as for an absent file
		w := &walk{api: a.api, id: made.ID}
		_, err = w.ask(reading, "/")
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
	if err != nil && !cerrdefs.IsNotFound(err) && !cerrdefs.IsConflict(err) { // a removal is in progress
		return fmt.Errorf("remove container %s: %w", id, err)
	}
	return nil
}

// SweepAccounts removes the containers of calls that were cut off; see node.AccountReader.
func (r *execs) SweepAccounts(ctx context.Context) error {
	return r.engine.accounts.sweep(ctx, r.engine.bounds, accountsLeft)
}

// sweep removes containers of accounts that are older than an age and that further filters select.
func (a *accounts) sweep(ctx context.Context, most bounds, age time.Duration, further ...filters.KeyValuePair) error {
	listing, cancel := context.WithTimeout(ctx, most.call)
	defer cancel()
	left, err := a.api.ContainerList(listing, container.ListOptions{
		All: true, Filters: filters.NewArgs(append(further, filters.Arg("label", accountsLabel))...),
	})
	if err != nil {
		return fmt.Errorf("list containers of accounts: %w", err)
	}
	removing, cancel := context.WithTimeout(ctx, most.call)
	defer cancel()
	for _, c := range left {
		if time.Since(time.Unix(c.Created, 0)) > age {
			err = errors.Join(err, a.remove(removing, c.ID))
		}
	}
	return err
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
