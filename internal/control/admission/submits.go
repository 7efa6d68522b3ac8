package admission

import (
	"context"
	"fmt"

	"berth"
	"berth/db"
	"berth/spec"
)

// SubmitLimits returns the rates of submits that apply to a tenant: its own, or standard for a
// quota without one (0: no limit), and the rates of the tenants above.
func (c *Controller) SubmitLimits(
	ctx context.Context, tenant berth.TenantID, standard float64,
) ([]db.SubmitLimit, error) {
	return c.quotas.submitLimits(ctx, tenant, standard)
}

// AllowPriority refuses, with slug invalid_spec, a priority above the greatest that the quotas of
// the tenant and of the tenants above allow.
func (c *Controller) AllowPriority(ctx context.Context, tenant berth.TenantID, p spec.Priority) error {
	fault, err := c.priorityFault(ctx, tenant, p)
	if err != nil || fault == nil {
		return err
	}
	return forbids([]berth.FieldError{*fault})
}

// priorityFault returns the fault of a priority, or nil. It names the tenant whose quota sets the
// bound.
func (c *Controller) priorityFault(
	ctx context.Context, tenant berth.TenantID, p spec.Priority,
) (*berth.FieldError, error) {
	most, of, bound, err := c.quotas.maxPriority(ctx, tenant)
	if err != nil || !bound || p <= most {
		return nil, err
	}
	whose := fmt.Sprintf("tenant %s", of)
	if of != tenant {
		whose += ", above " + string(tenant) + ","
	}
	f := &berth.FieldError{
		Field:  "priority",
		Detail: fmt.Sprintf("%d requested, but max_priority of %s is %d", int(p), whose, int(most)),
	}
	if p == spec.PriorityNormal {
		f.Detail = fmt.Sprintf("%d requested (the default), but max_priority of %s is %d", int(p), whose, int(most))
	}
	return f, nil
}

// StorageLimits returns the limits of stored data that apply to a tenant: its own, and the limits
// of the tenants above. A change is seen within seconds.
func (c *Controller) StorageLimits(ctx context.Context, tenant berth.TenantID) ([]db.StorageLimit, error) {
	return c.quotas.storageLimits(ctx, tenant)
}
