package db

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
	"berth/wire"
)

// needs are the objects that a spec refers to and that must exist when its job is stored.
type needs struct {
	uploads   []spec.NamedUpload
	secrets   []string
	imageAuth string             // secret with the registry's credentials
	inputs    []spec.NamedOutput // outputs of other jobs
	logins    []string           // secret of each input; "" for none
	webhooks  bool               // calls of webhooks are signed with the tenant's webhook secret
	source    *spec.StepRef      // checkpoint of another job to start from; nil: none
	members   int                // parts that the checkpoint must have
	layout    string             // groups that the job of the checkpoint must have; see spec.Layout
	reshard   bool               // members may get all parts of a checkpoint that does not fit them
	disk      spec.MiB           // least disk limit of a member; 0: none
}

// needsOf returns the needs of a spec.
func needsOf(s spec.Job) needs {
	n := needs{uploads: s.Uploads(), secrets: s.Secrets, imageAuth: s.ImageAuth, inputs: s.OutputsNamed(),
		webhooks: len(spec.WebhooksOf(s.Notify)) > 0, source: s.Checkpoint.StartsFrom(), members: max(s.Members, 1),
		layout: spec.Layout(s), reshard: s.Checkpoint != nil && s.Checkpoint.Reshard == spec.ReshardAll,
		disk: spec.LeastDisk(s)}
	for _, in := range s.Inputs {
		n.logins = append(n.logins, in.Secret)
	}
	return n
}

// allSecrets returns the names of all secrets that the spec refers to, with duplicates.
func (n needs) allSecrets() []string {
	all := slices.Concat(n.secrets, n.logins, []string{n.imageAuth})
	if n.webhooks {
		all = append(all, spec.WebhookSecret)
	}
	return slices.DeleteFunc(all, func(name string) bool { return name == "" })
}

// without returns n without inputs that are outputs of the given jobs.
func (n needs) without(jobs map[berth.JobID]bool) needs {
	n.inputs = slices.DeleteFunc(slices.Clone(n.inputs), func(o spec.NamedOutput) bool { return jobs[o.Job] })
	return n
}

// none reports whether the spec refers to no stored object.
func (n needs) none() bool {
	return len(n.uploads) == 0 && len(n.inputs) == 0 && len(n.allSecrets()) == 0 && n.source == nil
}

// insertWithNeeds stores a job with its needs. Either all needs exist and are kept for the
// job, or the whole transaction fails and stores nothing. The source's row is locked first, as
// all rows of jobs. Uploads are locked before the job's row is inserted: the lock order puts
// them before the tenant, whose quota insert checks.
func (r submitRow) insertWithNeeds(ctx context.Context, tx pgx.Tx) (wire.Job, error) {
	tenant := r.args["tenant"].(berth.TenantID)
	if err := r.lockNeeded(ctx, tx); err != nil {
		return wire.Job{}, err
	}
	if err := r.choose(ctx, tx); err != nil {
		return wire.Job{}, err
	}
	if err := checkSecrets(ctx, tx, tenant, r.needs); err != nil {
		return wire.Job{}, err
	}
	if err := bindUploads(ctx, tx, tenant, r.needs.uploads); err != nil {
		return wire.Job{}, err
	}
	job, err := r.insert(ctx, tx)
	if err != nil {
		return wire.Job{}, err
	}
	if err := r.insertNeeded(ctx, tx, job.ID); err != nil {
		return wire.Job{}, err
	}
	if err := bindOutputs(ctx, tx, tenant, job.ID, r.needs.inputs); err != nil {
		return wire.Job{}, err
	}
	if err := r.recordSources(ctx, tx); err != nil {
		return wire.Job{}, err
	}
	job.StartedFrom = r.source
	return job, holdUploads(ctx, tx, job.ID, r.needs.uploads)
}
