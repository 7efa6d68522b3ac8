package wire

import "time"

// CheckpointFiles is the API's document of one member's part of a verified checkpoint.
type CheckpointFiles struct {
	Step    int64       `json:"step"`
	Attempt int         `json:"attempt" doc:"attempt that saved the step"`
	Member  int         `json:"member"`
	Members int         `json:"members" doc:"number of members with a part of the checkpoint"`
	Files   []SavedFile `json:"files"`
}

// CheckpointInterval is the API's document of the interval between checkpoints that would lose least work of a job,
// with the measurements behind it. Fields that were not measured are 0.
type CheckpointInterval struct {
	AdvisedSeconds float64 `json:"advised_seconds,omitempty" doc:"interval that loses least; absent: not known"`
	PresentSeconds float64 `json:"present_seconds,omitempty" doc:"median interval of the latest attempt"`
	SaveSeconds    float64 `json:"save_seconds,omitempty" doc:"median time that the job takes to write a checkpoint"`
	StoreSeconds   float64 `json:"store_seconds,omitempty" doc:"median time that Berth takes to store one"`
	LossSeconds    float64 `json:"loss_seconds,omitempty" doc:"expected time until the job loses one of its machines"`
	Machines       int     `json:"machines" doc:"machines of the job's latest attempt"`
	LostMachines   int     `json:"lost_machines" doc:"losses of machines of the same pool and size, in 30 days"`
	MachineDays    float64 `json:"machine_days" doc:"time in service of these machines, together"`
}

// MachineLosses counts how often machines like a job's were lost.
type MachineLosses struct {
	Machines int           // of the latest attempt of the job
	Lost     int           // losses of machines of the same pool and size
	Service  time.Duration // of the same machines together: the time in which they accepted work
}

// SavedFile is a file of a checkpoint.
type SavedFile struct {
	Path   string `json:"path" doc:"path in the folder of the step"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
	Mode   uint32 `json:"mode" doc:"permission bits"`
}
