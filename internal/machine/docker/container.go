package docker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/system"
	"golang.org/x/sync/errgroup"

	"berth/activities/node"
)

// Create makes the container under the security defaults. An image that is not
// on the machine is unavailable, not missing: EnsureImage may bring it back.
func (e *Engine) Create(ctx context.Context, spec node.ContainerSpec) (node.Container, error) {
	if err := spec.Validate(); err != nil {
		return node.Container{}, err
	}
	info, err := e.facts(ctx, spec)
	if err != nil {
		return node.Container{}, fmt.Errorf("create container %s: %w", spec.Name, err)
	}
	image, accounts, err := e.accounts.describe(ctx, spec.Image, e.bounds)
	if err == nil {
		err = checkImage(spec, image, accounts)
	}
	if err != nil {
		return e.createFailed(ctx, spec.Name, err) // the container may exist, and its image be gone
	}
	net := spec.Network
	if net == "" {
		net, err = e.defaultNetwork(ctx)
	}
	if err != nil {
		return node.Container{}, fmt.Errorf("create container %s: %w", spec.Name, err)
	}
	requests, visible := deviceRequests(info, spec.GPUs)
	config, host := containerConfig(spec, visible), e.hostConfig(spec, info, net, requests)
	bounded, cancel := context.WithTimeout(ctx, e.bounds.create) // without the time of waiting for another image
	defer cancel()
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		made, err := e.api.ContainerCreate(bounded, config, host, nil, nil, spec.Name)
		if err == nil {
			e.warn(ctx, spec.Name, made.Warnings)
			return node.Container{ID: made.ID, Name: spec.Name, Labels: spec.Labels, State: node.ContainerCreated}, nil
		}
		c, err := e.createFailed(ctx, spec.Name, err)
		if !errors.Is(err, errNameTaken) {
			return c, err
		}
		if err := pause(bounded, wait); err != nil {
			return node.Container{}, fmt.Errorf("create container %s: %w", spec.Name, err)
		}
	}
}

// facts returns the engine's facts on which a container depends. The engine runs two
// programs to answer. So for containers without GPUs, which need only the number of
// cores, the last answer is used.
func (e *Engine) facts(ctx context.Context, spec node.ContainerSpec) (system.Info, error) {
	if n := e.cores.Load(); n > 0 && len(spec.GPUs) == 0 {
		return system.Info{NCPU: int(n)}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, e.bounds.call)
	defer cancel()
	info, err := e.api.Info(ctx)
	if err == nil {
		e.cores.Store(int64(info.NCPU))
	}
	return info, err
}

// errNameTaken reports that the engine has assigned the name to a container that is
// not visible yet, or is no longer visible.
var errNameTaken = errors.New("name is taken")

// createFailed looks whether the container exists in spite of the error: the
// engine checks the name last, after the image for one, and a reply may be lost
// after the work was done.
func (e *Engine) createFailed(ctx context.Context, name string, cause error) (node.Container, error) {
	found, err := e.Inspect(ctx, name)
	switch {
	case err == nil:
		return found, fmt.Errorf("create container %s: %w", name, node.ErrExists)
	case cerrdefs.IsConflict(cause) && errors.Is(err, node.ErrNoContainer):
		return node.Container{}, fmt.Errorf("create container %s: %w: %w", name, errNameTaken, cause)
	case cerrdefs.IsNotFound(cause):
		cause = fmt.Errorf("%w: %w", node.ErrImageUnavailable, cause)
	}
	return node.Container{}, fmt.Errorf("create container %s: %w", name, classifyStart(cause))
}

// warn logs each of the engine's warnings once.
func (e *Engine) warn(ctx context.Context, name string, warnings []string) {
	for _, w := range warnings {
		if _, again := e.warned.LoadOrStore(w, true); !again {
			e.log.WarnContext(ctx, "container engine warning", "container", name, "warning", w)
		}
	}
}

// Start starts a container that was never started. The engine itself would run
// an exited one again, so one caller at a time looks first.
func (e *Engine) Start(ctx context.Context, name string) error {
	unlock := e.starts.lock(name)
	defer unlock()
	c, err := e.Inspect(ctx, name)
	if err != nil {
		return err
	}
	if c.State != node.ContainerCreated {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, e.bounds.start)
	defer cancel()
	err = e.api.ContainerStart(bounded, c.ID, container.StartOptions{})
	if err == nil {
		return nil
	}
	if gone := absent(name, err); gone != nil {
		return gone
	}
	return fmt.Errorf("start container %s: %w", name, classifyStart(err))
}

// Inspect returns the container's present state.
func (e *Engine) Inspect(ctx context.Context, name string) (node.Container, error) {
	ctx, cancel := context.WithTimeout(ctx, e.bounds.call)
	defer cancel()
	return e.inspect(ctx, name, name)
}

// inspect inspects a container by id and accepts the answer only for this name: the engine
// resolves prefixes of ids too, and a name may look like one.
func (e *Engine) inspect(ctx context.Context, id, name string) (node.Container, error) {
	c, err := e.api.ContainerInspect(ctx, id)
	if err != nil {
		if gone := absent(name, err); gone != nil {
			return node.Container{}, gone
		}
		return node.Container{}, fmt.Errorf("inspect container %s: %w", name, err)
	}
	if c.Name != "/"+name {
		return node.Container{}, fmt.Errorf("container %s: %w", name, node.ErrNoContainer)
	}
	return describe(c), nil
}

// List returns the containers with every given label. One that disappears
// meanwhile is left out.
func (e *Engine) List(ctx context.Context, labels map[string]string) ([]node.Container, error) {
	return e.list(ctx, labels, filters.NewArgs())
}

// Unstarted lists containers by the engine's own status, which stays "created"
// after a start that failed.
func (e *Engine) Unstarted(ctx context.Context, labels map[string]string) ([]node.Container, error) {
	found, err := e.list(ctx, labels, filters.NewArgs(filters.Arg("status", container.StateCreated)))
	return slices.DeleteFunc(found, func(c node.Container) bool { return c.State != node.ContainerCreated }), err
}

// listAbreast is the number of containers that list inspects at a time.
const listAbreast = 8

// list inspects the containers that the engine's filters and the labels select. The engine takes the lock of a
// container to inspect it, and a start that hangs holds this lock without end; the list itself takes no such lock. So
// the state of each container is asked for within bounds.look, and all states within twice that time. A
// container without an answer is unknown, and logged. An engine that gives no list, or ends meanwhile, is an error.
func (e *Engine) list(ctx context.Context, labels map[string]string, want filters.Args) ([]node.Container, error) {
	for k, v := range labels {
		want.Add("label", k+"="+v)
	}
	listing, cancel := context.WithTimeout(ctx, e.bounds.call)
	defer cancel()
	found, err := e.api.ContainerList(listing, container.ListOptions{All: true, Filters: want})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	found = slices.DeleteFunc(found, func(c container.Summary) bool { return len(c.Names) == 0 })
	all, why := make([]node.Container, len(found)), make([]error, len(found))
	bounded, end := context.WithTimeout(ctx, 2*e.bounds.look)
	defer end()
	looks, looking := errgroup.WithContext(bounded)
	looks.SetLimit(listAbreast)
	for i, summary := range found {
		looks.Go(func() (err error) {
			all[i], why[i], err = look(looking, e, summary)
			return err
		})
	}
	if err := looks.Wait(); err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	if err := ctx.Err(); err != nil { // the caller's time is over, which says nothing about the containers
		return nil, fmt.Errorf("list containers: %w", err)
	}
	if names, first := e.unanswered.note(found, all, why); len(names) > 0 {
		e.log.WarnContext(ctx, "container engine does not give the state of containers", "count", len(names),
			"containers", names[:min(len(names), shownNames)], "err", first)
	}
	return slices.DeleteFunc(all, func(c node.Container) bool { return c.ID == "" }), nil
}

// probeContainers is how many containers a probe asks for at most.
const probeContainers = 8

// Probe lists networks and containers. Up to Docker 20.10 the ends of containers can
// leave the lock of all networks taken for good (github.com/moby/moby/pull/42545);
// the engine then still answers pings. Containers are not inspected: that waits for
// the lock of one container, which a single slow start holds.
func (e *Engine) Probe(ctx context.Context, labels map[string]string) error {
	want := filters.NewArgs()
	for k, v := range labels {
		want.Add("label", k+"="+v)
	}
	if _, err := e.api.NetworkList(ctx, network.ListOptions{Filters: want}); err != nil {
		return fmt.Errorf("probe container engine: list networks: %w", err)
	}
	_, err := e.api.ContainerList(ctx, container.ListOptions{All: true, Limit: probeContainers, Filters: want})
	if err != nil {
		return fmt.Errorf("probe container engine: list containers: %w", err)
	}
	return nil
}

// Signal sends a signal to a running container; one that does not run takes
// none.
func (e *Engine) Signal(ctx context.Context, name, signal string) error {
	c, err := e.Inspect(ctx, name)
	if err != nil {
		return err
	}
	return e.kill(ctx, c, signal)
}

// kill sends a signal to a running container. A container that has ended is no error.
func (e *Engine) kill(ctx context.Context, c node.Container, signal string) error {
	if c.State != node.ContainerRunning {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := e.api.ContainerKill(ctx, c.ID, signal)
	switch {
	case err == nil, cerrdefs.IsConflict(err): // 409: it is no longer running
		return nil
	case absent(c.Name, err) != nil:
		return absent(c.Name, err)
	default:
		return fmt.Errorf("send %s to container %s: %w", signal, c.Name, err)
	}
}

// Stop sends SIGTERM, waits for grace, sends SIGKILL, and returns once the
// container has exited. It does not use the engine's own stop, which counts in
// whole seconds. A container that was never started needs no stopping, and one
// that is removed meanwhile has stopped.
func (e *Engine) Stop(ctx context.Context, name string, grace time.Duration) error {
	c, err := e.Inspect(ctx, name)
	if err != nil || c.State != node.ContainerRunning {
		return err
	}
	if err := e.kill(ctx, c, "SIGTERM"); err != nil {
		return stopped(err)
	}
	patience, cancel := context.WithTimeout(ctx, grace)
	_, err = e.Wait(patience, name)
	cancel()
	if err == nil || patience.Err() == nil || ctx.Err() != nil {
		return stopped(err)
	}
	if err := e.kill(ctx, c, "SIGKILL"); err != nil {
		return stopped(err)
	}
	_, err = e.Wait(ctx, name)
	return stopped(err)
}

// stopped turns the error for an absent container into success: the container surely does not
// run.
func stopped(err error) error {
	if errors.Is(err, node.ErrNoContainer) {
		return nil
	}
	return err
}

// Remove deletes the container with its anonymous volumes, which are the
// image's idea and would fill the disk.
func (e *Engine) Remove(ctx context.Context, name string) error {
	c, err := e.Inspect(ctx, name)
	for wait := 10 * time.Millisecond; err == nil; wait = min(2*wait, time.Second) {
		err = e.api.ContainerRemove(ctx, c.ID, container.RemoveOptions{Force: true, RemoveVolumes: true})
		switch {
		case err == nil, cerrdefs.IsNotFound(err):
			return nil
		case !cerrdefs.IsConflict(err):
			return fmt.Errorf("remove container %s: %w", name, err)
		}
		// 409: another caller's removal is under way, and may yet fail.
		if err = pause(ctx, wait); err != nil {
			return fmt.Errorf("remove container %s: %w", name, err)
		}
		_, err = e.inspect(ctx, c.ID, name)
	}
	if errors.Is(err, node.ErrNoContainer) {
		return nil
	}
	return err
}

// describe translates the engine's word on a container.
func describe(c container.InspectResponse) node.Container {
	d := node.Container{ID: c.ID, Name: c.Name[1:], Labels: c.Config.Labels}
	s := c.State
	d.StartedAt, d.FinishedAt = stamp(s.StartedAt), stamp(s.FinishedAt)
	switch s.Status {
	case container.StateCreated:
		d.State = node.ContainerCreated
		d.FinishedAt = time.Time{}
	case container.StateRunning, container.StatePaused, container.StateRestarting:
		d.State = node.ContainerRunning
		d.PID = s.Pid
		d.Address, d.Subnet = addressOf(c)
		d.FinishedAt = time.Time{}
	default: // exited, removing, dead
		d.State = node.ContainerExited
	}
	if d.State == node.ContainerExited {
		d.ExitCode = s.ExitCode
		// The engine stamps the start when it learns of it, which for a very short
		// run is after the end. Callers should not see negative durations.
		if d.FinishedAt.Before(d.StartedAt) {
			d.FinishedAt = d.StartedAt
		}
	}
	d.OOMKilled = s.OOMKilled
	d.Error = s.Error
	return d
}

// addressOf returns the address of a container on the first of its networks, and the range of that network. A length of
// the range that the engine does not report, or that no network has, leaves the range invalid.
func addressOf(c container.InspectResponse) (address string, subnet netip.Prefix) {
	if c.NetworkSettings == nil {
		return "", subnet
	}
	for _, name := range slices.Sorted(maps.Keys(c.NetworkSettings.Networks)) {
		if n := c.NetworkSettings.Networks[name]; n != nil && n.IPAddress != "" {
			at, err := netip.ParseAddr(n.IPAddress)
			if err == nil && n.IPPrefixLen > 0 {
				subnet, _ = at.Prefix(n.IPPrefixLen)
			}
			return n.IPAddress, subnet
		}
	}
	return "", subnet
}

// stamp parses the engine's time. The engine writes year 1 for "never", which stamp returns as
// the zero time.
func stamp(s string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil || t.Year() < 1970 {
		return time.Time{}
	}
	return t.UTC()
}

// absent translates the engine's 404, and returns nil for other errors.
func absent(name string, err error) error {
	if cerrdefs.IsNotFound(err) {
		return fmt.Errorf("container %s: %w", name, node.ErrNoContainer)
	}
	return nil
}

// pause waits for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
