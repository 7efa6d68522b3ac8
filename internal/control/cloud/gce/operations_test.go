package gce_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"berth/internal/control/cloud"
	"berth/internal/control/cloud/gce"
	"berth/internal/control/cloud/gce/gcefake"
)

// Refusals arrive in the operation of the insert, after the call has succeeded.
func TestOperationErrorsHaveKinds(t *testing.T) {
	t.Parallel()
	offer := "eu-test1/eu-test1-a/g2-standard-8/spot"
	for _, c := range []struct {
		status        int
		code, message string
		kind          cloud.Kind
		scope         string
	}{
		{503, "ZONE_RESOURCE_POOL_EXHAUSTED", "not enough resources", cloud.Capacity, offer},
		{503, "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "not enough resources", cloud.Capacity, offer},
		{403, "QUOTA_EXCEEDED", "Quota 'NVIDIA_L4_GPUS' exceeded.  Limit: 1.0 in region eu-test1.", cloud.Quota,
			"eu-test1/NVIDIA_L4_GPUS"},
		{403, "QUOTA_EXCEEDED", "Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 0.0 globally.", cloud.Quota,
			"global/GPUS_ALL_REGIONS"},
		{403, "QUOTA_EXCEEDED", "words of next year", cloud.Quota, "eu-test1"},
		{400, "IP_SPACE_EXHAUSTED", "the subnetwork is full", cloud.Network, "eu-test1/eu-test1-a"},
		// The token is used up: a repetition would always get the same failed operation.
		{429, "RESOURCE_OPERATION_RATE_EXCEEDED", "too many", cloud.Capacity, offer},
		{403, "rateLimitExceeded", "too many", cloud.Capacity, offer},
		{403, "PERMISSIONS_ERROR", "no right to use the image", cloud.Auth, gcefake.Project},
		{404, "RESOURCE_NOT_FOUND", "no image", cloud.Spec, offer},
		{404, "RESOURCE_NOT_FOUND", "The resource 'zones/eu-test1-a/machineTypes/g2-standard-8' was not found",
			cloud.Spec, "g2-standard-8"},
		{400, "CODE_OF_NEXT_YEAR", "words", cloud.Spec, offer},
		{500, "INTERNAL_ERROR", "try again", cloud.Unknown, ""},
		{503, "CODE_OF_NEXT_YEAR", "words", cloud.Unknown, ""},
	} {
		p, fake := open(t, gcefake.Options{Insert: 0})
		l := launch("burst-1")
		fake.Inject(gcefake.Fault{Kind: gcefake.Inside, Status: c.status, Reason: c.code, Message: c.message})
		for n := range 2 { // GCE answers a repetition with the same operation
			_, err := p.Create(t.Context(), l)
			if e := want(t, err, c.kind, c.code); e.Scope != c.scope {
				t.Errorf("call %d: %s has the scope %q, want %q", n+1, c.code, e.Scope, c.scope)
			}
		}
		if n := len(fake.Instances()); n != 0 {
			t.Errorf("%s: there are %d instances", c.code, n)
		}
		// The failed operation proves that the instance does not exist.
		if i, err := p.Find(t.Context(), l); err != nil || i.State != cloud.Terminated || i.Reason != c.code {
			t.Errorf("%s: found %+v, %v", c.code, i, err)
		}
	}
}

// A type that the zone does not have closes its offering, by a wrong line in the file of offers. A field of the
// settings closes the pool.
func TestATypeThatTheZoneDoesNotHaveIsTheScope(t *testing.T) {
	t.Parallel()
	offer := "eu-test1/eu-test1-a/g2-standard-8/spot"
	for message, scope := range map[string]string{
		"The resource 'projects/p/zones/eu-test1-a/machineTypes/g2-standard-8' was not found":  "g2-standard-8",
		"The resource 'projects/p/zones/eu-test1-a/machineTypes/g2-standard-80' was not found": offer,
		"The resource 'projects/p/global/images/g2-standard-8' was not found":                  offer,
		"Invalid value for field 'resource.machineType': 'zones/eu-test1-a/machineTypes/g2-standard-8'. " +
			"The referenced resource does not exist.": "g2-standard-8",
	} {
		status, reason := http.StatusNotFound, "notFound"
		if strings.HasPrefix(message, "Invalid") {
			status, reason = http.StatusBadRequest, "invalid"
		}
		p, fake := open(t, gcefake.Options{})
		fake.Inject(gcefake.Fault{Kind: gcefake.Refuse, Status: status, Reason: reason, Message: message})
		_, err := p.Create(t.Context(), launch("burst-1"))
		if e := want(t, err, cloud.Spec, reason); e.Scope != scope {
			t.Errorf("%s: the scope is %q, want %q", message, e.Scope, scope)
		}
	}
}

func TestStockAndQuotasAreKinds(t *testing.T) {
	t.Parallel()
	p, fake := open(t, gcefake.Options{
		Stock: map[string]int{gcefake.Key("eu-test1-a", "g2-standard-8", "SPOT"): 1}, Quota: map[string]int{"eu-test1": 2},
	})
	first := create(t, p, launch("burst-1"))
	second := launch("burst-2")
	_, err := p.Create(t.Context(), second)
	want(t, err, cloud.Capacity, "ZONE_RESOURCE_POOL_EXHAUSTED")
	second.N, second.Offering.Zone = 2, "eu-test1-b"
	second.Token = cloud.Token(uid, "1", second.Machine, 2)
	create(t, p, second)
	_, err = p.Create(t.Context(), launch("burst-3"))
	if e := want(t, err, cloud.Quota, "QUOTA_EXCEEDED"); e.Scope != "eu-test1/NVIDIA_L4_GPUS" {
		t.Errorf("scope %s", e.Scope)
	}
	fake.Preempt("eu-test1-a", name(first))
	create(t, p, launch("burst-4"))
}

// An operation that has not ended is an unknown outcome, and the repetition waits on.
func TestUnfinishedOperationIsUnknown(t *testing.T) {
	t.Parallel()
	p, fake := openWith(t, gcefake.Options{Insert: time.Minute}, gce.Options{Wait: 100 * time.Millisecond})
	l := launch("burst-1")
	_, err := p.Create(t.Context(), l)
	want(t, err, cloud.Unknown, "is RUNNING after 100ms")
	if i, err := p.Find(t.Context(), l); err != nil || i.State != cloud.Pending {
		t.Errorf("while it is created: %+v, %v", i, err)
	}
	fake.Advance(time.Minute)
	create(t, p, l)
	if n := len(fake.Instances()); n != 1 {
		t.Errorf("there are %d instances", n)
	}
}

// A refusal that comes after the end of the wait is seen by the repetition. Until then GCE shows an
// instance that never runs.
func TestLateRefusalIsSeenByTheRepetition(t *testing.T) {
	t.Parallel()
	p, fake := openWith(t, gcefake.Options{
		Insert: time.Minute, Stock: map[string]int{gcefake.Key("eu-test1-a", "g2-standard-8", "SPOT"): 0},
	}, gce.Options{Wait: 50 * time.Millisecond})
	l := launch("burst-1")
	_, err := p.Create(t.Context(), l)
	want(t, err, cloud.Unknown, "is RUNNING")
	shown, err := p.Find(t.Context(), l)
	if err != nil || shown.State != cloud.Pending {
		t.Fatalf("while it is created: %+v, %v", shown, err)
	}
	fake.Advance(time.Minute)
	_, err = p.Create(t.Context(), l)
	want(t, err, cloud.Capacity, "ZONE_RESOURCE_POOL_EXHAUSTED")
	wantFound(t, p, l, shown.ID, cloud.Terminated, "ZONE_RESOURCE_POOL_EXHAUSTED")
}

// Failed reads of the operation say nothing about the insert.
func TestFailedReadsOfTheOperationAreRepeated(t *testing.T) {
	t.Parallel()
	p, fake := openWith(t, gcefake.Options{Insert: time.Minute}, gce.Options{Wait: time.Minute})
	for range 3 {
		fake.Inject(gcefake.Fault{Action: "operation", Kind: gcefake.Refuse, Status: 403, Reason: "forbidden"})
	}
	l := launch("burst-1")
	done := make(chan error, 1)
	go func() {
		_, err := p.Create(t.Context(), l)
		done <- err
	}()
	for fake.Calls("operation") < 4 {
		time.Sleep(time.Millisecond)
	}
	fake.Advance(time.Minute)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// GCE does not show a new instance at once, so an instance that is not shown may exist.
func TestNewInstancesShowLate(t *testing.T) {
	t.Parallel()
	p, fake := open(t, gcefake.Options{Lag: time.Minute})
	l := launch("burst-1")
	_, err := p.Create(t.Context(), l)
	want(t, err, cloud.Unknown, "notFound")
	_, err = p.Find(t.Context(), l)
	want(t, err, cloud.NotFound, "no operation proves its end")
	fake.Advance(time.Minute)
	i := create(t, p, l)
	wantFound(t, p, l, i.ID, cloud.Running, "")
	if n := len(fake.Instances()); n != 1 {
		t.Errorf("there are %d instances", n)
	}
}

// A name that is in use belongs to the launch, or to another instance.
func TestUsedNamesAreReadAndCompared(t *testing.T) {
	t.Parallel()
	p, fake := open(t, gcefake.Options{Dedupe: time.Hour})
	l := launch("burst-1")
	i := create(t, p, l)
	fake.Advance(2 * time.Hour) // GCE has forgotten the request id
	if again := create(t, p, l); again.ID != i.ID {
		t.Errorf("the repetition returned %s, not %s", again.ID, i.ID)
	}
	other := l
	other.Bootstrap.JoinToken += "2"
	_, err := p.Create(t.Context(), other)
	want(t, err, cloud.Mismatch, i.ID)
	// A name may also turn out to be in use inside of the operation.
	fake.Inject(gcefake.Fault{Action: "insert", Kind: gcefake.Refuse, Status: 409, Reason: "alreadyExists"})
	fake.Inject(gcefake.Fault{Action: "get", Kind: gcefake.Refuse, Status: 503, Reason: "backendError"})
	_, err = p.Create(t.Context(), l)
	want(t, err, cloud.Mismatch, "alreadyExists")
	fake.Unmark("eu-test1-a", name(i)) // someone has removed the metadata
	_, err = p.Create(t.Context(), l)
	want(t, err, cloud.Mismatch, i.ID)
	wantFound(t, p, l, i.ID, cloud.Running, "")
	if n := len(fake.Instances()); n != 1 {
		t.Errorf("there are %d instances", n)
	}
}

// Two clusters, and a restored database, may use one machine name with one number.
func TestNamesDifferByToken(t *testing.T) {
	t.Parallel()
	p, fake := open(t, gcefake.Options{})
	l := launch("burst-1")
	restored := l
	restored.Token = cloud.Token(uid, "2", l.Machine, 1)
	if a, b := create(t, p, l), create(t, p, restored); a.ID == b.ID {
		t.Error("another token returned the same instance")
	}
	long := launch("a-very-long-name-of-a-machine-that-goes-on-and-on-and-on-and-on")
	if n := len(name(create(t, p, long))); n > 63 {
		t.Errorf("a name has %d characters", n)
	}
	if n := len(fake.Instances()); n != 3 {
		t.Errorf("there are %d instances", n)
	}
}
