package fakeruntime_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"berth/activities/node"
	"berth/activities/node/fakeruntime"
)

func started(t *testing.T, f *fakeruntime.Fake, name string, command ...string) {
	t.Helper()
	spec := node.ContainerSpec{Name: name, Image: "any", Command: command, CPUMilli: 1000, MemoryMiB: 64}
	if _, err := f.Create(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if err := f.Start(t.Context(), name); err != nil {
		t.Fatal(err)
	}
}

func newFake(t *testing.T) *fakeruntime.Fake {
	f := fakeruntime.New(fakeruntime.Options{})
	t.Cleanup(f.Shutdown)
	return f
}

func TestStartFaultLeavesItCreatedUntilCured(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.FailStart("a", node.ErrDevice)
	if _, err := f.Create(t.Context(), node.ContainerSpec{Name: "a", Image: "any", CPUMilli: 1, MemoryMiB: 1}); err != nil {
		t.Fatal(err)
	}
	if err := f.Start(t.Context(), "a"); !errors.Is(err, node.ErrDevice) {
		t.Errorf("start: %v, want %v", err, node.ErrDevice)
	}
	if c, err := f.Inspect(t.Context(), "a"); err != nil || c.State != node.ContainerCreated || c.Error == "" {
		t.Errorf("after the fault: %+v, %v", c, err)
	}
	f.FailStart("a", nil)
	if err := f.Start(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	if c, err := f.Wait(t.Context(), "a"); err != nil || c.ExitCode != 0 || c.Error != "" {
		t.Errorf("after the cure: %+v, %v", c, err)
	}
}

func TestFaultsEndContainersAsEnginesDo(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	for i, end := range []func(name string){
		func(name string) { f.OOM(name) },
		func(name string) { f.Exit(name, 42) },
		func(string) { f.Reboot(255) },
	} {
		name := fmt.Sprint("c", i)
		started(t, f, name, "sleep", "1h")
		end(name)
		c, err := f.Wait(t.Context(), name)
		want := []int{137, 42, 255}[i]
		if err != nil || c.ExitCode != want || c.OOMKilled != (i == 0) {
			t.Errorf("fault %d: %+v, %v; want code %d", i, c, err, want)
		}
	}
	if f.OOM("c0") || f.Exit("c0", 1) {
		t.Error("an exited container was ended again")
	}
}

func TestVanishedContainerIsGoneForItsWaiters(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	started(t, f, "a", "sleep", "1h")
	waited := make(chan error, 1)
	go func() {
		_, err := f.Wait(t.Context(), "a")
		waited <- err
	}()
	f.Vanish("a")
	if err := <-waited; !errors.Is(err, node.ErrNoContainer) {
		t.Errorf("wait: %v, want %v", err, node.ErrNoContainer)
	}
	if list, err := f.List(t.Context(), nil); err != nil || len(list) != 0 {
		t.Errorf("left are %+v, %v", list, err)
	}
}

func TestHungContainerOutlivesItsKill(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	started(t, f, "a", "sleep", "1h")
	f.Hang("a", true)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := f.Stop(ctx, "a", 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("stop: %v, want %v", err, context.DeadlineExceeded)
	}
	if c, err := f.Inspect(t.Context(), "a"); err != nil || c.State != node.ContainerRunning {
		t.Errorf("after the kill: %+v, %v", c, err)
	}
	f.Hang("a", false)
	if err := f.Stop(t.Context(), "a", time.Minute); err != nil {
		t.Error(err)
	}
}

func TestHookAnswersForTheEngine(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	started(t, f, "a", "sleep", "1h")
	down := errors.New("engine is down")
	f.Intercept(func(c fakeruntime.Call) error {
		if c.Method == "Inspect" && c.Subject == "a" {
			return down
		}
		return nil
	})
	if _, err := f.Inspect(t.Context(), "a"); err != down {
		t.Errorf("inspect: %v, want %v", err, down)
	}
	if _, err := f.List(t.Context(), nil); err != nil {
		t.Errorf("list: %v", err)
	}
	f.Intercept(nil)
	if _, err := f.Inspect(t.Context(), "a"); err != nil {
		t.Errorf("inspect: %v", err)
	}
}

func TestFakeLivesInVirtualTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := fakeruntime.New(fakeruntime.Options{})
		started(t, f, "a", "lines", "10", "1h", "3")
		began := time.Now()
		lines := 0
		if err := f.Logs(t.Context(), "a", time.Time{}, true, func(node.LogLine) error { lines++; return nil }); err != nil {
			t.Fatal(err)
		}
		if c, err := f.Wait(t.Context(), "a"); err != nil || c.ExitCode != 3 || lines != 10 || time.Since(began) != 10*time.Hour {
			t.Errorf("after %v and %d lines: %+v, %v", time.Since(began), lines, c, err)
		}
		f.Shutdown()
	})
}

func TestOldLinesAreDroppedAndReadersGoOn(t *testing.T) {
	t.Parallel()
	f := fakeruntime.New(fakeruntime.Options{MaxLogLines: 10})
	t.Cleanup(f.Shutdown)
	started(t, f, "a", "spam", "1000", "10")
	if _, err := f.Wait(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	var last string
	n := 0
	err := f.Logs(t.Context(), "a", time.Time{}, false, func(l node.LogLine) error { last, n = l.Text, n+1; return nil })
	if err != nil || n < 10 || n >= 20 || last[:4] != "1000" {
		t.Errorf("kept %d lines up to %q, %v", n, last, err)
	}
}

func BenchmarkFakeContainer(b *testing.B) {
	f := fakeruntime.New(fakeruntime.Options{})
	defer f.Shutdown()
	ctx := b.Context()
	n := 0
	for b.Loop() {
		n++
		spec := node.ContainerSpec{Name: fmt.Sprint("c", n), Image: "any", Command: []string{"echo", "hello"}, CPUMilli: 1, MemoryMiB: 1}
		if _, err := f.Create(ctx, spec); err != nil {
			b.Fatal(err)
		}
		if err := f.Start(ctx, spec.Name); err != nil {
			b.Fatal(err)
		}
		if _, err := f.Wait(ctx, spec.Name); err != nil {
			b.Fatal(err)
		}
		if err := f.Remove(ctx, spec.Name); err != nil {
			b.Fatal(err)
		}
	}
}
