package api

import (
	"context"
	"time"

	"berth"
	"berth/db"
	"berth/wire"
)

// writes are the stores whose calls change the course of a job. In programs with failpoints
// these calls may die before and after their commit.
type writes struct {
	jobs     submitter
	cancels  JobControl
	fires    fires
	sessions sessions
	objects  objects
	joins    sessionJoins
}

// submitter accepts jobs. *db.Jobs implements it.
type submitter interface {
	Submit(ctx context.Context, s db.Submission) (job wire.Job, created bool, err error)
}

// fires decides the times of schedules. *admission.Controller implements it.
type fires interface {
	Fire(ctx context.Context, id berth.ScheduleID, at time.Time) (wire.FireResult, error)
}

// sessions serves the calls of agents about themselves and their work. *db.Agents
// implements it.
type sessions interface {
	Register(ctx context.Context, machine berth.MachineID,
		req wire.RegisterRequest) (wire.RegisterResponse, []berth.JobID, error)
	Sync(ctx context.Context, machine berth.MachineID, req wire.SyncRequest) (wire.SyncResponse, error)
	Claim(ctx context.Context, machine berth.MachineID, req wire.ClaimRequest) (wire.Claim, error)
	ReportStages(ctx context.Context, machine berth.MachineID, req wire.StageReport) error
	ReportUse(ctx context.Context, machine berth.MachineID, req wire.UseReport) error
	ReportHost(ctx context.Context, machine berth.MachineID, req wire.HostReport) error
	StoreUnfinished(ctx context.Context, machine berth.MachineID, req wire.UnfinishedReport) error
	ReportStall(ctx context.Context, machine berth.MachineID, req wire.StallReport) error
	FixImage(ctx context.Context, machine berth.MachineID, req wire.ImageReport) (wire.FixedImage, error)
	Prepares(ctx context.Context, machine berth.MachineID, q wire.HostQuestion) error
}

// objects records the checkpoints and the outputs that agents have stored. *db.Objects
// implements it.
type objects interface {
	RegisterCheckpoint(ctx context.Context, machine berth.MachineID, p wire.CheckpointReport) ([]db.PrunedShard, error)
	RegisterOutput(ctx context.Context, machine berth.MachineID, p wire.OutputReport) error
}

// sessionJoins records the connections of agents to sessions of users. *db.JobSessions implements it.
type sessionJoins interface {
	Join(ctx context.Context, id string, machine berth.MachineID, nonce, replica string) error
}
