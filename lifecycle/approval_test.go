package lifecycle_test

import (
	"strings"
	"testing"

	"berth/lifecycle"
	"berth/spec"
	"berth/wire"
)

// approvedMachine is the equipment that the cases below differ from.
func approvedMachine() wire.Equipment {
	return wire.Equipment{CPUMilli: 16000, MemoryMiB: 64 << 10, Pool: "gpu", Region: "eu", Site: "on_prem",
		Labels: map[string]string{"rack": "r7", "berth.volume.data": "yes"},
		GPUs:   []wire.EquipmentGPU{{UUID: "GPU-a", Model: "A100", MemoryMiB: 81920}, {UUID: "GPU-b", Model: "A100", MemoryMiB: 81920}}}
}

func TestEquipmentThatDiffersFromItsApprovalIsHeld(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*wire.Equipment)
		held   string // part of the reason; empty: the machine gets work
	}{
		"same":            {func(*wire.Equipment) {}, ""},
		"fewer GPUs":      {func(e *wire.Equipment) { e.GPUs = e.GPUs[:1] }, ""},
		"less memory":     {func(e *wire.Equipment) { e.MemoryMiB /= 2 }, ""},
		"memory, a bit":   {func(e *wire.Equipment) { e.MemoryMiB += 100 }, ""},
		"memory doubled":  {func(e *wire.Equipment) { e.MemoryMiB *= 2 }, "memory 128GiB, was 64GiB"},
		"more CPUs":       {func(e *wire.Equipment) { e.CPUMilli = 16500 }, "16.5 CPUs, were 16"},
		"another GPU":     {func(e *wire.Equipment) { e.GPUs[1].UUID = "GPU-c" }, "GPU GPU-c (A100) is new"},
		"another model":   {func(e *wire.Equipment) { e.GPUs[0].Model = "H100" }, "GPU GPU-a is H100"},
		"another region":  {func(e *wire.Equipment) { e.Region = "us" }, `region "us", was "eu"`},
		"another pool":    {func(e *wire.Equipment) { e.Pool = "x" }, `pool "x", was "gpu"`},
		"another site":    {func(e *wire.Equipment) { e.Site = "cloud" }, `site "cloud"`},
		"label changed":   {func(e *wire.Equipment) { e.Labels["rack"] = "r8" }, `label rack="r8", was "r7"`},
		"label added":     {func(e *wire.Equipment) { e.Labels["fast"] = "" }, `label fast=""`},
		"label removed":   {func(e *wire.Equipment) { delete(e.Labels, "rack") }, `label rack="", was "r7"`},
		"volume away":     {func(e *wire.Equipment) { delete(e.Labels, "berth.volume.data") }, ""},
		"volume added":    {func(e *wire.Equipment) { e.Labels["berth.volume.x"] = "yes" }, `label berth.volume.x="yes"`},
		"a folder mounts": {func(e *wire.Equipment) { e.Labels["berth.mount.data"] = "yes" }, ""},
		"another mounts":  {func(e *wire.Equipment) { e.Labels["berth.mount.x"] = "yes" }, `label berth.mount.x="yes"`},
		"much is another": {func(e *wire.Equipment) { *e = wire.Equipment{Labels: map[string]string{"a": "b"}} }, "and 2 more"},
	} {
		approved, seen := approvedMachine(), approvedMachine()
		c.change(&seen)
		held, approves := lifecycle.Approval{Needed: true, Approved: &approved}.Judge(seen)
		if approves || (held == "") != (c.held == "") || !strings.Contains(held, c.held) {
			t.Errorf("%s: held %q, approves %t; want %q", name, held, approves, c.held)
		}
		if same := seen.Fingerprint() == approved.Fingerprint(); same != (name == "same") {
			t.Errorf("%s: equal fingerprints: %t", name, same)
		}
		if held, _ := (lifecycle.Approval{Approved: &approved}).Judge(seen); held != "" {
			t.Errorf("%s: held %q by a pool that demands no approval", name, held)
		}
	}
}

// Limits of a join token outlast the rule of a pool, and do not cover labels.
func TestLimitsWithoutTheRuleConcernCapacityAlone(t *testing.T) {
	t.Parallel()
	approved, seen := approvedMachine(), approvedMachine()
	seen.Labels["rack"] = "r8"
	within := lifecycle.JoinTerms{Most: &spec.MachineBounds{GPUs: 2}}
	if held, _ := (lifecycle.Approval{Approved: &approved, Terms: within}).Judge(seen); held != "" {
		t.Errorf("a label holds a machine within its limits: %s", held)
	}
	below := lifecycle.JoinTerms{Most: &spec.MachineBounds{GPUs: 1}}
	if held, _ := (lifecycle.Approval{Approved: &approved, Terms: below}).Judge(approved); held != "" {
		t.Errorf("an approval does not cover equipment beyond the limits: %s", held)
	}
	if held, _ := (lifecycle.Approval{Terms: below}).Judge(seen); held == "" {
		t.Error("equipment beyond the limits is not held")
	}
}

func TestAJoinTokenBoundsAndApproves(t *testing.T) {
	t.Parallel()
	bound := &spec.MachineBounds{CPUs: 16000, Memory: 64 << 10, GPUs: 2}
	small := &spec.MachineBounds{CPUs: 8000, Memory: 1024, GPUs: 1}
	for name, c := range map[string]struct {
		approval lifecycle.Approval
		held     string
		approves bool
	}{
		"nothing needed":       {lifecycle.Approval{}, "", false},
		"needed":               {lifecycle.Approval{Needed: true}, "waits for approval", false},
		"token approves":       {lifecycle.Approval{Needed: true, Terms: lifecycle.JoinTerms{Approves: true}}, "", true},
		"approves, not needed": {lifecycle.Approval{Terms: lifecycle.JoinTerms{Approves: true}}, "", false},
		"within bounds":        {lifecycle.Approval{Terms: lifecycle.JoinTerms{Most: bound}}, "", false},
		"beyond bounds": {lifecycle.Approval{Needed: true, Terms: lifecycle.JoinTerms{Approves: true, Most: small}},
			"reports more than its join token allows: 16 CPUs (limit 8), memory 64GiB (limit 1GiB), 2 GPUs (limit 1)", false},
	} {
		held, approves := c.approval.Judge(approvedMachine())
		if held != c.held || approves != c.approves {
			t.Errorf("%s: held %q, approves %t; want %q, %t", name, held, approves, c.held, c.approves)
		}
	}
}

// A machine that returned after a restore needs an approval in every pool, whatever its earlier join token said.
func TestAReturnedMachineNeedsAnApproval(t *testing.T) {
	t.Parallel()
	seen := approvedMachine()
	held, approves := lifecycle.Approval{Returned: true, Terms: lifecycle.JoinTerms{Approves: true}}.Judge(seen)
	if !strings.Contains(held, "restored database") || approves {
		t.Errorf("held: %q, approves: %v", held, approves)
	}
	if held, _ := (lifecycle.Approval{Returned: true, Approved: &seen}).Judge(seen); held != "" {
		t.Errorf("approved, and held: %s", held)
	}
	changed := approvedMachine()
	changed.Region = "elsewhere"
	if held, _ := (lifecycle.Approval{Returned: true, Approved: &seen}).Judge(changed); held == "" {
		t.Error("changed since its approval, and not held")
	}
}
