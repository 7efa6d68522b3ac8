//go:build failpoints

package api

import (
	"context"
	"time"

	"berth"
	"berth/db"
	"berth/internal/lib/failpoint"
	"berth/wire"
)

// withFailpoints returns stores that may die before and after each call. Programs without the build tag
// have none of this.
func withFailpoints(w writes) writes {
	return writes{
		jobs: failingSubmits{w.jobs}, cancels: failingCancels{w.cancels}, fires: failingFires{w.fires},
		sessions: failingSessions{w.sessions}, objects: failingObjects{w.objects},
		joins: failingJoins{w.joins},
	}
}

// failingSubmits has the failpoints around the commit of a submit. A kill after the commit loses
// the answer: the client repeats the call with the same key.
type failingSubmits struct{ submitter }

func (f failingSubmits) Submit(ctx context.Context, s db.Submission) (wire.Job, bool, error) {
	if err := failpoint.Hit("api.submit.before"); err != nil {
		return wire.Job{}, false, err
	}
	job, created, err := f.submitter.Submit(ctx, s)
	if err != nil {
		return job, created, err
	}
	return job, created, failpoint.Hit("api.submit.after")
}

// failingCancels has the failpoints around the commit of a cancel request.
type failingCancels struct{ JobControl }

func (f failingCancels) RequestCancel(ctx context.Context, tenant berth.TenantID, id berth.JobID, actor string,
	reason *berth.Reason) (berth.State, error) {
	if err := failpoint.Hit("api.cancel.before"); err != nil {
		return "", err
	}
	state, err := f.JobControl.RequestCancel(ctx, tenant, id, actor, reason)
	if err != nil {
		return state, err
	}
	return state, failpoint.Hit("api.cancel.after")
}

// failingFires has the failpoint between the record of a fire by hand and its decision.
type failingFires struct{ fires }

func (f failingFires) Fire(ctx context.Context, id berth.ScheduleID, at time.Time) (wire.FireResult, error) {
	if err := failpoint.Hit("api.fire.between"); err != nil {
		return wire.FireResult{}, err
	}
	return f.fires.Fire(ctx, id, at)
}

// failingSessions has the failpoints around the commits of an agent's registration, reports and
// claims.
type failingSessions struct{ sessions }

func (f failingSessions) Register(ctx context.Context, machine berth.MachineID,
	req wire.RegisterRequest) (wire.RegisterResponse, []berth.JobID, error) {
	if err := failpoint.Hit("api.register.before"); err != nil {
		return wire.RegisterResponse{}, nil, err
	}
	answer, lost, err := f.sessions.Register(ctx, machine, req)
	if err != nil {
		return answer, lost, err
	}
	return answer, lost, failpoint.Hit("api.register.after")
}

// Sync has failpoints for the calls that report. The other calls commit nothing.
func (f failingSessions) Sync(ctx context.Context, machine berth.MachineID,
	req wire.SyncRequest) (wire.SyncResponse, error) {
	if len(req.Reports) == 0 {
		return f.sessions.Sync(ctx, machine, req)
	}
	if err := failpoint.Hit("api.report.before"); err != nil {
		return wire.SyncResponse{}, err
	}
	answer, err := f.sessions.Sync(ctx, machine, req)
	if err != nil {
		return answer, err
	}
	return answer, failpoint.Hit("api.report.after")
}

func (f failingSessions) Claim(ctx context.Context, machine berth.MachineID,
	req wire.ClaimRequest) (wire.Claim, error) {
	if err := failpoint.Hit("api.claim.before"); err != nil {
		return wire.Claim{}, err
	}
	claim, err := f.sessions.Claim(ctx, machine, req)
	if err != nil {
		return claim, err
	}
	return claim, failpoint.Hit("api.claim.after")
}

// failingObjects has the failpoints around the registration of checkpoints and outputs.
type failingObjects struct{ objects }

// RegisterCheckpoint returns no shards after an injected error: the caller deletes the returned ones.
func (f failingObjects) RegisterCheckpoint(ctx context.Context, machine berth.MachineID,
	p wire.CheckpointReport) ([]db.PrunedShard, error) {
	if err := failpoint.Hit("api.checkpoint.before"); err != nil {
		return nil, err
	}
	pruned, err := f.objects.RegisterCheckpoint(ctx, machine, p)
	if err != nil {
		return pruned, err
	}
	if err := failpoint.Hit("api.checkpoint.after"); err != nil {
		return nil, err
	}
	return pruned, nil
}

func (f failingObjects) RegisterOutput(ctx context.Context, machine berth.MachineID, p wire.OutputReport) error {
	if err := failpoint.Hit("api.output.before"); err != nil {
		return err
	}
	if err := f.objects.RegisterOutput(ctx, machine, p); err != nil {
		return err
	}
	return failpoint.Hit("api.output.after")
}

// failingJoins has the failpoints around the record that an agent has joined a user's session.
type failingJoins struct{ sessionJoins }

func (f failingJoins) Join(ctx context.Context, id string, machine berth.MachineID, nonce, replica string) error {
	if err := failpoint.Hit("api.join.before"); err != nil {
		return err
	}
	if err := f.sessionJoins.Join(ctx, id, machine, nonce, replica); err != nil {
		return err
	}
	return failpoint.Hit("api.join.after")
}
