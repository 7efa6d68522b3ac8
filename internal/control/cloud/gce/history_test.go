package gce_test

import (
	"testing"
	"time"

	"berth/internal/control/cloud"
	"berth/internal/control/cloud/gce/gcefake"
)

// GCE shows no deleted instance. Its operations prove the end: operations of users, and operations of GCE itself.
func TestOperationsProveTheEnd(t *testing.T) {
	t.Parallel()
	p, fake := open(t, gcefake.Options{End: time.Minute})
	l, spot := launch("burst-1"), launch("burst-2")
	i, j := create(t, p, l), create(t, p, spot)
	if err := p.Terminate(t.Context(), i); err != nil {
		t.Fatal(err)
	}
	fake.Preempt("eu-test1-a", name(j))
	wantFound(t, p, l, i.ID, cloud.Ending, "STOPPING")
	wantFound(t, p, spot, j.ID, cloud.Ending, "STOPPING")
	fake.Advance(time.Minute)
	wantFound(t, p, l, i.ID, cloud.Terminated, "delete")
	wantFound(t, p, spot, j.ID, cloud.Terminated, "compute.instances.preempted")
	for _, gone := range []cloud.Instance{i, j} {
		if err := p.Terminate(t.Context(), gone); err != nil {
			t.Errorf("terminate of %s: %v", gone.ID, err)
		}
	}
	if all, err := p.List(t.Context(), uid, []string{"eu-test1"}); err != nil || len(all) != 0 {
		t.Errorf("the list is %+v, %v", all, err)
	}
}

// An instance that is not shown, without an operation that ended it, is not gone.
func TestAbsenceIsNoProof(t *testing.T) {
	t.Parallel()
	p, fake := open(t, gcefake.Options{})
	l := launch("burst-1")
	i := create(t, p, l)
	fake.Record("eu-test1-a", name(i), "compute.instances.automaticRestart") // an operation that ends nothing
	fake.Inject(gcefake.Fault{Action: "delete", Kind: gcefake.Inside, Status: 400, Reason: "RESOURCE_IN_USE"})
	want(t, p.Terminate(t.Context(), i), cloud.Spec, "RESOURCE_IN_USE")
	fake.Vanish("eu-test1-a", name(i))
	_, err := p.Find(t.Context(), l)
	want(t, err, cloud.NotFound, "no operation proves its end")
	want(t, p.Terminate(t.Context(), i), cloud.NotFound, "notFound")
	fake.Inject(gcefake.Fault{Action: "operations", Kind: gcefake.Refuse, Status: 403, Reason: "forbidden"})
	_, err = p.Find(t.Context(), l)
	want(t, err, cloud.Auth, "forbidden")
}

// Operations that stop an instance, and types that this version does not know, prove no end.
func TestOtherOperationsProveNothing(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{
		"compute.instances.guestTerminate", "compute.instances.terminateOnHostMaintenance",
		"compute.instances.hostError", "compute.instances.migrateOnHostMaintenance", "compute.instances.typeOfNextYear",
		"stop", "suspend", "setMetadata", "",
	} {
		p, fake := open(t, gcefake.Options{})
		l := launch("burst-1")
		i := create(t, p, l)
		fake.Record("eu-test1-a", name(i), kind)
		fake.Vanish("eu-test1-a", name(i))
		_, err := p.Find(t.Context(), l)
		want(t, err, cloud.NotFound, "no operation proves its end")
		want(t, p.Terminate(t.Context(), i), cloud.NotFound, "notFound")
		if _, err := p.Create(t.Context(), l); err == nil {
			t.Errorf("after %q the launch has an instance", kind)
		} else {
			want(t, err, cloud.Unknown, "notFound") // the token's instance may exist
		}
	}
}

// A delete names the instance by its number. The link of its operation counts with the name and with the
// number.
func TestDeletesByNumberProveTheEnd(t *testing.T) {
	t.Parallel()
	for _, numbers := range []bool{false, true} {
		p, _ := open(t, gcefake.Options{LinkNumbers: numbers})
		l := launch("burst-1")
		i := create(t, p, l)
		for range 2 {
			if err := p.Terminate(t.Context(), i); err != nil {
				t.Fatalf("links to numbers %t: %v", numbers, err)
			}
		}
		wantFound(t, p, l, i.ID, cloud.Terminated, "delete")
		_, err := p.Create(t.Context(), l)
		want(t, err, cloud.Mismatch, "the instance of this token has ended")
	}
}

// The operation of a delete may lie: an instance that GCE shows is not gone.
func TestDeleteMayLie(t *testing.T) {
	t.Parallel()
	p, fake := open(t, gcefake.Options{})
	l := launch("burst-1")
	i := create(t, p, l)
	fake.Inject(gcefake.Fault{Action: "delete", Kind: gcefake.Ignore})
	if err := p.Terminate(t.Context(), i); err != nil {
		t.Fatal(err)
	}
	wantFound(t, p, l, i.ID, cloud.Running, "")
	if err := p.Terminate(t.Context(), i); err != nil { // the repetition is no repetition for GCE
		t.Fatal(err)
	}
	wantFound(t, p, l, i.ID, cloud.Terminated, "delete")
	if fake.Status("eu-test1-a", name(i)) != "" {
		t.Error("the instance runs on")
	}
}

// The name of a deleted instance is free: the operations on its successor prove nothing about it.
func TestOperationsCountForOneNumber(t *testing.T) {
	t.Parallel()
	p, fake := open(t, gcefake.Options{Dedupe: time.Hour})
	l := launch("burst-1")
	first := create(t, p, l)
	fake.Vanish("eu-test1-a", name(first))
	fake.Advance(2 * time.Hour)
	second := create(t, p, l) // GCE has forgotten the request id, and its name is free
	if first.ID == second.ID {
		t.Fatal("the number is not another one")
	}
	want(t, p.Terminate(t.Context(), first), cloud.NotFound, "notFound")
	if status := fake.Status("eu-test1-a", name(second)); status != "RUNNING" {
		t.Errorf("the successor is %q after the first instance was terminated", status)
	}
	if err := p.Terminate(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	_, err := p.Find(t.Context(), l) // the first one is not proved to be gone
	want(t, err, cloud.NotFound, "no operation proves its end")
	want(t, p.Terminate(t.Context(), first), cloud.NotFound, "notFound")
	if err := p.Terminate(t.Context(), second); err != nil {
		t.Error(err)
	}
}

// TERMINATED is GCE's word for a stopped instance, which exists.
func TestStoppedInstancesAreNotGone(t *testing.T) {
	t.Parallel()
	p, fake := open(t, gcefake.Options{})
	l := launch("burst-1")
	i := create(t, p, l)
	fake.Stop("eu-test1-a", name(i))
	wantFound(t, p, l, i.ID, cloud.Ending, "TERMINATED")
	_, err := p.Create(t.Context(), l)
	want(t, err, cloud.Mismatch, i.ID)
	if err := p.Terminate(t.Context(), i); err != nil {
		t.Fatal(err)
	}
	wantFound(t, p, l, i.ID, cloud.Terminated, "delete")
}

// A list without one of the zones would look as if its instances were gone.
func TestListIsWholeOrFails(t *testing.T) {
	t.Parallel()
	p, fake := open(t, gcefake.Options{})
	create(t, p, launch("burst-1"))
	l := launch("burst-2")
	l.Offering.Region, l.Offering.Zone = "eu-test2", "eu-test2-a"
	l.Settings = []byte(`{"image": "projects/p/global/images/i", "agent": {"url": "https://x.example", "sha256": "` + hash + `"}}`)
	create(t, p, l)
	both := []string{"eu-test1", "eu-test2"}
	if all, err := p.List(t.Context(), uid, both); err != nil || len(all) != 2 {
		t.Fatalf("%+v, %v", all, err)
	}
	for _, how := range []string{gcefake.Unreachable, gcefake.Warning, gcefake.Absent} {
		fake.Break("eu-test2-a", how)
		all, err := p.List(t.Context(), uid, both)
		want(t, err, cloud.Unknown, "eu-test2")
		if all != nil {
			t.Errorf("%s: the list is %+v", how, all)
		}
		// Another region does not concern it.
		if all, err := p.List(t.Context(), uid, both[:1]); err != nil || len(all) != 1 {
			t.Errorf("%s: the list of the other region is %+v, %v", how, all, err)
		}
	}
	fake.Break("eu-test2-a", gcefake.Whole)
	_, err := p.List(t.Context(), uid, []string{"eu-test1", "eu-test9"})
	want(t, err, cloud.Unknown, "no zone of region eu-test9")
	_, err = p.List(t.Context(), uid, nil)
	want(t, err, cloud.Spec, "name the regions")
}

// GCE takes no other characters in labels. The exact value is in the metadata.
func TestClustersWithOtherCharactersAreListed(t *testing.T) {
	t.Parallel()
	p, _ := open(t, gcefake.Options{})
	l := launch("burst-1")
	l.Cluster = "Cluster/Eins"
	create(t, p, l)
	create(t, p, launch("burst-2"))
	all, err := p.List(t.Context(), l.Cluster, []string{"eu-test1"})
	if err != nil || len(all) != 1 || all[0].Cluster != l.Cluster {
		t.Errorf("%+v, %v", all, err)
	}
}
