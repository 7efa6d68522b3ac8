package agent_test

import (
	"slices"
	"testing"

	"berth/spec"
	"berth/wire"
)

func TestInputsAreInPlaceAndOnesOwn(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	fetched := s.uploadsFetched()
	m := s.machine("m1")
	code, data := s.upload(map[string]string{"main.txt": "code"}), s.upload(map[string]string{"part/a.txt": "data"})
	for _, how := range []string{"fetched", "reused cached "} {
		id := s.submit(func(j *spec.Job) {
			j.Workdir = string(code)
			j.Inputs = []spec.Input{{From: string(data), To: "/data"}, {From: string(data), To: "/more"}}
		}, "do", "read-file /workspace/main.txt", "write-file /data/part/a.txt changed", "read-file /data/part/a.txt", "read-file /more/part/a.txt")
		req, w := m.run(id)
		if x := w.exit(); x.Code != 0 {
			t.Fatalf("exit is %+v; log %q", x, s.log(id, 1))
		}
		if got := s.log(id, 1); !slices.Equal(got, []string{"code", "changed", "data"}) {
			t.Errorf("it prints %q", got)
		}
		if !s.hasEvent(id, wire.EventFetched, how) || !s.hasEvent(id, wire.EventFetched, "inputs[1] ") {
			t.Errorf("events %+v", s.events(id))
		}
		s.settle(id)
		m.cleared(req)
	}
	if n := fetched.Load(); n != 2 {
		t.Errorf("%d archives were fetched", n)
	}
}

func TestDockerMountsInputs(t *testing.T) {
	t.Parallel()
	s, m := dockerMachine(t)
	data := s.upload(map[string]string{"a.txt": "data"})
	id := s.submit(func(j *spec.Job) { j.Inputs = []spec.Input{{From: string(data), To: "/data"}} },
		"do", "read-file /data/a.txt", "write-file /data/b.txt more", "read-file /data/b.txt")
	_, w := m.run(id)
	if x := w.exit(); x.Code != 0 {
		t.Errorf("exit is %+v", x)
	}
	if got := s.log(id, 1); !slices.Equal(got, []string{"data", "more"}) {
		t.Errorf("it prints %q", got)
	}
}
