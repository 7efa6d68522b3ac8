package lifecycle

import (
	"strings"

	"berth"
)

// Maintenance is one machine of an open maintenance window, read under the machine's lock. The
// database's clock decides Closed and Over.
type Maintenance struct {
	Active  bool // the window has begun for the machine; false: planned
	Closed  bool // the time at which the machine closes has come
	Over    bool // the end of the window has come
	Undrain bool // a healthy machine returns to service at the end
	Other   bool // another window of the machine has begun and is not over
	Note    string

	State berth.MachineState
	Own   bool // the drain in force is the window's own

	Alive         bool // the machine has a lease
	Leftovers     bool // containers of earlier work are still to be removed
	EngineSilent  bool // the container engine does not answer
	UnhealthyGPUs int
}

// MaintenanceAct is a step of a machine through a window.
type MaintenanceAct int

// The acts. Every act other than MaintenanceNone changes rows.
const (
	MaintenanceNone   MaintenanceAct = iota
	MaintenanceDrain                 // drain the machine by the window's own drain; the window is active
	MaintenanceBegin                 // the window is active, without a drain of its own; jobs leave the machine too
	MaintenanceWait                  // the window is over, and the machine is not ready to return: store the note
	MaintenanceReturn                // undrain the machine; the window is done
	MaintenanceFinish                // the window is done, and the machine stays as it is
	MaintenanceCancel                // the window does not take place on the machine
)

// Maintain decides about one machine of a maintenance window. note describes the act for operators; for
// MaintenanceWait it is the reason why the machine stays drained. The same facts give the same act, so
// a pass that is repeated after a crash changes nothing twice.
func Maintain(m Maintenance) (act MaintenanceAct, note string) {
	switch {
	case m.State == berth.MachineRetired:
		return MaintenanceCancel, "the machine is retired"
	case m.Over && !m.Active:
		return MaintenanceFinish, "the window passed while no leader ran"
	case m.Over:
		return m.end()
	case !m.Closed:
		return MaintenanceNone, ""
	}
	switch m.State {
	case berth.MachineJoining, berth.MachineReady, berth.MachineSuspect:
		return MaintenanceDrain, ""
	}
	if !m.Active {
		return MaintenanceBegin, ""
	}
	return MaintenanceNone, ""
}

// end decides about a machine after the end of a window that had begun. A later window of the machine
// ends first. A drain that is not the window's own stays.
func (m Maintenance) end() (act MaintenanceAct, note string) {
	switch {
	case m.Other:
		return MaintenanceNone, ""
	case !m.Own && m.State == berth.MachineDraining:
		return MaintenanceFinish, "the machine stays drained: another drain is in force"
	case !m.Own:
		return MaintenanceFinish, ""
	case !m.Undrain:
		return MaintenanceFinish, "the machine stays drained, as the window says"
	}
	if note = m.missing(); note != "" {
		if note == m.Note {
			return MaintenanceNone, ""
		}
		return MaintenanceWait, note
	}
	return MaintenanceReturn, ""
}

// missing lists the reasons for which the machine cannot return yet; "" for a healthy machine. A reboot
// is not required: an operator may have worked on the machine without one.
func (m Maintenance) missing() string {
	if !m.Alive || m.State != berth.MachineDraining {
		return "the machine has no contact"
	}
	var list []string
	if m.Leftovers {
		list = append(list, "containers of earlier jobs are not removed yet")
	}
	if m.EngineSilent {
		list = append(list, "the container engine does not answer")
	}
	switch {
	case m.UnhealthyGPUs == 1:
		list = append(list, "1 GPU is unhealthy")
	case m.UnhealthyGPUs > 1:
		list = append(list, "GPUs are unhealthy")
	}
	return strings.Join(list, ", ")
}
