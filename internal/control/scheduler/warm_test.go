package scheduler

import (
	"testing"
	"time"

	"berth/db"
	"berth/db/dbtest"
	"berth/spec"
)

func TestAStandbyReadsAlong(t *testing.T) {
	t.Parallel()
	d, err := db.Open(t.Context(), dbtest.URL(t), db.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	queue := func() {
		t.Helper()
		job, _, err := d.Jobs.Submit(t.Context(), db.Submission{Tenant: "default", Actor: "user:test", Spec: spec.Job{Name: "x", Image: "busybox"}.WithDefaults()})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.Jobs.Load(t.Context(), job.ID); err != nil {
			t.Fatal(err)
		}
	}
	s := New(Options{DB: d})
	// The feed waits for transactions under way anywhere in the cluster, and
	// other tests have some.
	sees := func(n int, look func() *mirror) {
		t.Helper()
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for limit := time.Now().Add(10 * time.Minute); ; <-tick.C {
			m := look()
			if m != nil && m.snapshot.Jobs() == n {
				return
			}
			if time.Now().After(limit) {
				t.Fatalf("after %d jobs it has %+v", n, m)
			}
		}
	}
	for n := range 3 {
		sees(n, func() *mirror { s.keepWarm(t.Context()); return s.warm })
		queue()
	}
	marks := &marks{}
	m := s.takeWarm(marks)
	if m.snapshot.Jobs() != 2 || m.marks != marks || m.metrics != s.Metrics || s.warm != nil {
		t.Errorf("a leader gets %+v", m)
	}
	sees(3, func() *mirror {
		if _, err := m.read(t.Context(), db.Hinted{}); err != nil {
			t.Fatal(err)
		}
		return m
	})
}
