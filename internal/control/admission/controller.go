package admission

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"berth"
	"berth/db"
	"berth/internal/lib/background"
	"berth/placement"
	"berth/spec"
)

// Controller judges new work. Its methods may be called concurrently.
type Controller struct {
	db     *db.DB
	rules  Rules
	fleet  fleet
	quotas quotas
}

// Rules are an operator's rules for the work of all tenants. The zero value permits all images and no volume.
type Rules struct {
	Volumes Volumes              // that jobs may read
	Images  []string             // registries and repositories of images, see ParseImages; nil: all
	Signed  []spec.SignatureRule // signatures that images must have

	// Users is the user of containers whose job file has no user: spec.UserTenant or spec.UserImage. "" stands
	// for spec.UserImage.
	Users string
}

// New returns a Controller over the database. It starts nothing. Its calls share readings of the
// database, which outlive the calls. owner ends these readings and awaits them: close it before the database.
func New(d *db.DB, owner *background.Group, rules Rules) *Controller {
	rules.Users = cmp.Or(rules.Users, spec.UserImage)
	return &Controller{
		db: d, rules: rules,
		fleet:  fleet{db: d, readings: readings{read: loadMachines(d), owner: owner}},
		quotas: quotas{list: d.Tenants.Rows, owner: owner},
	}
}

// Forget makes the next check read the tenants and their quotas again. Callers use
// it after a change by this process.
func (c *Controller) Forget() { c.quotas.forget() }

// Admit refuses a job with an image or inputs that the tenant's jobs may not use (slug
// invalid_spec), a job that fits on no machine (unsatisfiable), and a job beyond a
// quota of the tenant (quota).
func (c *Controller) Admit(ctx context.Context, tenant berth.TenantID, jobSpec spec.Job) error {
	return c.admit(ctx, tenant, "", jobSpec)
}

// admit is Admit for a spec in the field prefix of a request.
func (c *Controller) admit(ctx context.Context, tenant berth.TenantID, prefix string, jobSpec spec.Job) error {
	faults, err := c.forbidden(ctx, tenant, prefix, jobSpec)
	if err != nil {
		return err
	}
	if err := forbids(faults); err != nil {
		return err
	}
	return c.fits(ctx, tenant, jobSpec)
}

// fits returns an error if no machine could ever hold the job, or if a quota of the tenant or of
// one above can never allow its request.
func (c *Controller) fits(ctx context.Context, tenant berth.TenantID, jobSpec spec.Job) error {
	// A job with alternatives is refused only if all of them are.
	var refused []*berth.Error
	for _, request := range spec.RequestsOf(jobSpec) {
		err := c.fleet.satisfiable(ctx, tenant, request)
		if err == nil {
			err = c.quotas.admit(ctx, tenant, request)
		}
		e, ok := errors.AsType[*berth.Error](err)
		if !ok || e.Slug != berth.SlugUnsatisfiable && e.Slug != berth.SlugQuota {
			return err // it fits, or a read has failed
		}
		refused = append(refused, e)
	}
	return together(refused)
}

// together returns the refusal of a job whose resources and alternatives were all refused, in this order: the
// first one, with the faults of the others in their fields.
func together(refused []*berth.Error) error {
	if len(refused) == 1 {
		return refused[0]
	}
	all := *refused[0]
	all.Message += "; nor does an alternative fit"
	all.Fields = slices.Clone(all.Fields)
	for i, e := range refused[1:] {
		for _, f := range e.Fields {
			at := fmt.Sprintf("alternatives[%d]", i)
			if below, ok := strings.CutPrefix(f.Field, "resources"); ok {
				f.Field = at + below
			} else {
				f.Field = at + ": " + f.Field
			}
			all.Fields = append(all.Fields, f)
		}
	}
	return &all
}

// AdmitPipeline admits each job of a pipeline, at every level, and names the first refused one.
func (c *Controller) AdmitPipeline(ctx context.Context, tenant berth.TenantID, p spec.Pipeline) error {
	return c.admitPipeline(ctx, tenant, "", p)
}

// admitPipeline is AdmitPipeline for a pipeline inside of other work; prefix starts its
// field names. All faults against the rules are reported together, before the first look at
// capacity.
func (c *Controller) admitPipeline(
	ctx context.Context, tenant berth.TenantID, prefix string, p spec.Pipeline,
) error {
	var faults []berth.FieldError
	for path, step := range p.All() {
		more, err := c.forbidden(ctx, tenant, prefix+spec.StepField(path)+".", step)
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
		if err := c.fits(ctx, tenant, step); err != nil {
			return fmt.Errorf("step %s: %w", path, err)
		}
	}
	return nil
}

// Check returns every fault of a job that has its defaults.
func Check(s spec.Job) []berth.FieldError {
	return append(CheckRetry(s), spec.UnsourcedReshard(s)...)
}

// CheckRetry is Check for a job that retries another one, whose checkpoint it may start from.
func CheckRetry(s spec.Job) []berth.FieldError {
	return append(s.Validate(), checkOutside(s, placement.CheckConstraint)...)
}

// CheckPipeline returns every fault of a pipeline that has its defaults.
func CheckPipeline(p spec.Pipeline) []berth.FieldError {
	return append(CheckResumed(p), unsourced(p)...)
}

// CheckResumed is CheckPipeline for a pipeline that resumes another one, from whose checkpoints its steps may start.
func CheckResumed(p spec.Pipeline) []berth.FieldError {
	return slices.Concat(p.Validate(), spec.UnknownNeeds(p.Needs), checkSteps(p, placement.CheckConstraint))
}

// unsourced returns the faults of steps that reshard a checkpoint and name none.
func unsourced(p spec.Pipeline) (faults []berth.FieldError) {
	for path, step := range p.All() {
		for _, f := range spec.UnsourcedReshard(step) {
			f.Field = spec.StepField(path) + "." + f.Field
			faults = append(faults, f)
		}
	}
	return faults
}

// checkSteps returns the faults of all steps, with the path of the step in each field.
func checkSteps(p spec.Pipeline, constraint func(string) error) (faults []berth.FieldError) {
	for path, step := range p.All() {
		for _, f := range checkOutside(step, constraint) {
			f.Field = spec.StepField(path) + "." + f.Field
			faults = append(faults, f)
		}
	}
	return faults
}

// checkOutside finds the faults that a spec cannot know by itself: folders that
// were not sent, jobs that were not looked up, constraints that the given check refuses.
func checkOutside(s spec.Job, constraint func(string) error) []berth.FieldError {
	faults := append(s.Unsent(), spec.UnknownNeeds(s.Needs)...)
	if c := s.Checkpoint; c != nil && c.From != "" && s.Checkpoint.StartsFrom() == nil {
		faults = append(faults, berth.FieldError{Field: "checkpoint.from",
			Detail:  fmt.Sprintf("%.200q is not the id of a job", c.From),
			Allowed: "a job's whole id, or the id and a step: JOB@STEP"})
	}
	if c := s.Placement.Constraint; c != "" {
		if err := constraint(c); err != nil {
			faults = append(faults, berth.FieldError{Field: "placement.constraint", Detail: err.Error(),
				Allowed: `a CEL condition over machine and gpu, such as machine.labels.tier == "prod"`})
		}
	}
	return faults
}
