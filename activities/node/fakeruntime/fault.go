package fakeruntime

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"sync"

	"berth/activities/node"
)

// Call describes a call of a node.Runtime method to a hook.
type Call struct {
	Method  string              // Create, Start, Wait, …
	Subject string              // the container's name, or the image's for calls about images
	Spec    *node.ContainerSpec // of Create
}

// Faults are the faults that a test injects into an engine: refused or slow calls, missing
// images, and failing starts. They may be changed while the engine is in use.
type Faults struct {
	lagging sync.WaitGroup // one for each call that is being delayed

	mu        sync.Mutex
	intercept func(Call) error
	lag       func(Call)
	silent    map[string]bool  // containers without an answer, by name
	images    map[string]error // answers of EnsureImage, by reference
	absent    map[string]bool  // images that the engine must pull, by reference
	guard     func(ref, digest string, auth *node.RegistryAuth) error
	sizes     map[string]int64 // bytes, by reference
	starts    map[string]error // answers of Start, by container name
	pulls     map[string]int   // percent of pulls under way, by reference
	layers    map[string]layer // answers of LayerUse, by container name
	data      string           // folder that Info names
}

func newFaults() *Faults {
	return &Faults{images: map[string]error{}, absent: map[string]bool{}, sizes: map[string]int64{},
		silent: map[string]bool{}, starts: map[string]error{},
		pulls: map[string]int{}, layers: map[string]layer{}}
}

// Intercept makes every call run hook first, in the caller's goroutine. An error of hook is
// the call's answer, and the engine does nothing. This simulates an engine that is down,
// slow (a hook may block) or refuses. nil removes the hook.
func (f *Faults) Intercept(hook func(Call) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.intercept = hook
}

// Lag makes the engine run hook before each Create, Start, EnsureNetwork and Probe. A hook
// that blocks makes the engine slow as Docker is: a caller whose context ends gets its
// error at once, and the engine still carries out the call. nil removes the hook.
func (f *Faults) Lag(hook func(Call)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lag = hook
}

// CatchUp waits until the engine has carried out all delayed calls.
func (f *Faults) CatchUp() { f.lagging.Wait() }

// slowly carries out a call after the lag, even if its caller has given up by then.
func slowly[T any](ctx context.Context, f *Faults, call Call, do func() (T, error)) (T, error) {
	f.mu.Lock()
	lag := f.lag
	f.mu.Unlock()
	if lag == nil {
		return do()
	}
	type answer struct {
		v   T
		err error
	}
	answered := make(chan answer, 1) // buffered: its reader may be gone
	f.lagging.Go(func() {
		lag(call)
		v, err := do()
		answered <- answer{v, err}
	})
	select {
	case a := <-answered:
		return a.v, a.err
	case <-ctx.Done():
		var none T
		return none, fmt.Errorf("%s %s: %w", call.Method, call.Subject, ctx.Err())
	}
}

// FailImage makes EnsureImage of ref return err, which should wrap node.ErrImageNotFound or
// node.ErrImageUnavailable; nil removes the fault.
func (f *Faults) FailImage(ref string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	set(f.images, ref, err)
}

// Silence makes the engine give no answer about one container: calls for it end as after their bound, and List gives
// its state as unknown. The container itself goes on. on = false ends this.
func (f *Faults) Silence(name string, on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.silent[name] = on
}

// isSilent reports whether the engine gives no answer about a container.
func (f *Faults) isSilent(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.silent[name]
}

// seen returns the entry of a container in a list.
func (f *Faults) seen(c node.Container) node.Container {
	if f.isSilent(c.Name) {
		return node.Container{ID: c.ID, Name: c.Name, Labels: c.Labels, State: node.ContainerUnknown}
	}
	return c
}

// GuardImages makes CheckImage return the answers of guard; nil removes the guard.
func (f *Faults) GuardImages(guard func(ref, digest string, auth *node.RegistryAuth) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.guard = guard
}

func (f *Faults) imageGuard() func(ref, digest string, auth *node.RegistryAuth) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.guard
}

// SizeImage sets the size of an image; the default is 1 MiB.
func (f *Faults) SizeImage(ref string, bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sizes[ref] = bytes
}

// Pulled makes PullPercent of ref report a share.
func (f *Faults) Pulled(ref string, percent int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pulls[ref] = percent
}

// PullPercent returns the share set by Pulled.
func (f *Faults) PullPercent(ref string) (percent int, known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	percent, known = f.pulls[ref]
	return percent, known
}

// FailStart makes Start of the named container return err, for example node.ErrBadCommand
// or node.ErrDevice, also for a container created later; nil removes the fault. The
// container stays created and carries the error's text.
func (f *Faults) FailStart(name string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	set(f.starts, name, err)
}

// OOM kills the named container as the kernel does at the memory limit: exit
// 137 with OOMKilled. It reports whether the container was running.
func (f *Fake) OOM(name string) bool {
	c, err := f.find(name)
	if err != nil || c.snapshot().State != node.ContainerRunning {
		return false
	}
	c.outOfMemory(nil)
	return true
}

// Exit makes the named container exit now with code, and reports whether the container was
// running.
func (f *Fake) Exit(name string, code int) bool {
	c, err := f.find(name)
	return err == nil && c.end(code)
}

// Vanish removes the named container with its log at once, running or hung, as an operator
// with access to the engine could. Waiters get node.ErrNoContainer.
func (f *Fake) Vanish(name string) {
	c, err := f.find(name)
	if err != nil {
		return
	}
	f.forget(c)
	c.hang(false)
	c.end(137)
}

// Hang makes the named container ignore every signal, SIGKILL too, as a process stuck in
// the kernel does; false ends that.
func (f *Fake) Hang(name string, on bool) {
	if c, err := f.find(name); err == nil {
		c.hang(on)
	}
}

// Reboot ends every running container with code and keeps all containers as exited, as an
// engine does over a restart of the engine or the machine: 255 after a crash, 143 or 137
// after an orderly shutdown.
func (f *Fake) Reboot(code int) {
	f.mu.Lock()
	var running []*container
	for _, c := range f.containers {
		c.hang(false)
		if c.end(code) {
			running = append(running, c)
		}
	}
	f.mu.Unlock()
	// Wait without the lock, so that other calls are not held up.
	for _, c := range running {
		<-c.exited
	}
}

// allow returns the error of an ended context, of the hook, or of a silent container.
func (f *Faults) allow(ctx context.Context, call Call) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s %s: %w", call.Method, call.Subject, err)
	}
	f.mu.Lock()
	hook := f.intercept
	f.mu.Unlock()
	if hook != nil {
		if err := hook(call); err != nil {
			return err
		}
	}
	if f.isSilent(call.Subject) {
		return fmt.Errorf("%s %s: %w", call.Method, call.Subject, context.DeadlineExceeded)
	}
	return nil
}

// imageError returns the injected fault of an image, or nil.
func (f *Faults) imageError(ref string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.images[ref]
}

// imageBytes returns the size of an image.
func (f *Faults) imageBytes(ref string) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if bytes, ok := f.sizes[ref]; ok {
		return bytes
	}
	return 1 << 20
}

// startError returns the injected fault of a container's start, or nil.
func (f *Faults) startError(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.starts[name]
}

// imageDigest returns the digest in a reference, or derives one from the name, so that equal
// names have equal digests.
func imageDigest(ref string) string {
	if _, digest, pinned := strings.Cut(ref, "@"); pinned {
		return digest
	}
	return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(ref)))
}

// set stores a fault, or removes the fault for a nil error.
func set(faults map[string]error, key string, err error) {
	if err == nil {
		delete(faults, key)
		return
	}
	faults[key] = err
}
