package fakeruntime

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"

	"berth/activities/node"
)

// Call is one call of a node.Runtime method, as a hook sees it.
type Call struct {
	Method  string              // Create, Start, Wait, …
	Subject string              // the container's name, or the image's for EnsureImage and ImageBytes
	Spec    *node.ContainerSpec // of Create
}

// Faults are the faults that a test has asked an engine for: calls that it refuses or is
// slow with, images that it lacks, and starts that fail. They may be changed while the
// engine is in use.
type Faults struct {
	lagging sync.WaitGroup // one for each call that the engine is slow with

	mu        sync.Mutex
	intercept func(Call) error
	lag       func(Call)
	images    map[string]error
	sizes     map[string]int64
	starts    map[string]error
}

func newFaults() *Faults {
	return &Faults{images: map[string]error{}, sizes: map[string]int64{}, starts: map[string]error{}}
}

// Intercept has hook asked before every call, from the caller's goroutine; an
// error it returns is the call's answer and the engine does nothing. It stands
// for an engine that is down, slow (a hook may block) or refuses. nil ends it.
func (f *Faults) Intercept(hook func(Call) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.intercept = hook
}

// Lag has hook run in the engine before it carries out a Create, a Start, an
// EnsureNetwork or a Probe. A hook that blocks makes the engine slow as Docker is: a caller
// whose context ends gets its error at once, and the engine goes on with what it
// was asked. nil ends it.
func (f *Faults) Lag(hook func(Call)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lag = hook
}

// CatchUp waits until the engine has carried out every call that it is slow with.
func (f *Faults) CatchUp() { f.lagging.Wait() }

// slowly carries out a call after the lag, also if its caller is gone by then.
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
	answered := make(chan answer, 1)
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

// FailImage makes EnsureImage of ref answer err, which should wrap
// node.ErrImageNotFound or node.ErrImageUnavailable; nil ends it.
func (f *Faults) FailImage(ref string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	set(f.images, ref, err)
}

// SizeImage makes ref an image of so many bytes; before, each has a MiB.
func (f *Faults) SizeImage(ref string, bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sizes[ref] = bytes
}

// FailStart makes Start of the named container answer err, for example
// node.ErrBadCommand or node.ErrDevice, also if it is only created later; nil
// ends it. The container stays created and carries the error's text.
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

// Exit makes the named container exit now with code, and reports whether it
// was running.
func (f *Fake) Exit(name string, code int) bool {
	c, err := f.find(name)
	return err == nil && c.end(code)
}

// Vanish removes the named container with its log at once, running or hung, as
// an operator's hand would; waiters get node.ErrNoContainer.
func (f *Fake) Vanish(name string) {
	c, err := f.find(name)
	if err != nil {
		return
	}
	f.forget(c)
	c.hang(false)
	c.end(137)
}

// Hang makes the named container deaf to every signal, SIGKILL too, as a
// process stuck in the kernel is; false ends it.
func (f *Fake) Hang(name string, on bool) {
	if c, err := f.find(name); err == nil {
		c.hang(on)
	}
}

// Reboot ends every running container with code and keeps them all as exited,
// which is what an engine shows after its machine or itself went down: 255
// after a crash, 143 or 137 after an orderly shutdown.
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
	for _, c := range running {
		<-c.exited
	}
}

// allow refuses a call whose context has ended or that the hook refuses.
func (f *Faults) allow(ctx context.Context, call Call) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s %s: %w", call.Method, call.Subject, err)
	}
	f.mu.Lock()
	hook := f.intercept
	f.mu.Unlock()
	if hook == nil {
		return nil
	}
	return hook(call)
}

// imageError returns the fault of an image.
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

// startError returns the fault of the start of a container.
func (f *Faults) startError(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.starts[name]
}

// imageDigest invents the digest of an image from its name.
func imageDigest(ref string) string {
	return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(ref)))
}

func set(faults map[string]error, key string, err error) {
	if err == nil {
		delete(faults, key)
		return
	}
	faults[key] = err
}
