package db

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
	"berth/wire"
)

// needs are what a spec names that must be there when its job is stored.
type needs struct {
	uploads   []spec.NamedUpload
	secrets   []string
	imageAuth string
	inputs    []spec.NamedOutput
	logins    []string // secrets of inputs, by their place; "" for none
	webhooks  bool
}

func needsOf(s spec.Job) needs {
	n := needs{uploads: s.Uploads(), secrets: s.Secrets, imageAuth: s.ImageAuth, inputs: s.OutputsNamed(),
		webhooks: len(s.Notify) > 0}
	for _, in := range s.Inputs {
		n.logins = append(n.logins, in.Secret)
	}
	return n
}

// allSecrets are the secrets that are named anywhere.
func (n needs) allSecrets() []string {
	all := slices.Concat(n.secrets, n.logins, []string{n.imageAuth})
	if n.webhooks {
		all = append(all, spec.WebhookSecret)
	}
	return slices.DeleteFunc(all, func(name string) bool { return name == "" })
}

// without leaves out inputs that are outputs of some jobs.
func (n needs) without(jobs map[berth.JobID]bool) needs {
	n.inputs = slices.DeleteFunc(slices.Clone(n.inputs), func(o spec.NamedOutput) bool { return jobs[o.Job] })
	return n
}

func (n needs) none() bool {
	return len(n.uploads) == 0 && len(n.inputs) == 0 && len(n.allSecrets()) == 0
}

// insertWithNeeds is insert for a job that may name what else is stored: it is
// there, and is held, or nothing is stored.
func (r submitRow) insertWithNeeds(ctx context.Context, tx pgx.Tx) (wire.Job, error) {
	tenant := r.args["tenant"].(berth.TenantID)
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
	if err := bindOutputs(ctx, tx, tenant, job.ID, r.needs.inputs); err != nil {
		return wire.Job{}, err
	}
	return job, holdUploads(ctx, tx, job.ID, r.needs.uploads)
}
