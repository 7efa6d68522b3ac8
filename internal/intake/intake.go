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
	db     *db.DB
	fleet  fleet
	quotas quotas
}

// New returns an intake over the database.
func New(d *db.DB) *Intake {
	return &Intake{db: d, fleet: fleet{db: d}, quotas: quotas{db: d}}
}

// Forget makes the next judgement read the tenants' quotas anew: one was
// changed by this process.
func (i *Intake) Forget() { i.quotas.forget() }

// Admit refuses what no machine, with slug unsatisfiable, or no quota of the
// tenant, with slug quota, could ever hold.
func (i *Intake) Admit(ctx context.Context, tenant berth.TenantID, spec berth.JobSpec) error {
	if err := i.fleet.satisfiable(ctx, spec.Request()); err != nil {
		return err
	}
	return i.quotas.admit(ctx, tenant, spec.Request())
}

// AdmitPipeline admits each job of it, at every level, and names the first that is
// refused.
func (i *Intake) AdmitPipeline(ctx context.Context, tenant berth.TenantID, p berth.PipelineSpec) error {
	for path, step := range p.All() {
		if step.Nests() {
			continue
		}
		if err := i.Admit(ctx, tenant, step); err != nil {
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
