package docker

import (
	"archive/tar"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
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
//
// The name of this container follows from the owner and the image. So a process finds the container that an earlier
// process of the same owner has left, and no container of another agent on the engine:
//
//	container                               a read of its image            the sweep
//	--------------------------------------  -----------------------------  -----------------------------
//	of this owner, being read now           waits for its turn             leaves it
//	of this owner, otherwise: a leftover    removes it and creates anew    removes it
//	of another owner                        has another name               removes it after accountsLeft
//
// A leftover would keep its image from being removed.
type accounts struct {
	api   *client.Client
	owner string        // value of accountsLabel
	turn  chan struct{} // holds one token; taken while an image is read

	mu    sync.Mutex
	inUse string                   // name of the container that is being created, read or removed; "": none
	known map[string]node.Accounts // by the engine's id of the image, which is a hash of its content
}

const (
	// accountsLabel marks the containers from which accounts are read. Its value is the owner.
	accountsLabel = "berth.accounts"
	// mostAccounts bounds the cache; a full cache is emptied.
	mostAccounts = 256
	// accountsLeft is the age at which a container of another owner is a leftover: longer than a call of any agent of
	// the machine takes.
	accountsLeft = 20 * time.Minute
)

func newAccounts(api *client.Client, owner string) *accounts {
	return &accounts{api: api, owner: digest(owner), turn: make(chan struct{}, 1), known: map[string]node.Accounts{}}
}

// digest returns a short text that follows from the parts and is allowed in names of containers.
func digest(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:12])
}

// name returns the name of the container from which the accounts of an image are read.
func (a *accounts) name(image string) string { return "berth-accounts-" + digest(a.owner, image) }

// use notes the name of the container in use, so that the sweep leaves it.
func (a *accounts) use(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.inUse = name
}

// uses reports whether a container is in use.
func (a *accounts) uses(c container.Summary) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.inUse != "" && slices.Contains(c.Names, "/"+a.inUse)
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
	name := a.name(id)
	a.use(name)
	defer a.use("")
	made, err := a.create(ctx, most, name, id, c)
	if err != nil {
		return found, classifyStart(err)
	}
	defer func() {
		// Also after ctx, so that less is left to the sweep.
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), most.call)
		defer cancel()
		err = errors.Join(err, a.remove(last, made))
	}()
	reading, cancel := context.WithTimeout(ctx, most.accounts)
	defer cancel()
	for _, path := range []string{"/etc/passwd", "/etc/group"} {
		if err := a.readable(reading, made, path); err != nil {
			return found, err
		}
	}
	if found.Passwd, err = a.file(reading, made, "/etc/passwd"); err == nil {
		found.Group, err = a.file(reading, made, "/etc/group")
	}
	if err == nil { // the engine answers for a container that was removed as for an absent file
		w := &walk{api: a.api, id: made}
		_, err = w.ask(reading, "/")
	}
	return found, err
}

// create creates the container of an image, and returns its id. It removes the leftover of an earlier try that has the
// name. A leftover that the engine does not remove in time must not keep the image from being read: then the container
// gets another name.
func (a *accounts) create(ctx context.Context, most bounds, name, id string, c imageConfig) (string, error) {
	// Some engines copy the whole image for a container.
	ctx, cancel := context.WithTimeout(ctx, most.create)
	defer cancel()
	removing, end := context.WithTimeout(ctx, most.look)
	defer end()
	host := &container.HostConfig{NetworkMode: network.NetworkNone, Mounts: c.withoutCopies()}
	config := &container.Config{Image: id, Entrypoint: []string{"-"}, Labels: map[string]string{accountsLabel: a.owner}}
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		made, err := a.api.ContainerCreate(ctx, config, host, nil, nil, name)
		if err == nil {
			return made.ID, nil
		}
		if !cerrdefs.IsConflict(err) || ctx.Err() != nil {
			return "", err
		}
		if errors.Join(a.remove(removing, name), pause(removing, wait)) != nil {
			name += "-" + rand.Text()
			a.use(name)
		}
	}
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

// sweep removes the leftovers of this owner, and containers of other owners that are older than an age, as far as
// further filters select them.
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
		// The list precedes the look at the use: a listed container that is not in use then has been read.
		own := c.Labels[accountsLabel] == a.owner
		if own && !a.uses(c) || !own && time.Since(time.Unix(c.Created, 0)) > age {
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
