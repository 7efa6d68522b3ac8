package local_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"berth"
	"berth/internal/control/cloud"
	"berth/internal/control/cloud/local"
)

var small = cloud.Offering{Region: "here", Type: "small", Market: cloud.OnDemand}

func launch(name berth.MachineID) cloud.Launch {
	return cloud.Launch{
		Token: cloud.Token("cluster", "1", name, 1), Cluster: "cluster", Pool: "burst", Machine: name, N: 1,
		Offering: small, Bootstrap: cloud.Bootstrap{URL: "http://127.0.0.1:1", JoinToken: "token"},
	}
}

// An engine that cannot be destroyed is a fault of its instance alone: other instances are created, listed and end.
func TestEngineThatStaysConcernsOneInstance(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	var broken atomic.Value // the folder of the machine
	broken.Store("")
	o := local.Options{
		Dir: filepath.Join(t.TempDir(), "machines"), Program: "/bin/true", Most: 2,
		Offers: []cloud.Offer{{Offering: small, CPUs: 1, MemoryMiB: 512}},
		Engines: &local.Engines{
			// A machine that leaves its engine and ends at once.
			Host: []string{"/bin/sh", "-c", `mkdir "${1#--engine=}"`, "machine"},
			Destroy: func(_ context.Context, folder string) error {
				if filepath.Base(filepath.Dir(folder)) == broken.Load() {
					return errors.New("a mount is busy")
				}
				return nil
			},
		},
	}
	p, err := local.New(o)
	if err != nil {
		t.Fatal(err)
	}
	bad := launch("burst-1")
	broken.Store(bad.Token)
	i, err := p.Create(ctx, bad)
	if err != nil {
		t.Fatal(err)
	}
	busy := func(err error) bool {
		var e *cloud.Error
		return errors.As(err, &e) && e.Kind == cloud.Unknown && strings.Contains(err.Error(), "a mount is busy")
	}
	await(t, "the end of the process", func() bool {
		_, err := p.Find(ctx, bad)
		return busy(err)
	})
	if _, err := p.Create(ctx, launch("burst-2")); err != nil {
		t.Errorf("another machine is not created: %v", err)
	}
	states := func() map[berth.MachineID]cloud.Instance {
		t.Helper()
		all, err := p.List(ctx, "cluster", []string{"here"})
		if err != nil {
			t.Fatal(err)
		}
		states := map[berth.MachineID]cloud.Instance{}
		for _, i := range all {
			states[i.Machine] = i
		}
		return states
	}
	await(t, "the end of the other machine", func() bool {
		return states()["burst-2"].State == cloud.Terminated
	})
	if i := states()["burst-1"]; i.State != cloud.Ending || !strings.Contains(i.Reason, "a mount is busy") {
		t.Errorf("the machine with the engine is listed as %+v", i)
	}
	if err := p.Terminate(ctx, i); !busy(err) {
		t.Errorf("Terminate: %v", err)
	}
	if _, err := p.Reclaim(ctx, "burst-1", 0); !busy(err) {
		t.Errorf("Reclaim: %v", err)
	}
	o.Most = 1
	full, err := local.New(o)
	if err != nil {
		t.Fatal(err)
	}
	var e *cloud.Error
	if _, err := full.Create(ctx, launch("burst-3")); !errors.As(err, &e) || e.Kind != cloud.Capacity {
		t.Errorf("the machine does not count as one that exists: %v", err)
	}
	broken.Store("")
	if i := states()["burst-1"]; i.State != cloud.Terminated {
		t.Errorf("after the mend it is %+v", i)
	}
}

func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for limit := time.After(10 * time.Minute); !done(); { // machines that run tests are busy
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("waited in vain for %s", what)
		}
	}
}
