package wire

import (
	"time"

	"berth"
)

// CloudNote is the latest decision about machines of clouds for a waiting job. It may be some seconds old.
type CloudNote struct {
	Code     string         `json:"code" doc:"provisioning, or why no machine is launched; see docs/operate/cloud.md"`
	Message  string         `json:"message"`
	Machines []CloudMachine `json:"machines,omitempty" doc:"machines that boot for the job"`
	Until    *time.Time     `json:"until,omitempty" doc:"time of the next try of a closed offer"`
	Start    *time.Time     `json:"start,omitempty" doc:"planned start on machines that exist; absent: none planned"`
	Cost     float64        `json:"cost,omitempty" doc:"cost of the run in a cloud, in US dollars; absent: unknown"`
}

// CloudMachine is a machine that was launched, and that has not joined.
type CloudMachine struct {
	Machine    berth.MachineID `json:"machine"`
	State      string          `json:"state" doc:"state of the launch: requested, sent, unresolved, running"`
	Type       string          `json:"type"`
	Region     string          `json:"region"`
	Market     string          `json:"market"`
	Price      float64         `json:"price_per_hour,omitempty" doc:"US dollars; absent: unknown"`
	LaunchedAt time.Time       `json:"launched_at"`
}
