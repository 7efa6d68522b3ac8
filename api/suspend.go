package api

import (
	"context"

	"berth"
)

// suspendInput names the job to suspend.
type suspendInput struct {
	JobInput
	LoseWork bool `query:"lose_work" doc:"also a job without a checkpoint, which then starts from the beginning"`
}

// suspendJob stops a job and holds it. The workflow is poked, since a member that no machine has
// claimed ends without a report.
func (h *jobHandlers) suspendJob(ctx context.Context, in *suspendInput) (*jobOutput, error) {
	return h.act(ctx, &in.JobInput, func(tenant berth.TenantID, id berth.JobID) error {
		if err := h.attempts.Suspend(ctx, tenant, id, actor(ctx), in.LoseWork); err != nil {
			return err
		}
		poke(h.poker, []berth.JobID{id})
		return nil
	})
}

// saveJob orders a running job to write a checkpoint. It does not wait for the checkpoint.
func (h *jobHandlers) saveJob(ctx context.Context, in *JobInput) (*jobOutput, error) {
	return h.act(ctx, in, func(tenant berth.TenantID, id berth.JobID) error {
		return h.attempts.RequestSave(ctx, tenant, id, actor(ctx))
	})
}
