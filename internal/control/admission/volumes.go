package admission

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"berth"
	"berth/spec"
)

// Volumes maps each folder that jobs may read on machines to the permitted tenants. A tenant
// includes the tenants below; an empty list permits all. The zero value permits no folder.
type Volumes map[spec.Volume][]berth.TenantID

// ParseVolumes reads the folders that an operator allows: /NAME, or
// /NAME=TENANT,TENANT. Semicolons separate several folders in one text.
func ParseVolumes(list []string) (Volumes, error) {
	all := Volumes{}
	err := spec.ParseVolumeOptions(list, "TENANT,TENANT", func(v spec.Volume, tenants string, some bool) error {
		if all[v] = nil; !some {
			return nil
		}
		var faults []error
		for t := range strings.SplitSeq(tenants, ",") {
			id, err := berth.ParseTenantID(strings.TrimSpace(t))
			if err != nil {
				faults = append(faults, fmt.Errorf("%s: %w", v, err))
			}
			all[v] = append(all[v], id)
		}
		return errors.Join(faults...)
	})
	return all, err
}

// Allowed returns the volumes that jobs of the tenant may read, by name.
func (c *Controller) Allowed(ctx context.Context, tenant berth.TenantID) ([]spec.Volume, error) {
	if len(c.rules.Volumes) == 0 {
		return nil, nil
	}
	line, err := c.quotas.line(ctx, tenant)
	if err != nil {
		return nil, err
	}
	var list []spec.Volume
	for _, v := range slices.Sorted(maps.Keys(c.rules.Volumes)) {
		to := c.rules.Volumes[v]
		if to == nil || slices.ContainsFunc(line, func(t berth.TenantID) bool { return slices.Contains(to, t) }) {
			list = append(list, v)
		}
	}
	return list, nil
}

// Allow refuses, with slug invalid_spec, inputs from folders that the tenant's jobs
// may not read, and an image, a user and a priority that they may not have.
func (c *Controller) Allow(ctx context.Context, tenant berth.TenantID, s spec.Job) error {
	faults, err := c.forbidden(ctx, tenant, "", s)
	if err != nil {
		return err
	}
	return forbids(faults)
}

// forbidden returns the faults of a spec that depend on the tenant: inputs, image, user and priority.
func (c *Controller) forbidden(
	ctx context.Context, tenant berth.TenantID, prefix string, s spec.Job,
) ([]berth.FieldError, error) {
	faults, err := c.forbiddenInputs(ctx, tenant, prefix, s)
	add := func(fault *berth.FieldError) {
		if fault != nil {
			fault.Field = prefix + fault.Field
			faults = append(faults, *fault)
		}
	}
	if err == nil && s.Image != "" { // a step that is a pipeline has no image
		var fault *berth.FieldError
		fault, err = c.imageFault(ctx, tenant, s.Image)
		add(fault)
	}
	if err == nil {
		var fault *berth.FieldError
		fault, err = c.userFault(ctx, tenant, s.User)
		add(fault)
	}
	if err == nil && s.Priority != nil {
		var fault *berth.FieldError
		fault, err = c.priorityFault(ctx, tenant, *s.Priority)
		add(fault)
	}
	return faults, err
}

// forbiddenInputs returns the faults of inputs from folders that the tenant's jobs may not
// read. The faults do not distinguish a folder of other tenants from a folder that does not
// exist. The labels of machines, which every user sees, name shared folders.
func (c *Controller) forbiddenInputs(
	ctx context.Context, tenant berth.TenantID, prefix string, s spec.Job,
) ([]berth.FieldError, error) {
	named := s.VolumesNamed()
	if len(named) == 0 {
		return nil, nil
	}
	allowed, err := c.Allowed(ctx, tenant)
	if err != nil {
		return nil, err
	}
	var faults []berth.FieldError
	for _, n := range named {
		if slices.Contains(allowed, n.Volume) {
			continue
		}
		f := berth.FieldError{
			Field: fmt.Sprintf("%sinputs[%d].from", prefix, n.Input),
			Detail: fmt.Sprintf("tenant %s may not read the folder %s of the machines",
				tenant, n.Volume),
			Allowed: "file:// with " + joined(allowed),
		}
		if len(allowed) == 0 {
			f.Detail = fmt.Sprintf("file:// inputs are not enabled for tenant %s; an operator can enable them with "+
				"berthd --file-inputs", tenant)
			f.Allowed = ""
		}
		faults = append(faults, f)
	}
	return faults, nil
}

// joined names the folders as they are written in addresses.
func joined(list []spec.Volume) string {
	var names []string
	for _, v := range list {
		names = append(names, v.String()+"/")
	}
	return strings.Join(names, ", ")
}

// mostFaults bounds the reported faults.
const mostFaults = 100

// forbids turns faults into one error, nil for none. It keeps the first mostFaults of them.
func forbids(faults []berth.FieldError) error {
	if len(faults) == 0 {
		return nil
	}
	faults = faults[:min(len(faults), mostFaults)]
	first := faults[0]
	e := &berth.Error{Code: berth.CodeInvalid, Slug: berth.SlugInvalidSpec, Fields: faults,
		Message: first.Field + ": " + first.Detail}
	if first.Allowed != "" {
		e.Message += " (allowed: " + first.Allowed + ")"
	}
	return e
}
