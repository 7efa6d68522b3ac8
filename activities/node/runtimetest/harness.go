package runtimetest

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"berth/activities/node"
)

// Harness is one engine to test.
type Harness struct {
	// Runtime is a connection to the engine; Suite closes it.
	Runtime node.Runtime
	// Again opens another connection to the same engine, as a restarted agent does.
	Again func(t *testing.T) node.Runtime
	// Image is the test image, already usable; it is not pulled.
	Image string
	// Missing is an image that its registry reports as not existing; Unreachable is one of
	// a registry that does not answer.
	Missing, Unreachable string
}

// label marks all containers and networks of one test.
const label = "berth.runtimetest"

// patience bounds every wait of the suite. It is long because machines that run
// tests are busy, and costs nothing when all is well.
const patience = 4 * time.Minute

// bench is one test's connection to the engine.
type bench struct {
	Harness
	t   *testing.T
	ctx context.Context
	tag string // the value of label
}

// newBench opens the engine for one test, and removes the test's containers at its end.
func newBench(t *testing.T, open func(t *testing.T) Harness) *bench {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience) // ends before the clean-up starts
	b := &bench{Harness: open(t), t: t, ctx: ctx, tag: strings.ToLower(rand.Text())}
	t.Cleanup(func() {
		cancel()
		clean, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		left, err := b.Runtime.List(clean, b.labels())
		if err != nil {
			t.Errorf("list what the test left: %v", err)
		}
		for _, c := range left {
			if err := b.Runtime.Remove(clean, c.Name); err != nil {
				t.Errorf("remove %s: %v", c.Name, err)
			}
		}
		if err := b.Runtime.Close(); err != nil {
			t.Errorf("close runtime: %v", err)
		}
	})
	return b
}

// labels mark the containers of this test.
func (b *bench) labels() map[string]string { return map[string]string{label: b.tag} }

// spec returns a small container that runs a command of the test program.
func (b *bench) spec(name string, command ...string) node.ContainerSpec {
	return node.ContainerSpec{
		Name:      "berth-test-" + b.tag + "-" + name,
		Labels:    b.labels(),
		Image:     b.Image,
		Command:   command,
		CPUMilli:  1000,
		MemoryMiB: 64,
	}
}

func (b *bench) create(spec node.ContainerSpec) node.Container {
	b.t.Helper()
	c, err := b.Runtime.Create(b.ctx, spec)
	if err != nil {
		b.t.Fatalf("create %v: %v", spec.Command, err)
	}
	return c
}

// run creates and starts a container, and returns its name.
func (b *bench) run(spec node.ContainerSpec) string {
	b.t.Helper()
	b.create(spec)
	b.start(spec.Name)
	return spec.Name
}

func (b *bench) start(name string) {
	b.t.Helper()
	if err := b.Runtime.Start(b.ctx, name); err != nil {
		b.t.Fatalf("start: %v", err)
	}
}

func (b *bench) wait(name string) node.Container {
	b.t.Helper()
	c, err := b.Runtime.Wait(b.ctx, name)
	if err != nil {
		b.t.Fatalf("wait: %v", err)
	}
	return c
}

// finish runs a container to its end and returns its state and its output.
func (b *bench) finish(spec node.ContainerSpec) (node.Container, []string) {
	b.t.Helper()
	name := b.run(spec)
	c := b.wait(name)
	return c, texts(b.logs(name, time.Time{}))
}

func (b *bench) inspect(name string) node.Container {
	b.t.Helper()
	c, err := b.Runtime.Inspect(b.ctx, name)
	if err != nil {
		b.t.Fatalf("inspect: %v", err)
	}
	return c
}

// logs returns the lines written so far.
func (b *bench) logs(name string, since time.Time) []node.LogLine {
	b.t.Helper()
	var lines []node.LogLine
	err := b.Runtime.Logs(b.ctx, name, since, false, func(l node.LogLine) error {
		lines = append(lines, l)
		return nil
	})
	if err != nil {
		b.t.Fatalf("read logs: %v", err)
	}
	return lines
}

var errSeen = errors.New("seen")

// await follows the log until the container has written the line.
func (b *bench) await(name, text string) {
	b.t.Helper()
	var got []string
	err := b.Runtime.Logs(b.ctx, name, time.Time{}, true, func(l node.LogLine) error {
		got = append(got, l.Text)
		if l.Text == text {
			return errSeen
		}
		return nil
	})
	if !errors.Is(err, errSeen) {
		b.t.Fatalf("waited for line %q, got %q and error %v", text, got, err)
	}
}

// async runs f in a goroutine that the test waits for, and returns its result.
func async[T any](t *testing.T, f func() (T, error)) func() (T, error) {
	var result T
	var err error
	var running sync.WaitGroup
	running.Go(func() { result, err = f() })
	t.Cleanup(running.Wait)
	return func() (T, error) {
		running.Wait()
		return result, err
	}
}

// texts returns the lines without stamps and streams.
func texts(lines []node.LogLine) []string {
	var all []string
	for _, l := range lines {
		all = append(all, l.Text)
	}
	return all
}

func wantLines(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("output is %q, want %q", got, want)
	}
}

func wantError(t *testing.T, err, want error, doing string) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: error is %v, want %v", doing, err, want)
	}
}
