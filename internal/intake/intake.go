package intake

import (
	"context"
	"fmt"

	"berth"
	"berth/db"
	"berth/placement"
)

// Intake judges new work. Its methods may be called concurrently.
type Intake struct {
	db      *db.DB
	volumes Volumes
	fleet   fleet
	quotas  quotas
}

// New returns an intake over the database, which lets jobs read these volumes.
func New(d *db.DB, v Volumes) *Intake {
	return &Intake{db: d, volumes: v, fleet: fleet{db: d}, quotas: quotas{db: d}}
}

// Forget makes the next judgement read the tenants and their quotas anew: one
// was changed by this process.
func (i *Intake) Forget() { i.quotas.forget() }

// Admit refuses what the tenant's jobs may not read, with slug invalid_spec, and
// what no machine, with slug unsatisfiable, or no quota of the tenant, with slug
// quota, could ever hold.
func (i *Intake) Admit(ctx context.Context, tenant berth.TenantID, spec berth.JobSpec) error {
	return i.admit(ctx, tenant, "", spec)
}

// admit is Admit of a spec that is the field prefix of what was sent.
func (i *Intake) admit(ctx context.Context, tenant berth.TenantID, prefix string, spec berth.JobSpec) error {
	faults, err := i.forbidden(ctx, tenant, prefix, spec)
	if err != nil {
		return err
	}
	if err := forbids(faults); err != nil {
		return err
	}
	return i.fits(ctx, tenant, spec)
}

func (i *Intake) fits(ctx context.Context, tenant berth.TenantID, spec berth.JobSpec) error {
	if err := i.fleet.satisfiable(ctx, spec.Request()); err != nil {
		return err
	}
	return i.quotas.admit(ctx, tenant, spec.Request())
}

// AdmitPipeline admits each job of it, at every level, and names the first that is
// refused.
func (i *Intake) AdmitPipeline(ctx context.Context, tenant berth.TenantID, p berth.PipelineSpec) error {
	return i.admitPipeline(ctx, tenant, "", p)
}

func (i *Intake) admitPipeline(ctx context.Context, tenant berth.TenantID, prefix string, p berth.PipelineSpec) error {
	var faults []berth.FieldError
	for path, step := range p.All() {
		more, err := i.forbidden(ctx, tenant, prefix+berth.StepField(path)+".", step)
		if err != nil {
			return err
		}
		faults = append(faults, more...)
	}
	if err := forbids(faults); err != nil {
		return err
	}
	for path, step := range p.All() {
		if step.Nests() {
			continue
		}
		if err := i.fits(ctx, tenant, step); err != nil {
			return fmt.Errorf("step %s: %w", path, err)
		}
	}
	return nil
}

// Check returns every fault of a job that has its defaults.
func Check(s berth.JobSpec) []berth.FieldError {
	return append(s.Validate(), checkOutside(s)...)
}

// CheckPipeline returns every fault of a pipeline that has its defaults.
func CheckPipeline(p berth.PipelineSpec) []berth.FieldError {
	return append(p.Validate(), checkSteps(p)...)
}

func checkSteps(p berth.PipelineSpec) (faults []berth.FieldError) {
	for path, step := range p.All() {
		for _, f := range checkOutside(step) {
			f.Field = berth.StepField(path) + "." + f.Field
			faults = append(faults, f)
		}
	}
	return faults
}

// checkOutside finds the faults that a spec cannot know by itself: folders that
// were not sent, constraints that do not compile.
func checkOutside(s berth.JobSpec) []berth.FieldError {
	faults := s.Unsent()
	if c := s.Placement.Constraint; c != "" {
		if err := placement.CompileConstraint(c); err != nil {
			faults = append(faults, berth.FieldError{Field: "placement.constraint", Detail: err.Error(), Allowed: `a CEL condition over machine and gpu, such as machine.labels.tier == "prod"`})
		}
	}
	return faults
}
