package berth

import "time"

// Attempt is one run of a job. Attempts count from 1.
type Attempt struct {
	Number   int         `json:"number"`
	Machines []MachineID `json:"machines"`

	Alternative *int `json:"alternative,omitempty"` // hardware that it got; 0: resources; nil: the job has one only

	GPUs       []string   `json:"gpus,omitempty"` // UUIDs
	PlacedAt   time.Time  `json:"placed_at"`
	StartedAt  *time.Time `json:"started_at,omitempty"`
	EndedAt    *time.Time `json:"ended_at,omitempty"`
	ResumeFrom *int64     `json:"resume_from,omitempty"` // checkpoint step of its start; absent: a fresh start
	LastStep   *int64     `json:"last_step,omitempty"`   // the last step that its progress reported
	Outcome    *Reason    `json:"outcome,omitempty"`
	// Lost work of an attempt with a successor: steps and GPU time since the checkpoint
	// from which the next attempt starts. The next attempt must repeat them.
	LostSteps      *int64     `json:"lost_steps,omitempty"`
	LostGPUSeconds *float64   `json:"lost_gpu_seconds,omitempty"`
	Next           State      `json:"next,omitempty"` // the job's status after it
	ExitCode       *int       `json:"exit_code,omitempty"`
	Cost           *float64   `json:"cost,omitempty" doc:"US dollars, of its shares of machines of clouds"`
	Measured       []Measured `json:"measured,omitempty" doc:"resource usage of its sampled members"`
}

// Progress is the content of /workspace/.berth/progress, which the job itself writes.
type Progress struct {
	Step    int64     `json:"step"`
	Total   int64     `json:"total,omitempty"`
	Message string    `json:"message,omitempty"`
	At      time.Time `json:"at,omitzero"`
}
