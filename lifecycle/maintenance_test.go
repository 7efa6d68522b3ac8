package lifecycle_test

import (
	"testing"

	"berth"
	"berth/lifecycle"
)

// The rows of the state table in ADR 66.
func TestMaintain(t *testing.T) {
	t.Parallel()
	over := func(change func(*lifecycle.Maintenance)) lifecycle.Maintenance {
		m := lifecycle.Maintenance{Active: true, Closed: true, Over: true, Undrain: true, State: berth.MachineDraining,
			Own: true, Alive: true}
		change(&m)
		return m
	}
	for name, x := range map[string]struct {
		in   lifecycle.Maintenance
		act  lifecycle.MaintenanceAct
		note string
	}{
		"before it closes":      {lifecycle.Maintenance{State: berth.MachineReady}, lifecycle.MaintenanceNone, ""},
		"at the close, ready":   {lifecycle.Maintenance{Closed: true, State: berth.MachineReady}, lifecycle.MaintenanceDrain, ""},
		"at the close, silent":  {lifecycle.Maintenance{Closed: true, State: berth.MachineSuspect}, lifecycle.MaintenanceDrain, ""},
		"at the close, drained": {lifecycle.Maintenance{Closed: true, State: berth.MachineDraining}, lifecycle.MaintenanceBegin, ""},
		"at the close, lost":    {lifecycle.Maintenance{Closed: true, State: berth.MachineLost}, lifecycle.MaintenanceBegin, ""},
		"inside, joined again":  {lifecycle.Maintenance{Active: true, Closed: true, State: berth.MachineJoining}, lifecycle.MaintenanceDrain, ""},
		"inside, drained":       {lifecycle.Maintenance{Active: true, Closed: true, State: berth.MachineDraining, Own: true}, lifecycle.MaintenanceNone, ""},
		"retired": {lifecycle.Maintenance{Active: true, Closed: true, Over: true, State: berth.MachineRetired},
			lifecycle.MaintenanceCancel, "the machine is retired"},
		"passed unseen": {lifecycle.Maintenance{Closed: true, Over: true, State: berth.MachineReady}, lifecycle.MaintenanceFinish,
			"the window passed while no leader ran"},
		"healthy at the end": {over(func(*lifecycle.Maintenance) {}), lifecycle.MaintenanceReturn, ""},
		"silent at the end": {over(func(m *lifecycle.Maintenance) { m.Alive = false }), lifecycle.MaintenanceWait,
			"the machine has no contact"},
		"silent since": {over(func(m *lifecycle.Maintenance) { m.Alive, m.Note = false, "the machine has no contact" }),
			lifecycle.MaintenanceNone, ""},
		"lost at the end": {over(func(m *lifecycle.Maintenance) { m.State = berth.MachineLost }), lifecycle.MaintenanceWait,
			"the machine has no contact"},
		"sick at the end": {over(func(m *lifecycle.Maintenance) { m.UnhealthyGPUs, m.EngineSilent, m.Leftovers = 2, true, true }),
			lifecycle.MaintenanceWait, "containers of earlier jobs are not removed yet, the container engine does not answer, " +
				"GPUs are unhealthy"},
		"kept drained": {over(func(m *lifecycle.Maintenance) { m.Undrain = false }), lifecycle.MaintenanceFinish,
			"the machine stays drained, as the window says"},
		"drained by an operator": {over(func(m *lifecycle.Maintenance) { m.Own = false }), lifecycle.MaintenanceFinish,
			"the machine stays drained: another drain is in force"},
		"the next window has begun": {over(func(m *lifecycle.Maintenance) { m.Other = true }), lifecycle.MaintenanceNone, ""},
	} {
		if act, note := lifecycle.Maintain(x.in); act != x.act || note != x.note {
			t.Errorf("%s: act %d, %q, want %d, %q", name, act, note, x.act, x.note)
		}
	}
}
