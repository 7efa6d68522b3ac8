package fakeruntime

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"berth/activities/node"
	"berth/activities/node/runtimetest/prog"
)

// Options describe the simulated machine. The zero value is a machine of 64 cores, 256 GiB
// of memory and 1 TiB of disk.
type Options struct {
	CPUMilli  int64
	MemoryMiB int64
	DiskMiB   int64
	// MaxLogLines bounds the stored output of each container; older lines are dropped, as
	// by a rotating log. 0: 10,000.
	MaxLogLines int
	// Networks are the networks created by an operator, outside of the Runtime.
	Networks map[string]bool
	// Program runs in every container; nil is the test program.
	Program func(ctx context.Context, p *prog.Process) int
}

// Fake is a container engine in memory. It may be used concurrently.
type Fake struct {
	*Faults
	*execs
	*hosts
	options  Options
	engineID string
	programs sync.WaitGroup // one for each running container

	mu         sync.Mutex
	containers map[string]*container
	created    int // containers ever created; numbers their ids and pids
	networks   map[string]node.Network
}

var _ node.Runtime = (*Fake)(nil)

// New returns an engine without containers, on which every image exists, except after Absent and
// RemoveImage, and holds the test program.
func New(o Options) *Fake {
	if o.CPUMilli == 0 {
		o.CPUMilli = 64_000
	}
	if o.MemoryMiB == 0 {
		o.MemoryMiB = 256 << 10
	}
	if o.DiskMiB == 0 {
		o.DiskMiB = 1 << 20
	}
	if o.MaxLogLines == 0 {
		o.MaxLogLines = 10_000
	}
	if o.Program == nil {
		o.Program = prog.Run
	}
	f := &Fake{
		Faults:     newFaults(),
		options:    o,
		engineID:   "fake-" + rand.Text(),
		containers: make(map[string]*container),
		networks:   make(map[string]node.Network),
	}
	f.execs, f.hosts = &execs{f}, &hosts{fake: f, facts: modern()}
	return f
}

// Info returns the machine of the Options.
func (f *Fake) Info(ctx context.Context) (node.RuntimeInfo, error) {
	if err := f.allow(ctx, Call{Method: "Info"}); err != nil {
		return node.RuntimeInfo{}, err
	}
	return node.RuntimeInfo{
		Name:        "fake",
		Version:     "1",
		CPUMilli:    f.options.CPUMilli,
		MemoryMiB:   f.options.MemoryMiB,
		DiskMiB:     f.options.DiskMiB,
		LiveRestore: true, // the engine lives as long as its containers
		EngineID:    f.engineID,
		DataRoot:    f.root(),
	}, nil
}

// EnsureImage succeeds for every image without a fault of FailImage. A fresh pull asks the guard of GuardImages.
func (f *Fake) EnsureImage(ctx context.Context, ref string, auth *node.RegistryAuth, fresh bool) (node.Image, error) {
	if err := f.allow(ctx, Call{Method: "EnsureImage", Subject: ref}); err != nil {
		return node.Image{}, err
	}
	if err := f.imageError(ref); err != nil {
		return node.Image{}, fmt.Errorf("ensure image %s: %w", ref, err)
	}
	if guard := f.imageGuard(); fresh && guard != nil {
		if err := guard(ref, imageDigest(ref), auth); err != nil {
			return node.Image{}, err
		}
	}
	found := node.Image{Digest: imageDigest(ref), Pulled: f.fetch(ref) || fresh}
	if found.Pulled {
		found.ID = imageDigest(ref)
	}
	return found, nil
}

// CheckImage allows every login, unless GuardImages has set a guard, or FailImage a fault of the image.
func (f *Fake) CheckImage(ctx context.Context, ref, digest string, auth *node.RegistryAuth) error {
	if err := f.allow(ctx, Call{Method: "CheckImage", Subject: ref}); err != nil {
		return err
	}
	if err := f.imageError(ref); err != nil {
		return fmt.Errorf("check image %s: %w", ref, err)
	}
	if guard := f.imageGuard(); guard != nil {
		return guard(ref, digest, auth)
	}
	return nil
}

// ImageBytes returns the size set by SizeImage, or ErrNoImage for an image that is not here.
func (f *Fake) ImageBytes(ctx context.Context, ref string) (int64, error) {
	if err := f.allow(ctx, Call{Method: "ImageBytes", Subject: ref}); err != nil {
		return 0, err
	}
	if !f.here(ref) {
		return 0, fmt.Errorf("image %s: %w", ref, node.ErrNoImage)
	}
	return f.imageBytes(ref), nil
}

// Create creates a container of any image that is here.
func (f *Fake) Create(ctx context.Context, spec node.ContainerSpec) (node.Container, error) {
	if err := f.allow(ctx, Call{Method: "Create", Subject: spec.Name, Spec: &spec}); err != nil {
		return node.Container{}, err
	}
	if err := spec.Validate(); err != nil {
		return node.Container{}, err
	}
	return slowly(ctx, f.Faults, Call{Method: "Create", Subject: spec.Name, Spec: &spec},
		func() (node.Container, error) { return f.create(spec) })
}

// create carries out Create, after the lag.
func (f *Fake) create(spec node.ContainerSpec) (node.Container, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c, ok := f.containers[spec.Name]; ok {
		return c.snapshot(), fmt.Errorf("create container %s: %w", spec.Name, node.ErrExists)
	}
	if !f.here(spec.Image) {
		return node.Container{}, fmt.Errorf("create container %s: no local image %s: %w", spec.Name, spec.Image,
			node.ErrImageUnavailable)
	}
	if !f.known(spec.Network) {
		return node.Container{}, fmt.Errorf("create container %s: no such network %s", spec.Name, spec.Network)
	}
	f.created++
	c := newContainer(spec, f.created, f.options.MaxLogLines)
	f.containers[spec.Name] = c
	return c.snapshot(), nil
}

// Start runs the command of a container that was never started.
func (f *Fake) Start(ctx context.Context, name string) error {
	if err := f.allow(ctx, Call{Method: "Start", Subject: name}); err != nil {
		return err
	}
	c, err := f.find(name)
	if err != nil {
		return err
	}
	// Read before the lag: a fault set meanwhile applies to the next start.
	fault := f.startError(name)
	_, err = slowly(ctx, f.Faults, Call{Method: "Start", Subject: name}, func() (struct{}, error) {
		return struct{}{}, c.start(&f.programs, f.options.Program, fault)
	})
	return err
}

// Wait blocks until the container has exited.
func (f *Fake) Wait(ctx context.Context, name string) (node.Container, error) {
	if err := f.allow(ctx, Call{Method: "Wait", Subject: name}); err != nil {
		return node.Container{}, err
	}
	c, err := f.find(name)
	if err != nil {
		return node.Container{}, err
	}
	select {
	case <-c.exited:
		return c.snapshot(), nil
	case <-c.removed:
		return node.Container{}, noContainer(name)
	case <-ctx.Done():
		return node.Container{}, fmt.Errorf("wait for container %s: %w", name, ctx.Err())
	}
}

// Inspect returns the container's present state.
func (f *Fake) Inspect(ctx context.Context, name string) (node.Container, error) {
	if err := f.allow(ctx, Call{Method: "Inspect", Subject: name}); err != nil {
		return node.Container{}, err
	}
	c, err := f.find(name)
	if err != nil {
		return node.Container{}, err
	}
	return c.snapshot(), nil
}

// List returns the containers with every given label, by name. The state of a silent one is unknown.
func (f *Fake) List(ctx context.Context, labels map[string]string) ([]node.Container, error) {
	if err := f.allow(ctx, Call{Method: "List"}); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var found []node.Container
	for _, c := range f.containers {
		if c.hasLabels(labels) {
			found = append(found, f.seen(c.snapshot()))
		}
	}
	slices.SortFunc(found, func(a, b node.Container) int { return strings.Compare(a.Name, b.Name) })
	return found, nil
}

// Unstarted returns the containers with every given label that were never
// started, by name.
func (f *Fake) Unstarted(ctx context.Context, labels map[string]string) ([]node.Container, error) {
	if err := f.allow(ctx, Call{Method: "Unstarted"}); err != nil {
		return nil, err
	}
	all, err := f.List(ctx, labels)
	return slices.DeleteFunc(all, func(c node.Container) bool { return c.State != node.ContainerCreated }), err
}

// Probe succeeds, unless a hook refuses the call.
func (f *Fake) Probe(ctx context.Context, _ map[string]string) error {
	if err := f.allow(ctx, Call{Method: "Probe"}); err != nil {
		return err
	}
	_, err := slowly(ctx, f.Faults, Call{Method: "Probe"}, func() (struct{}, error) { return struct{}{}, nil })
	return err
}

// Signal sends a signal; a container that does not run takes none.
func (f *Fake) Signal(ctx context.Context, name, signal string) error {
	if err := f.allow(ctx, Call{Method: "Signal", Subject: name}); err != nil {
		return err
	}
	c, err := f.find(name)
	if err != nil {
		return err
	}
	c.signal(signal)
	return nil
}

// Stop sends SIGTERM, then SIGKILL after grace, and waits for the exit. It
// returns at once for a container that was never started.
func (f *Fake) Stop(ctx context.Context, name string, grace time.Duration) error {
	if err := f.allow(ctx, Call{Method: "Stop", Subject: name}); err != nil {
		return err
	}
	c, err := f.find(name)
	if err != nil {
		return err
	}
	if c.snapshot().State == node.ContainerCreated {
		return nil
	}
	c.signal("SIGTERM")
	timer := time.NewTimer(grace)
	defer timer.Stop()
	for {
		select {
		case <-c.exited:
			return nil
		case <-c.removed:
			return nil
		case <-timer.C:
			c.signal("SIGKILL")
		case <-ctx.Done():
			return fmt.Errorf("stop container %s: %w", name, ctx.Err())
		}
	}
}

// Logs delivers the container's lines; see node.Runtime.
func (f *Fake) Logs(ctx context.Context, name string, since time.Time, follow bool,
	emit func(node.LogLine) error) error {
	if err := f.allow(ctx, Call{Method: "Logs", Subject: name}); err != nil {
		return err
	}
	c, err := f.find(name)
	if err != nil {
		return err
	}
	if !follow {
		return c.log.read(ctx, since, nil, emit)
	}
	if err := c.log.read(ctx, since, c.removed, emit); err != nil {
		return err
	}
	// The log is closed shortly before exited is, and stays open if the container is
	// removed.
	select {
	case <-c.exited:
	case <-c.removed:
	case <-ctx.Done():
		return ctx.Err()
	}
	if c.snapshot().State != node.ContainerExited {
		return noContainer(name)
	}
	return nil
}

// Remove kills a running container, and deletes the container with its log. Removal of a
// hung container blocks until ctx ends, as on a real engine.
func (f *Fake) Remove(ctx context.Context, name string) error {
	if err := f.allow(ctx, Call{Method: "Remove", Subject: name}); err != nil {
		return err
	}
	c, err := f.find(name)
	if err != nil {
		return nil
	}
	c.signal("SIGKILL")
	if c.snapshot().State != node.ContainerCreated {
		select {
		case <-c.exited:
		case <-ctx.Done():
			return fmt.Errorf("remove container %s: %w", name, ctx.Err())
		}
	}
	f.forget(c)
	return nil
}

// Close does nothing: containers outlive an agent's connection.
func (f *Fake) Close() error { return nil }

// Shutdown kills and removes every container, hung ones too, and returns when all
// goroutines of the engine have ended.
func (f *Fake) Shutdown() {
	f.mu.Lock()
	all := f.containers
	f.containers = make(map[string]*container)
	f.mu.Unlock()
	for _, c := range all {
		c.hang(false)
		c.end(137)
		c.remove()
	}
	f.lagging.Wait()
	f.programs.Wait()
}

// find returns the container of that name, or node.ErrNoContainer.
func (f *Fake) find(name string) (*container, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, ok := f.containers[name]
	if !ok {
		return nil, noContainer(name)
	}
	return c, nil
}

// forget removes c, unless its name belongs to another container by now.
func (f *Fake) forget(c *container) {
	f.mu.Lock()
	if f.containers[c.spec.Name] == c {
		delete(f.containers, c.spec.Name)
	}
	f.mu.Unlock()
	c.remove()
}

func noContainer(name string) error {
	return fmt.Errorf("container %s: %w", name, node.ErrNoContainer)
}
