// Package cloudtest holds the conformance suite of providers of machines.
//
// Every implementation of cloud.Provider passes it, against a cloud whose faults the test controls.
// Callers rely on each promise that the suite tests: the answers decide whether a machine exists,
// may be requested again, or is gone.
package cloudtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"berth"
	"berth/internal/control/cloud"
)

// Fault is a failure that the cloud under test shows on its next call, once.
type Fault string

// The faults.
const (
	Before   Fault = "before"   // the call fails without a clear answer, and has no effect
	After    Fault = "after"    // the call has its effect, and fails without a clear answer
	Throttle Fault = "throttle" // refused: too many calls
	Capacity Fault = "capacity" // refused: no room for the offering
	Quota    Fault = "quota"    // refused: a limit of the account
	Auth     Fault = "auth"     // refused: no permission
	Hang     Fault = "hang"     // no answer until the caller gives up; no effect
	Unsent   Fault = "unsent"   // the cloud cannot be called, as without an answer of the server of credentials
)

// Kind returns the kind of error that a provider returns for the fault.
func (f Fault) Kind() cloud.Kind {
	switch f {
	case Throttle, Capacity, Quota, Auth:
		return cloud.Kind(f)
	case Unsent:
		return cloud.Throttle
	}
	return cloud.Unknown
}

// Subject is a provider under test, with its cloud.
type Subject struct {
	Provider cloud.Provider
	// Offering and Other are two offerings of the cloud, in Regions.
	Offering, Other cloud.Offering
	Regions         []string
	// Settings are valid settings of a pool for the provider.
	Settings json.RawMessage
	// Inject sets the fault of the next call.
	Inject func(f Fault)
	// Created returns the number of instances that the cloud has ever created.
	Created func() int
	// Finish lets the time pass in which instances that are ending become terminated.
	Finish func()
	// Unknown is an instance that the cloud has never created.
	Unknown cloud.Instance
	// Forgets reports that lists of the cloud do not show terminated instances. Find must prove their end.
	Forgets bool
}

// uid is the cluster of the launches of the suite.
const uid = "0197c1a2-5f3b-7d1e-9a55-1b2c3d4e5f60"

// launch returns the first launch of a machine.
func (s Subject) launch(machine berth.MachineID) cloud.Launch {
	return cloud.Launch{
		Token: cloud.Token(uid, "1", machine, 1), Cluster: uid, Pool: "burst", Machine: machine, N: 1,
		Offering: s.Offering, Settings: s.Settings,
		Bootstrap: cloud.Bootstrap{URL: "https://berth.example:7070", JoinToken: "berth_join_" + string(machine)},
	}
}

// Run runs the suite. open returns a new cloud without instances, which ends with its test.
func Run(t *testing.T, open func(t *testing.T) Subject) {
	for _, c := range []struct {
		name string
		test func(t *testing.T, s Subject)
	}{
		{"CreateReturnsTheInstanceOfTheLaunch", createReturns},
		{"RepeatsReturnTheSameInstance", repeats},
		{"AnotherRequestWithTheTokenIsRefused", mismatch},
		{"NextLaunchOfAMachineIsAnotherInstance", nextLaunch},
		{"FindSeesOnlyTheLaunch", find},
		{"ListHasAllInstancesOfTheCluster", list},
		{"TerminateMayBeRepeated", terminate},
		{"TokenOfATerminatedInstanceIsRefused", ended},
		{"UnknownInstancesAreNotFound", unknownInstance},
		{"RefusalsHaveAKindAndNoEffect", refusals},
		{"CallsThatAreNotMadeSaySo", unsent},
		{"UnknownOutcomesOfCreateEndInOneInstance", unknownCreate},
		{"UnknownOutcomesOfTerminateEnd", unknownTerminate},
		{"CallsEndWithTheirContext", hang},
		{"OffersAreOfTheRegions", offers},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.test(t, open(t))
		})
	}
}

// create creates an instance and checks its tags.
func create(t *testing.T, s Subject, l cloud.Launch) cloud.Instance {
	t.Helper()
	i, err := s.Provider.Create(t.Context(), l)
	if err != nil {
		t.Fatalf("create %s launch %d: %v", l.Machine, l.N, err)
	}
	check(t, i, l)
	if i.State != cloud.Pending && i.State != cloud.Running {
		t.Fatalf("a new instance has state %q", i.State)
	}
	return i
}

// check checks that i is the instance of l.
func check(t *testing.T, i cloud.Instance, l cloud.Launch) {
	t.Helper()
	if i.ID == "" || i.Token != l.Token || i.Cluster != l.Cluster || i.Pool != l.Pool ||
		i.Machine != l.Machine || i.N != l.N {
		t.Fatalf("instance %+v does not have the tags of the launch %+v", i, l)
	}
	o := i.Offering
	if o.Region != l.Offering.Region || o.Type != l.Offering.Type || o.Market != l.Offering.Market ||
		l.Offering.Zone != "" && o.Zone != l.Offering.Zone {
		t.Fatalf("instance %s has the offering %s, requested was %s", i.ID, o, l.Offering)
	}
	if age := time.Since(i.Created); age < -time.Minute || age > time.Hour {
		t.Errorf("instance %s was created at %s", i.ID, i.Created)
	}
}

// wantKind checks that a failure is a *cloud.Error of the kind.
func wantKind(t *testing.T, err error, kind cloud.Kind, doing string) {
	t.Helper()
	var e *cloud.Error
	if !errors.As(err, &e) {
		t.Fatalf("%s: error %v, want one of kind %s", doing, err, kind)
	}
	if e.Kind != kind || e.Err == nil || e.Err.Error() == "" {
		t.Fatalf("%s: error of kind %s (%v), want kind %s with a cause", doing, e.Kind, e.Err, kind)
	}
}

// wantCreated checks how many instances the cloud has created.
func wantCreated(t *testing.T, s Subject, n int) {
	t.Helper()
	if got := s.Created(); got != n {
		t.Fatalf("the cloud has created %d instances, want %d", got, n)
	}
}

func createReturns(t *testing.T, s Subject) {
	i := create(t, s, s.launch("burst-1"))
	if j := create(t, s, s.launch("burst-2")); j.ID == i.ID {
		t.Errorf("two machines have the instance %s", i.ID)
	}
	wantCreated(t, s, 2)
}

func repeats(t *testing.T, s Subject) {
	l := s.launch("burst-1")
	ids := make(chan string, 4)
	for range cap(ids) { // two replicas may send the same launch
		go func() {
			i, err := s.Provider.Create(t.Context(), l)
			if err != nil {
				t.Errorf("create: %v", err)
			}
			ids <- i.ID
		}()
	}
	first := <-ids
	for range cap(ids) - 1 {
		if id := <-ids; id != first {
			t.Errorf("calls with one token returned the instances %s and %s", first, id)
		}
	}
	if i := create(t, s, l); i.ID != first {
		t.Errorf("a later repeat returned %s, not %s", i.ID, first)
	}
	wantCreated(t, s, 1)
}

func mismatch(t *testing.T, s Subject) {
	l := s.launch("burst-1")
	i := create(t, s, l)
	for name, change := range map[string]func(*cloud.Launch){
		"type":       func(l *cloud.Launch) { l.Offering.Type = s.Other.Type },
		"join token": func(l *cloud.Launch) { l.Bootstrap.JoinToken += "0" },
	} {
		other := l
		change(&other)
		if other.Hash() == l.Hash() {
			t.Fatalf("another %s has the same hash", name)
		}
		_, err := s.Provider.Create(t.Context(), other)
		wantKind(t, err, cloud.Mismatch, "create with the same token and another "+name)
	}
	if again := create(t, s, l); again.ID != i.ID {
		t.Errorf("after a refusal the first request returns %s, not %s", again.ID, i.ID)
	}
	wantCreated(t, s, 1)
}

func nextLaunch(t *testing.T, s Subject) {
	l := s.launch("burst-1")
	i := create(t, s, l)
	l.N, l.Offering, l.Token = 2, s.Other, cloud.Token(uid, "1", l.Machine, 2)
	if next := create(t, s, l); next.ID == i.ID {
		t.Errorf("launch 2 returned the instance of launch 1")
	}
	wantCreated(t, s, 2)
}

func find(t *testing.T, s Subject) {
	l, other := s.launch("burst-1"), s.launch("burst-2")
	_, err := s.Provider.Find(t.Context(), l)
	wantKind(t, err, cloud.NotFound, "find before create")
	want := create(t, s, l)
	i, err := s.Provider.Find(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	check(t, i, l)
	if i.ID != want.ID {
		t.Errorf("find returned %s, create %s", i.ID, want.ID)
	}
	_, err = s.Provider.Find(t.Context(), other)
	wantKind(t, err, cloud.NotFound, "find of another machine")
	wantCreated(t, s, 1)
}

func list(t *testing.T, s Subject) {
	const elsewhere = "0197c1a2-0000-7000-8000-000000000000"
	if all, err := s.Provider.List(t.Context(), uid, s.Regions); err != nil || len(all) != 0 {
		t.Fatalf("an empty cloud lists %v, %v", all, err)
	}
	foreign := s.launch("foreign")
	foreign.Cluster, foreign.Token = elsewhere, cloud.Token(elsewhere, "1", "foreign", 1)
	create(t, s, foreign)
	want := map[string]cloud.Launch{}
	for n := range 7 { // more than a page of the fakes
		l := s.launch(berth.MachineID(fmt.Sprintf("burst-%d", n)))
		want[create(t, s, l).ID] = l
	}
	all, err := s.Provider.List(t.Context(), uid, s.Regions)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range all {
		l, ok := want[i.ID]
		if !ok {
			t.Errorf("the list has the instance %+v, which is not of the cluster or listed twice", i)
			continue
		}
		check(t, i, l)
		delete(want, i.ID)
	}
	if len(want) > 0 {
		t.Errorf("the list lacks %d instances", len(want))
	}
}

func terminate(t *testing.T, s Subject) {
	l := s.launch("burst-1")
	i, kept := create(t, s, l), create(t, s, s.launch("burst-2"))
	for n := range 2 {
		if err := s.Provider.Terminate(t.Context(), i); err != nil {
			t.Fatalf("terminate, call %d: %v", n+1, err)
		}
	}
	if i = found(t, s, l); i.State != cloud.Ending && i.State != cloud.Terminated {
		t.Errorf("after terminate the state is %q", i.State)
	}
	s.Finish()
	if i = found(t, s, l); i.State != cloud.Terminated {
		t.Errorf("in the end the state is %q", i.State)
	}
	if err := s.Provider.Terminate(t.Context(), i); err != nil {
		t.Errorf("terminate of a terminated instance: %v", err)
	}
	if j := found(t, s, s.launch("burst-2")); j.ID != kept.ID || j.State != cloud.Pending && j.State != cloud.Running {
		t.Errorf("the other instance is %+v", j)
	}
	all, err := s.Provider.List(t.Context(), uid, s.Regions)
	if err != nil {
		t.Fatal(err)
	}
	shown := slices.ContainsFunc(all, func(j cloud.Instance) bool {
		return j.ID == i.ID && j.State == cloud.Terminated
	})
	if shown == s.Forgets {
		t.Errorf("the list shows the terminated instance: %t: %+v", shown, all)
	}
}

// found finds the instance of a launch.
func found(t *testing.T, s Subject, l cloud.Launch) cloud.Instance {
	t.Helper()
	i, err := s.Provider.Find(t.Context(), l)
	if err != nil {
		t.Fatalf("find: %v", err)
	}
	check(t, i, l)
	return i
}

func ended(t *testing.T, s Subject) {
	l := s.launch("burst-1")
	i := create(t, s, l)
	if err := s.Provider.Terminate(t.Context(), i); err != nil {
		t.Fatal(err)
	}
	s.Finish()
	_, err := s.Provider.Create(t.Context(), l)
	wantKind(t, err, cloud.Mismatch, "create with the token of a terminated instance")
	wantCreated(t, s, 1)
}

func unknownInstance(t *testing.T, s Subject) {
	create(t, s, s.launch("burst-1"))
	wantKind(t, s.Provider.Terminate(t.Context(), s.Unknown), cloud.NotFound, "terminate of an unknown instance")
}

func refusals(t *testing.T, s Subject) {
	l := s.launch("burst-1")
	for _, f := range []Fault{Throttle, Capacity, Quota, Auth} {
		s.Inject(f)
		_, err := s.Provider.Create(t.Context(), l)
		wantKind(t, err, f.Kind(), "create")
	}
	wantCreated(t, s, 0)
	i := create(t, s, l) // a refusal does not use the token up
	for _, f := range []Fault{Throttle, Auth} {
		s.Inject(f)
		wantKind(t, s.Provider.Terminate(t.Context(), i), f.Kind(), "terminate")
		s.Inject(f)
		_, err := s.Provider.Find(t.Context(), l)
		wantKind(t, err, f.Kind(), "find")
		s.Inject(f)
		_, err = s.Provider.List(t.Context(), uid, s.Regions)
		wantKind(t, err, f.Kind(), "list")
	}
	if i = found(t, s, l); i.State != cloud.Pending && i.State != cloud.Running {
		t.Errorf("after refusals the state is %q", i.State)
	}
}

// unsent tests that only a call that was not made says so: it trips no breaker.
func unsent(t *testing.T, s Subject) {
	l := s.launch("burst-1")
	for _, f := range []Fault{Unsent, Throttle} {
		s.Inject(f)
		_, err := s.Provider.Create(t.Context(), l)
		wantKind(t, err, f.Kind(), "create with the fault "+string(f))
		if e, _ := errors.AsType[*cloud.Error](err); e.Unsent != (f == Unsent) {
			t.Errorf("create with the fault %s: unsent is %v (%v)", f, e.Unsent, err)
		}
	}
	wantCreated(t, s, 0)
	create(t, s, l)
	s.Inject(Unsent)
	_, err := s.Provider.Find(t.Context(), l)
	wantKind(t, err, cloud.Throttle, "find")
	found(t, s, l)
}

func unknownCreate(t *testing.T, s Subject) {
	for n, f := range []Fault{Before, After} {
		l := s.launch(berth.MachineID("burst-" + string(f)))
		s.Inject(f)
		_, err := s.Provider.Create(t.Context(), l)
		wantKind(t, err, cloud.Unknown, "create with the fault "+string(f))
		if f == Before {
			wantCreated(t, s, n)
			_, err := s.Provider.Find(t.Context(), l)
			wantKind(t, err, cloud.NotFound, "find after no effect")
		} else {
			wantCreated(t, s, n+1)
			found(t, s, l)
		}
		create(t, s, l)
		wantCreated(t, s, n+1)
	}
}

func unknownTerminate(t *testing.T, s Subject) {
	l := s.launch("burst-1")
	i := create(t, s, l)
	for _, f := range []Fault{Before, After} {
		s.Inject(f)
		wantKind(t, s.Provider.Terminate(t.Context(), i), cloud.Unknown, "terminate with the fault "+string(f))
		s.Finish()
		state := found(t, s, l).State
		if gone := state == cloud.Terminated; gone != (f == After) {
			t.Errorf("after terminate with the fault %s the state is %q", f, state)
		}
	}
	if err := s.Provider.Terminate(t.Context(), i); err != nil {
		t.Errorf("terminate again: %v", err)
	}
}

func hang(t *testing.T, s Subject) {
	l := s.launch("burst-1")
	for name, call := range map[string]func(ctx context.Context) error{
		"create":    func(ctx context.Context) error { _, err := s.Provider.Create(ctx, l); return err },
		"find":      func(ctx context.Context) error { _, err := s.Provider.Find(ctx, l); return err },
		"list":      func(ctx context.Context) error { _, err := s.Provider.List(ctx, uid, s.Regions); return err },
		"terminate": func(ctx context.Context) error { return s.Provider.Terminate(ctx, s.Unknown) },
	} {
		err := hanging(t, s, call)
		wantKind(t, err, cloud.Unknown, name+" without an answer")
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the error of %s does not wrap that of its context: %v", name, err)
		}
	}
	wantCreated(t, s, 0)
}

// hanging makes a call to a cloud that does not answer, and returns its error. A call that was not made, because its
// context ended before, is repeated with more time.
func hanging(t *testing.T, s Subject, call func(ctx context.Context) error) error {
	t.Helper()
	for limit := 300 * time.Millisecond; ; limit *= 2 {
		s.Inject(Hang)
		begun := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		err := call(ctx)
		late := time.Since(begun) - limit
		cancel()
		var e *cloud.Error
		if errors.As(err, &e) && e.Kind == cloud.Throttle && limit < time.Minute {
			continue
		}
		if late > 5*time.Minute {
			t.Errorf("the call ended %s after its context", late)
		}
		return err
	}
}

func offers(t *testing.T, s Subject) {
	all, err := s.Provider.Offers(t.Context(), s.Regions)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []cloud.Offering{s.Offering, s.Other} {
		if !slices.ContainsFunc(all, func(o cloud.Offer) bool {
			return o.Offering == want && o.CPUs > 0 && o.MemoryMiB > 0
		}) {
			t.Errorf("the offers lack %s: %+v", want, all)
		}
	}
	if none, err := s.Provider.Offers(t.Context(), []string{"no-such-region"}); err != nil || len(none) != 0 {
		t.Errorf("offers of an unknown region: %v, %v", none, err)
	}
}
