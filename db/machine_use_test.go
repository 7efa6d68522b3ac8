package db_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"berth"
	"berth/db"
	"berth/wire"
)

// The last report of the machine's present session is shown, for as long as it is recent.
func TestMeasuredUseIsShownWhileItIsRecent(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	report := func(boot string, cpu int64) error {
		busy, mib := 0.25, int64(512)
		return s.db.Agents.ReportUse(t.Context(), a.machine, wire.UseReport{AgentBoot: boot, Epoch: a.epoch,
			Use: wire.Use{CPUMilli: cpu, MemoryMiB: 100, GPUs: []wire.GPUNow{{UUID: "GPU-1", Busy: &busy, MemoryMiB: &mib}}}})
	}
	if m := s.machine("", a.machine); m.Measured != nil {
		t.Errorf("without a report the use is %+v", m.Measured)
	}
	for _, cpu := range []int64{1500, 250} {
		if err := report(a.boot, cpu); err != nil {
			t.Fatal(err)
		}
	}
	if err := report("agent0", 9000); !berth.IsSlug(err, berth.SlugStaleEpoch) {
		t.Errorf("a session that is over got %v", err)
	}
	m := s.machine("", a.machine).Measured
	if m == nil || m.CPUMilli != 250 || m.MemoryMiB != 100 || m.At.IsZero() || len(m.GPUs) != 1 ||
		*m.GPUs[0].Busy != 0.25 || *m.GPUs[0].MemoryMiB != 512 {
		t.Errorf("the use is %+v", m)
	}
	mustExec(t, s.pool, `UPDATE machine_use SET at = now() - make_interval(secs => $1)`, wire.UseAge.Seconds()+1)
	if m := s.machine("", a.machine); m.Measured != nil {
		t.Errorf("an old report is shown: %+v", m.Measured)
	}
	if err := report(a.boot, 10); err != nil {
		t.Fatal(err)
	}
	mustExec(t, s.pool, `UPDATE machines SET state = 'lost', epoch = epoch + 1`)
	if m := s.machine("", a.machine); m.Measured != nil {
		t.Errorf("the use of a lost machine is shown: %+v", m.Measured)
	}
	if err := report(a.boot, 10); !berth.IsSlug(err, berth.SlugStaleEpoch) {
		t.Errorf("a lost machine got %v", err)
	}
}

func TestUseThatNoMachineHasIsRefused(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	much, negative := 1.5, int64(-1)
	for _, bad := range []wire.Use{
		{CPUMilli: -1}, {MemoryMiB: 1 << 50}, {GPUs: []wire.GPUNow{{UUID: "GPU-1", Busy: &much}}},
		{GPUs: []wire.GPUNow{{UUID: "GPU-1", MemoryMiB: &negative}}}, {GPUs: []wire.GPUNow{{}}},
		{GPUs: make([]wire.GPUNow, 2000)}, {DiskFree: &much},
	} {
		err := s.db.Agents.ReportUse(t.Context(), a.machine, wire.UseReport{AgentBoot: a.boot, Epoch: a.epoch, Use: bad})
		if berth.CodeOf(err) != berth.CodeInvalid {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// The use of the fleet counts machines in contact, while their reports are recent.
func TestUseOfTheFleet(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	mustExec(t, s.pool, `DELETE FROM gpu_devices`)
	mustExec(t, s.pool, `INSERT INTO gpu_devices (machine_id, idx, uuid, model, mem_mb)
		SELECT $1, i, 'GPU-' || i, CASE WHEN i < 2 THEN 'A100' ELSE 'L4' END, 1 FROM generate_series(0, 2) i`, a.machine)
	shows := func(want db.FleetUse, when string) {
		t.Helper()
		got, err := s.db.Machines.FleetUse(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s the use is (-want +got):\n%s", when, diff)
		}
	}
	half, quarter, full := 0.5, 0.25, 0.0
	for _, c := range []struct {
		use  wire.Use
		want db.FleetUse
		when string
	}{
		{wire.Use{CPUMilli: 1500, MemoryMiB: 7}, db.FleetUse{CPUMilli: 1500, MemoryMiB: 7}, "without disk and GPUs"},
		{wire.Use{DiskFree: &full, GPUs: []wire.GPUNow{{UUID: "GPU-0", Busy: &half}, {UUID: "GPU-1", Busy: &quarter},
			{UUID: "GPU-2"}, {UUID: "GPU-9", Busy: &half}}},
			db.FleetUse{BusyGPUs: map[string]float64{"A100": 0.75}, FreeDisk: map[berth.MachineID]float64{a.machine: 0}},
			"with a full disk, a device that was not measured and one that is not known"},
	} {
		err := s.db.Agents.ReportUse(t.Context(), a.machine,
			wire.UseReport{AgentBoot: a.boot, Epoch: a.epoch, Use: c.use})
		if err != nil {
			t.Fatal(err)
		}
		shows(c.want, c.when)
	}
	mustExec(t, s.pool, `UPDATE machines SET state = 'lost', epoch = epoch + 1`)
	shows(db.FleetUse{}, "of a lost machine")
	mustExec(t, s.pool, `UPDATE machines SET state = 'ready', epoch = epoch + 1`)
	mustExec(t, s.pool, `UPDATE machine_use SET at = now() - make_interval(secs => $1)`, wire.UseAge.Seconds()+1)
	shows(db.FleetUse{}, "after an old report")
}
