package wire

import (
	"time"

	"berth"
	"berth/spec"
)

// States of a maintenance window and of a machine in it.
const (
	MaintenancePlanned  = "planned"
	MaintenanceActive   = "active"
	MaintenanceDone     = "done"
	MaintenanceCanceled = "canceled"
)

// Maintenance is the API's document of a maintenance window.
type Maintenance struct {
	ID        int64                `json:"id"`
	State     string               `json:"state" doc:"planned, active, done or canceled"`
	Reason    string               `json:"reason"`
	From      time.Time            `json:"from"`
	Until     time.Time            `json:"until"`
	ClosesAt  time.Time            `json:"closes_at" doc:"from this time on no work; running jobs move"`
	Grace     spec.Duration        `json:"grace" doc:"from closes_at to from"`
	Lead      spec.Duration        `json:"lead" doc:"time before closes_at without starts of jobs without a time limit"`
	Undrain   bool                 `json:"undrain" doc:"healthy machines return to service at the end"`
	By        string               `json:"by" doc:"author, such as operator:NAME"`
	Version   int64                `json:"version" doc:"increases with each change"`
	CreatedAt time.Time            `json:"created_at"`
	UpdatedAt time.Time            `json:"updated_at"`
	Machines  []MaintenanceMachine `json:"machines"`
}

// MaintenanceMachine is one machine of a maintenance window.
type MaintenanceMachine struct {
	Machine berth.MachineID `json:"machine"`
	State   string          `json:"state" doc:"planned, active, done or canceled"`
	Note    string          `json:"note,omitempty" doc:"why the machine has not returned, or result"`
}

// MachineMaintenance is the next or present maintenance window of a machine.
type MachineMaintenance struct {
	ID       int64     `json:"id"`
	State    string    `json:"state" doc:"planned or active"`
	ClosesAt time.Time `json:"closes_at"`
	From     time.Time `json:"from"`
	Until    time.Time `json:"until"`
	Reason   string    `json:"reason"`
	Note     string    `json:"note,omitempty" doc:"reason why the machine has not returned at the end"`
}
