package spec

import (
	"fmt"
	"time"

	"berth"
)

// Limits and defaults of maintenance windows.
const (
	MaxMaintenanceMachines = 1000
	MaxMaintenanceReason   = 200 // bytes
	MaxMaintenanceLength   = 90 * 24 * time.Hour
	MaxMaintenanceAhead    = 366 * 24 * time.Hour
	MaxMaintenanceGrace    = 24 * time.Hour
	MaxMaintenanceLead     = 7 * 24 * time.Hour

	MaintenanceGrace = Duration(5 * time.Minute)
	MaintenanceLead  = Duration(time.Hour)
)

// NewMaintenance is the body of a call that creates a maintenance window. Its machines are the named
// ones, or the ones that are in the pool and have all labels when the window is created.
type NewMaintenance struct {
	Machines []berth.MachineID `json:"machines,omitempty"`
	Pool     string            `json:"pool,omitempty" doc:"all machines of the pool, in place of names"`
	Labels   map[string]string `json:"labels,omitempty" doc:"all machines with these labels, in place of names"`
	From     time.Time         `json:"from" doc:"start of the window"`
	For      Duration          `json:"for" doc:"length of the window"`
	Reason   string            `json:"reason"`
	Grace    *Duration         `json:"grace,omitempty" doc:"the machines close this long before the start; default: 5m"`
	// Lead is the time before the machines close in which jobs without a time limit do not start.
	Lead    *Duration `json:"lead,omitempty" doc:"time before the close without starts of unlimited jobs; default: 1h"`
	Undrain *bool     `json:"undrain,omitempty" doc:"healthy machines return at the end; default: true"`
}

// Validate returns all faults that need no clock at once, or nil.
func (m NewMaintenance) Validate() []berth.FieldError {
	v := &validation{}
	selects := m.Pool != "" || len(m.Labels) > 0
	v.require(len(m.Machines) > 0 || selects, "machines", "is empty", "names of machines, or a pool or labels")
	v.require(len(m.Machines) == 0 || !selects, "machines", "excludes pool and labels", "names, or a pool and labels")
	v.require(len(m.Machines) <= MaxMaintenanceMachines, "machines", "has too many machines",
		fmt.Sprintf("at most %d", MaxMaintenanceMachines))
	seen := map[berth.MachineID]bool{}
	for i, id := range m.Machines[:min(len(m.Machines), MaxMaintenanceMachines)] {
		field := fmt.Sprintf("machines[%d]", i)
		_, err := berth.ParseMachineID(string(id))
		v.require(err == nil, field, "is not a valid name", "names of machines")
		v.require(!seen[id], field, "is a repetition", "each machine once")
		seen[id] = true
	}
	v.require(!m.From.IsZero(), "from", "is missing", "a time with a zone, such as 2026-12-01T06:00:00Z")
	v.require(m.Reason != "", "reason", "is missing", "a text")
	v.maintenance(&m.For, m.Reason, m.Grace, m.Lead)
	return v.faults
}

// maintenance checks the settings that creation and change share; nil: unset.
func (v *validation) maintenance(length *Duration, reason string, grace, lead *Duration) {
	within := func(field string, d *Duration, least, most time.Duration) {
		v.require(d == nil || time.Duration(*d) >= least && time.Duration(*d) <= most, field, "is out of range",
			fmt.Sprintf("%s to %s", Duration(least), Duration(most)))
	}
	within("for", length, time.Minute, MaxMaintenanceLength)
	within("grace", grace, 0, MaxMaintenanceGrace)
	within("lead", lead, 0, MaxMaintenanceLead)
	v.require(len(reason) <= MaxMaintenanceReason, "reason", "is too long",
		fmt.Sprintf("at most %d bytes", MaxMaintenanceReason))
}

// MaintenanceChange is the body of a call that changes a maintenance window. Unset settings stay.
type MaintenanceChange struct {
	From    *time.Time `json:"from,omitempty" doc:"start of the window; only before its machines close"`
	For     *Duration  `json:"for,omitempty" doc:"length of the window, from its start on"`
	Reason  string     `json:"reason,omitempty"`
	Grace   *Duration  `json:"grace,omitempty" doc:"only before the machines close"`
	Lead    *Duration  `json:"lead,omitempty" doc:"only before the machines close"`
	Undrain *bool      `json:"undrain,omitempty"`
	Version int64      `json:"version,omitempty" doc:"version that the change is based on; unset: any"`
}

// Validate returns all faults that need no clock at once, or nil.
func (m MaintenanceChange) Validate() []berth.FieldError {
	v := &validation{}
	v.require(m.From != nil || m.For != nil || m.Reason != "" || m.Grace != nil || m.Lead != nil || m.Undrain != nil,
		"from", "is missing, and so is each other setting", "at least one setting")
	v.require(m.Version >= 0, "version", "is negative", "0 or more")
	v.maintenance(m.For, m.Reason, m.Grace, m.Lead)
	return v.faults
}
