package runtimetest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"berth"
	"berth/activities/node"
)

// infoDescribesTheMachine checks that Info has an identity that stays, and a capacity.
func infoDescribesTheMachine(b *bench) {
	info, err := b.Runtime.Info(b.ctx)
	if err != nil {
		b.t.Fatal(err)
	}
	if info.Name == "" || info.Version == "" || info.EngineID == "" {
		b.t.Errorf("info has no identity: %+v", info)
	}
	if info.CPUMilli < 1000 || info.CPUMilli%1000 != 0 || info.MemoryMiB <= 0 || info.DiskMiB <= 0 {
		b.t.Errorf("info has no capacity: %+v", info)
	}
	again, err := b.Runtime.Info(b.ctx)
	if err != nil || again.EngineID != info.EngineID {
		b.t.Errorf("engine id changed from %q to %q (error %v)", info.EngineID, again.EngineID, err)
	}
}

// imageThatIsHereNeedsNoRegistry checks that a present image is used without a pull: the
// second call's login would be refused by any registry.
func imageThatIsHereNeedsNoRegistry(b *bench) {
	first, err := b.Runtime.EnsureImage(b.ctx, b.Image, nil, false)
	if err != nil {
		b.t.Fatal(err)
	}
	second, err := b.Runtime.EnsureImage(b.ctx, b.Image, &node.RegistryAuth{Username: "any", Password: "one"}, false)
	if err != nil || second != first {
		b.t.Errorf("second time: got %+v, error %v; want %+v", second, err, first)
	}
}

// missingImageIsNotFound checks that an image unknown to its registry is a permanent error
// only.
func missingImageIsNotFound(b *bench) {
	_, err := b.Runtime.EnsureImage(b.ctx, b.Missing, nil, false)
	wantError(b.t, err, node.ErrImageNotFound, "ensure missing image")
	if errors.Is(err, node.ErrImageUnavailable) {
		b.t.Errorf("error is both: %v", err)
	}
}

// checkedImageErrorsArePulls checks that CheckImage, ResolveTag and EnsureImage return the same kinds of error.
func checkedImageErrorsArePulls(b *bench) {
	digest := "sha256:" + strings.Repeat("0", 64)
	err := b.Runtime.CheckImage(b.ctx, b.Missing, digest, nil)
	wantError(b.t, err, node.ErrImageNotFound, "check a missing image")
	err = b.Runtime.CheckImage(b.ctx, b.Unreachable, digest, nil)
	wantError(b.t, err, node.ErrImageUnavailable, "check an image of a silent registry")
	_, err = b.Runtime.ResolveTag(b.ctx, b.Missing, nil)
	wantError(b.t, err, node.ErrImageNotFound, "resolve a missing image")
	_, err = b.Runtime.ResolveTag(b.ctx, b.Unreachable, nil)
	wantError(b.t, err, node.ErrImageUnavailable, "resolve an image of a silent registry")
}

// imageThatIsHereHasASize checks ImageBytes with and without the image.
func imageThatIsHereHasASize(b *bench) {
	if n, err := b.Runtime.ImageBytes(b.ctx, b.Image); err != nil || n <= 0 {
		b.t.Errorf("size of an image that is here: %d, %v", n, err)
	}
	n, err := b.Runtime.ImageBytes(b.ctx, b.Missing)
	wantError(b.t, err, node.ErrNoImage, "size of a missing image")
	if n != 0 {
		b.t.Errorf("an image that is not here has %d bytes", n)
	}
}

// missingImageIsNotRemoved checks that RemoveImage returns ErrNoImage for a missing image.
func missingImageIsNotRemoved(b *bench) {
	wantError(b.t, b.Runtime.RemoveImage(b.ctx, b.Missing, "sha256:0"), node.ErrNoImage, "remove a missing image")
}

// unreachableRegistryIsUnavailable checks that a silent registry is a retryable error only.
func unreachableRegistryIsUnavailable(b *bench) {
	_, err := b.Runtime.EnsureImage(b.ctx, b.Unreachable, nil, false)
	wantError(b.t, err, node.ErrImageUnavailable, "ensure unreachable image")
	if errors.Is(err, node.ErrImageNotFound) {
		b.t.Errorf("error is both: %v", err)
	}
}

// createDoesNotStart checks the state and the labels of a created container.
func createDoesNotStart(b *bench) {
	spec := b.spec("a", "exit", "0")
	c := b.create(spec)
	if c.Name != spec.Name || c.ID == "" || c.State != node.ContainerCreated || !maps.Equal(c.Labels, spec.Labels) {
		b.t.Errorf("created %+v", c)
	}
	if !c.StartedAt.IsZero() || !c.FinishedAt.IsZero() || c.PID != 0 {
		b.t.Errorf("a created container has a past: %+v", c)
	}
	if again := b.inspect(spec.Name); again.State != node.ContainerCreated || again.ID != c.ID {
		b.t.Errorf("inspect says %+v", again)
	}
}

// createOfAnExistingNameReturnsIt checks that Create returns the first container unchanged
// with ErrExists, for any second spec: an agent adopts the returned container.
func createOfAnExistingNameReturnsIt(b *bench) {
	spec := b.spec("a", "sleep", "1h")
	first := b.create(spec)
	b.start(spec.Name)
	other := b.spec("a", "exit", "9")
	other.Labels["other"] = "yes"
	got, err := b.Runtime.Create(b.ctx, other)
	wantError(b.t, err, node.ErrExists, "create again")
	if got.ID != first.ID || got.State != node.ContainerRunning || got.Labels["other"] != "" {
		b.t.Errorf("got %+v, want the first one unchanged", got)
	}
	// The name is checked before the image.
	other.Image = "berth-test.invalid/not/here:1"
	_, err = b.Runtime.Create(b.ctx, other)
	wantError(b.t, err, node.ErrExists, "create again with an image that is not here")
}

// onlyOneOfManyCreatesWins checks the local fence: of concurrent creates of one name, one
// succeeds.
func onlyOneOfManyCreatesWins(b *bench) {
	spec := b.spec("a", "exit", "0")
	const callers = 4
	errs := make([]error, callers)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() { _, errs[i] = b.Runtime.Create(b.ctx, spec) })
	}
	all.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else {
			wantError(b.t, err, node.ErrExists, "create at the same time")
		}
	}
	if won != 1 {
		b.t.Errorf("%d of %d creates won, want 1", won, callers)
	}
}

// containerWithoutLimitsIsRefused checks that Create validates its spec.
func containerWithoutLimitsIsRefused(b *bench) {
	for _, change := range []func(*node.ContainerSpec){
		func(s *node.ContainerSpec) { s.MemoryMiB = 0 }, // would mean "unlimited" to an engine
		func(s *node.ContainerSpec) { s.CPUMilli = 0 },
		func(s *node.ContainerSpec) { s.PidsLimit = -1 },
		func(s *node.ContainerSpec) { s.ReadOnlyRoot = true }, // without a size of /tmp
		func(s *node.ContainerSpec) { s.TmpMiB = 8 },
		func(s *node.ContainerSpec) { s.User = "1000" }, // whose group the image would choose
		func(s *node.ContainerSpec) { s.User = "nobody:nobody" },
		func(s *node.ContainerSpec) { s.Mounts = []node.Mount{{Host: "relative", Target: "/x"}} },
	} {
		spec := b.spec("a", "exit", "0")
		change(&spec)
		if _, err := b.Runtime.Create(b.ctx, spec); berth.CodeOf(err) != berth.CodeInvalid {
			b.t.Errorf("create %+v: error is %v, want code %s", spec, err, berth.CodeInvalid)
		}
	}
}

// absentImageAtCreate checks that Create does not pull: an image removed since EnsureImage
// is a retryable error.
func absentImageAtCreate(b *bench) {
	spec := b.spec("a", "exit", "0")
	spec.Image = b.Missing
	_, err := b.Runtime.Create(b.ctx, spec)
	wantError(b.t, err, node.ErrImageUnavailable, "create without its image")
}

// absentContainerIsNoContainer checks every method on a name without a container. Only
// Remove succeeds, since it is safe to repeat.
func absentContainerIsNoContainer(b *bench) {
	name := b.spec("nobody").Name
	_, err := b.Runtime.Inspect(b.ctx, name)
	wantError(b.t, err, node.ErrNoContainer, "inspect")
	_, err = b.Runtime.Wait(b.ctx, name)
	wantError(b.t, err, node.ErrNoContainer, "wait")
	wantError(b.t, b.Runtime.Start(b.ctx, name), node.ErrNoContainer, "start")
	wantError(b.t, b.Runtime.Signal(b.ctx, name, "SIGUSR1"), node.ErrNoContainer, "signal")
	wantError(b.t, b.Runtime.Stop(b.ctx, name, time.Second), node.ErrNoContainer, "stop")
	err = b.Runtime.Logs(b.ctx, name, time.Time{}, true, func(node.LogLine) error { return nil })
	wantError(b.t, err, node.ErrNoContainer, "logs")
	if err := b.Runtime.Remove(b.ctx, name); err != nil {
		b.t.Errorf("remove: %v, want no error", err)
	}
}

// idPrefixIsNotAName checks that ids and prefixes address no container, although Docker's
// API resolves both: the name alone is the fence.
func idPrefixIsNotAName(b *bench) {
	c := b.create(b.spec("a", "exit", "0"))
	for _, id := range []string{c.ID, c.ID[:12], c.Name[:len(c.Name)-1]} {
		_, err := b.Runtime.Inspect(b.ctx, id)
		wantError(b.t, err, node.ErrNoContainer, "inspect "+id)
		if err := b.Runtime.Remove(b.ctx, id); err != nil {
			b.t.Errorf("remove %s: %v", id, err)
		}
	}
	b.inspect(c.Name) // still there
}

// listFindsEveryLabel checks that List and Unstarted filter by all labels and include all
// states.
func listFindsEveryLabel(b *bench) {
	// One running, one exited and one created container, with different labels.
	odd := b.spec("odd", "sleep", "1h")
	odd.Labels = map[string]string{label: b.tag, "parity": "odd"}
	even := b.spec("even", "exit", "3")
	even.Labels = map[string]string{label: b.tag, "parity": "even", "extra": "a=b c"}
	b.run(odd)
	b.wait(b.run(even))
	b.create(b.spec("new", "exit", "0"))
	list := func(labels map[string]string) map[string]node.Container {
		all, err := b.Runtime.List(b.ctx, labels)
		if err != nil {
			b.t.Fatal(err)
		}
		byName := make(map[string]node.Container)
		for _, c := range all {
			byName[c.Name] = c
		}
		return byName
	}
	unstarted, err := b.Runtime.Unstarted(b.ctx, b.labels())
	if err != nil || len(unstarted) != 1 || unstarted[0].State != node.ContainerCreated ||
		!maps.Equal(unstarted[0].Labels, b.labels()) {
		b.t.Errorf("never started: %+v, %v", unstarted, err)
	}
	all := list(b.labels())
	if len(all) != 3 || all[odd.Name].State != node.ContainerRunning || all[even.Name].State != node.ContainerExited {
		b.t.Errorf("list of all three is %+v", all)
	}
	if got := all[even.Name]; got.ExitCode != 3 || got.FinishedAt.IsZero() || !maps.Equal(got.Labels, even.Labels) {
		b.t.Errorf("the exited one is listed as %+v", got)
	}
	for _, c := range []struct {
		labels map[string]string
		want   []string
	}{
		{map[string]string{label: b.tag, "parity": "odd"}, []string{odd.Name}},
		{map[string]string{label: b.tag, "extra": "a=b c"}, []string{even.Name}},
		{map[string]string{label: b.tag, "parity": "odd", "extra": "a=b c"}, nil},
		{map[string]string{label: b.tag, "parity": ""}, nil},
	} {
		if got := slices.Sorted(maps.Keys(list(c.labels))); !slices.Equal(got, c.want) {
			b.t.Errorf("list %v finds %v, want %v", c.labels, got, c.want)
		}
	}
}

// probeIsAnswered checks Probe on a working engine, and with a cancelled context.
func probeIsAnswered(b *bench) {
	if err := b.Runtime.Probe(b.ctx, b.labels()); err != nil {
		b.t.Errorf("probe without a container: %v", err)
	}
	b.create(b.spec("a", "exit", "0"))
	if err := b.Runtime.Probe(b.ctx, b.labels()); err != nil {
		b.t.Errorf("probe with a container: %v", err)
	}
	over, cancel := context.WithCancel(b.ctx)
	cancel()
	wantError(b.t, b.Runtime.Probe(over, b.labels()), context.Canceled, "probe whose context is over")
}

// removeTakesAnyState checks that Remove removes containers in any state, may be repeated,
// and frees the name.
func removeTakesAnyState(b *bench) {
	created := b.spec("created", "exit", "0")
	b.create(created)
	running := b.spec("running", "ignore-term")
	b.await(b.run(running), "ready")
	exited := b.spec("exited", "exit", "0")
	b.wait(b.run(exited))
	for _, s := range []node.ContainerSpec{created, running, exited} {
		for range 2 {
			if err := b.Runtime.Remove(b.ctx, s.Name); err != nil {
				b.t.Errorf("remove %s: %v", s.Name, err)
			}
		}
		_, err := b.Runtime.Inspect(b.ctx, s.Name)
		wantError(b.t, err, node.ErrNoContainer, "inspect removed "+s.Name)
	}
	b.create(created) // the name is free again
}

// anotherConnectionSeesTheSame checks that containers belong to the engine, not to a
// connection: a restarted agent finds, stops and reads the container of its predecessor.
func anotherConnectionSeesTheSame(b *bench) {
	name := b.run(b.spec("a", "trap-term", "5"))
	b.await(name, "ready")
	first := b.inspect(name)
	if err := b.Runtime.Close(); err != nil {
		b.t.Fatal(err)
	}
	b.Runtime = b.Again(b.t)
	if got := b.inspect(name); got.ID != first.ID || got.State != node.ContainerRunning ||
		!got.StartedAt.Equal(first.StartedAt) {
		b.t.Errorf("after a restart of the agent: %+v, want %+v", got, first)
	}
	if err := b.Runtime.Stop(b.ctx, name, patience); err != nil {
		b.t.Fatal(err)
	}
	if c := b.wait(name); c.ExitCode != 5 {
		b.t.Errorf("exit code %d, want 5", c.ExitCode)
	}
	wantLines(b.t, texts(b.logs(name, time.Time{})), "ready", "term")
}
