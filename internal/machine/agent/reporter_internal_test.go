package agent

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"berth"
	"berth/wire"
)

func testReporter(alloc berth.AllocationID) *reporter {
	return newReporter(&identity{alloc: alloc}, slog.New(slog.DiscardHandler), func() {})
}

func TestTheAnswerToAnOlderReportLeavesTheNewerOneDue(t *testing.T) {
	t.Parallel()
	r := testReporter(1)
	r.enter(0, berth.PhasePrepared)
	old, version, _ := r.present()
	r.enter(0, berth.PhaseRunning)
	if r.delivered(old, version); r.dueAt().IsZero() {
		t.Error("the newer report is not due any more")
	}
	now, version, _ := r.present()
	if r.delivered(now, version); !r.dueAt().IsZero() {
		t.Error("a delivered report is still due")
	}
	if r.again(); r.dueAt().IsZero() {
		t.Error("a new session does not get the report again")
	}
}

func TestWarningsAreReportedOnceAndTogether(t *testing.T) {
	t.Parallel()
	r := testReporter(1)
	r.warn("a")
	r.warn("b")
	both, version, _ := r.present()
	if both.Warning != "a; b" {
		t.Errorf("the warning is %q", both.Warning)
	}
	r.delivered(both, version)
	if p, _, _ := r.present(); p.Warning != "" {
		t.Errorf("after its delivery the warning is %q", p.Warning)
	}
	r.warn("c")
	r.delivered(both, version) // a late answer, to the report before
	if p, _, _ := r.present(); p.Warning != "c" {
		t.Errorf("an answer to the report before has removed warning c: %q", p.Warning)
	}
}

func TestAMemberIsRecordedOnceItsSealIsDelivered(t *testing.T) {
	t.Parallel()
	r := testReporter(1)
	recorded := func() bool {
		select {
		case <-r.recorded:
			return true
		default:
			return false
		}
	}
	for _, phase := range []berth.Phase{berth.PhaseRunning, berth.PhaseExited} {
		r.enter(0, phase)
		if p, version, _ := r.present(); p.Unwaited {
			t.Errorf("%s asks to notify the workflow", phase)
		} else if r.delivered(p, version); recorded() {
			t.Errorf("recorded by %s", phase)
		}
	}
	r.enter(0, berth.PhaseSealed)
	p, version, _ := r.present()
	if !p.Unwaited {
		t.Error("a seal does not ask to notify the workflow")
	}
	for range 2 { // an answer may be repeated
		if r.delivered(p, version); !recorded() {
			t.Error("not recorded by the seal")
		}
	}
}

func TestARefusedReportDelaysNoOtherMember(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	o := newOutbox(Timing{RefusedPause: time.Hour}, &holdings{}, newGPUHealth(nil, log), log)
	members := map[berth.AllocationID]*reporter{}
	for id := range berth.AllocationID(3) {
		members[id] = testReporter(id)
		members[id].enter(0, berth.PhasePrepared)
		o.add(id, members[id])
	}
	o.addGone(7)
	now := time.Now()
	b, _ := o.collect(now)
	if len(b.reports) != 3 || !slices.Equal(b.gone, []berth.AllocationID{7}) {
		t.Fatalf("collected %d reports and %v", len(b.reports), b.gone)
	}
	o.delivered(b, []wire.Refused{{Alloc: 1, Detail: "no"}})
	b, due := o.collect(now)
	if len(b.reports)+len(b.gone) > 0 {
		t.Errorf("still due are %v and %v", b.reports, b.gone)
	}
	if wait := due.Sub(now); wait < 59*time.Minute || wait > 61*time.Minute {
		t.Errorf("the refused report is due in %s, want RefusedPause", wait)
	}
	if o.isGone(7) {
		t.Error("the end of an allocation is reported again")
	}
}

func TestChangesOfGPUsStayUntilTheyAreDelivered(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	h := newGPUHealth(nil, log)
	o := newOutbox(Timing{}, &holdings{}, h, log)
	h.note([]berth.GPU{{UUID: "a", Healthy: true}})
	if b, _ := o.collect(time.Now()); len(b.gpus) > 0 {
		t.Errorf("a registration's devices are reported again: %v", b.gpus)
	}
	if !h.update(nil) || h.fault([]string{"a"}) == "" {
		t.Error("a device that is gone counts as healthy")
	}
	b, _ := o.collect(time.Now())
	o.undelivered(b)
	again, _ := o.collect(time.Now())
	if len(b.gpus) != 1 || len(again.gpus) != 1 {
		t.Errorf("reported %v, and after a failed call %v", b.gpus, again.gpus)
	}
	if last, _ := o.collect(time.Now()); len(last.gpus) > 0 {
		t.Errorf("reported without a change: %v", last.gpus)
	}
}
