package agent_test

import (
	"strings"
	"testing"

	"berth"
	"berth/spec"
	"berth/wire"
)

// quota sets the storage limits of the tenant that the jobs belong to.
func (s *site) quota(l spec.StorageLimits) {
	s.t.Helper()
	if err := s.db.Tenants.SetQuota(s.t.Context(), spec.Quota{Tenant: "default", Storage: &l}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) eventsOf(id berth.JobID, kind wire.EventKind) (list []wire.Event) {
	for _, e := range s.events(id) {
		if e.Kind == kind {
			list = append(list, e)
		}
	}
	return list
}

func TestAnOutputOverQuotaFailsItsJobWithTheQuotaAsReason(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.quota(spec.StorageLimits{Outputs: ptr(spec.MiB(0))})
	m := s.machine("m1")
	id := s.submit(leaving("/workspace/x"), "write-file", "/workspace/x", "weights")
	_, w := m.run(id)
	if x := w.exit(); x.Code != 0 {
		t.Fatalf("exit is %+v", x)
	}
	j := s.settle(id)
	if j.Status != berth.Failed || j.Reason.Code != berth.ReasonStorageQuota || !strings.Contains(j.Reason.Message, "model (/workspace/x)") ||
		!strings.Contains(j.Reason.Message, "tenant default stores 0 bytes of outputs, and its quota is 0 bytes") {
		t.Errorf("job is %s, %+v", j.Status, j.Reason)
	}
}

func TestACheckpointOverQuotaIsRefusedAndTheJobRunsOn(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(checkpointed(2), "train", "/checkpoint", "100000", "5ms", "5")
	_, w := m.run(id)
	s.until("two checkpoints are stored", func() bool { return len(s.verified(id)) == 2 })
	s.quota(spec.StorageLimits{Checkpoints: ptr(spec.MiB(0))})
	s.until("checkpoints are refused", func() bool { return len(s.eventsOf(id, wire.EventCheckpointRefused)) > 0 })
	kept := s.verified(id)[0]
	s.until("more of them are refused", func() bool {
		n := 0
		for _, c := range s.job(id).Checkpoints {
			if c.State == berth.CheckpointPruned && c.Step > kept {
				n++
			}
		}
		return n >= 3
	})
	if got := s.verified(id); len(got) != 2 || got[0] != kept {
		t.Errorf("verified are %v, and %d was the newest", got, kept)
	}
	s.quota(spec.StorageLimits{Checkpoints: ptr(spec.MiB(100))})
	s.until("checkpoints are stored again", func() bool { return s.verified(id)[0] > kept })
	if n := len(s.eventsOf(id, wire.EventCheckpointRefused)); n != 1 {
		t.Errorf("%d events of refused checkpoints", n)
	}
	m.runtime.Exit(berth.ContainerName(id, 0, 1), 1)
	w.exit()
}

func TestALogOverQuotaIsCutWithANote(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(nil, "do", "lines 100000 2ms")
	_, w := m.run(id)
	s.until("a part of the log is stored", func() bool { return len(s.log(id, 1)) > 20 })
	s.quota(spec.StorageLimits{Logs: ptr(spec.MiB(0))})
	s.until("the log is cut", func() bool { return len(s.eventsOf(id, wire.EventLogCut)) > 0 })
	m.restart() // the next process goes on in the same log
	m.runtime.Exit(berth.ContainerName(id, 0, 1), 5)
	if x := w.exit(); x.Code != 5 {
		t.Errorf("exit is %+v", x)
	}
	log := s.log(id, 1)
	last := log[len(log)-1]
	if !strings.HasPrefix(last, "berth: the rest of this log is not stored: ") || !strings.Contains(last, "tenant default stores") {
		t.Errorf("the log ends with %q", last)
	}
	if strings.Count(strings.Join(log, "\n"), "berth: the rest") != 1 {
		t.Errorf("the log has %d lines: %q", len(log), log)
	}
	if n := len(s.eventsOf(id, wire.EventLogCut)); n != 1 {
		t.Errorf("%d events of a cut log", n)
	}
}
