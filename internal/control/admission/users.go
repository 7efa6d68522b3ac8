package admission

import (
	"context"
	"fmt"

	"berth"
	"berth/db"
	"berth/spec"
)

// User returns the user of a job's containers as of now: spec.UserImage, or UID:GID. user is the job's choice, ""
// for none. A choice that the tenant does not have at present is an error of slug invalid_spec. A refusal
// fails a job for good, so User reads the rows again before it refuses, as AllowImage does.
func (c *Controller) User(ctx context.Context, tenant berth.TenantID, user string) (string, error) {
	chosen, fault, err := c.chooseUser(ctx, tenant, user, true)
	if err == nil && fault != nil {
		c.quotas.forget()
		chosen, fault, err = c.chooseUser(ctx, tenant, user, true)
	}
	if err != nil || fault == nil {
		return chosen, err
	}
	return "", forbids([]berth.FieldError{*fault})
}

// RunsAs describes the user of a job's containers as of now, for people: as User does, but it takes no range of users.
// It returns spec.UserTenant for a tenant that gets its range with its first container, and "" for a choice that the
// tenant does not have at present.
func (c *Controller) RunsAs(ctx context.Context, tenant berth.TenantID, user string) (string, error) {
	chosen, fault, err := c.chooseUser(ctx, tenant, user, false)
	if err != nil || fault != nil {
		return "", err
	}
	return chosen, nil
}

// chooseUser returns the user of a job's containers, or the fault of the job's choice. With take, a tenant without a
// range of users gets one.
func (c *Controller) chooseUser(
	ctx context.Context, tenant berth.TenantID, user string, take bool,
) (chosen string, fault *berth.FieldError, err error) {
	rows, err := c.quotas.with(ctx, tenant)
	if err != nil {
		return "", nil, err
	}
	free := c.anyUser(rows, tenant)
	switch {
	case free && (user == spec.UserImage || user == "" && c.rules.Users == spec.UserImage):
		return spec.UserImage, nil, nil
	case user == spec.UserImage:
		return "", &berth.FieldError{Field: "user",
			Detail:  fmt.Sprintf("jobs of tenant %s may not run as the user of their image", tenant),
			Allowed: "tenant; " + anyUserText(tenant)}, nil
	}
	own := rows[tenant].Users
	if own.IsZero() && take {
		if own, err = c.db.Tenants.Users(ctx, tenant); err != nil {
			return "", nil, err
		}
		c.quotas.forget()
	}
	if user == "" || user == spec.UserTenant {
		if own.IsZero() {
			return spec.UserTenant, nil, nil
		}
		return own.User().String(), nil, nil
	}
	id, ok := spec.ParseUserID(user)
	if !ok || !free && !own.Holds(id) {
		numbers := "the tenant gets numbers of its own with its first container"
		if !own.IsZero() {
			numbers = fmt.Sprintf("numbers from %d to %d", own.First, own.Last)
		}
		return "", &berth.FieldError{Field: "user",
			Detail:  fmt.Sprintf("%.100s is not among the users of tenant %s", user, tenant),
			Allowed: "tenant; " + numbers + "; " + anyUserText(tenant)}, nil
	}
	return id.String(), nil, nil
}

// anyUserText names the command that permits every user to a tenant.
func anyUserText(tenant berth.TenantID) string {
	return fmt.Sprintf("an operator can allow every user with berth quota set %s --any-user=true", tenant)
}

// anyUser reports whether jobs of the tenant may run as every user. The nearest setting on the way to the top
// decides, and above it the default of the cluster: where images choose the user, every user may be chosen.
func (c *Controller) anyUser(rows map[berth.TenantID]db.TenantRow, tenant berth.TenantID) bool {
	for at, here := rows[tenant]; here; at, here = rows[at.Parent] {
		if free := at.Quota.AnyUser; free != nil {
			return *free
		}
	}
	return c.rules.Users == spec.UserImage
}

// userFault returns the fault of a job's choice of a user, or nil. It takes no range of users: plans and refused
// submits write nothing, and a tenant needs no range before its first container.
func (c *Controller) userFault(ctx context.Context, tenant berth.TenantID, user string) (*berth.FieldError, error) {
	if user == "" {
		return nil, nil
	}
	_, fault, err := c.chooseUser(ctx, tenant, user, false)
	return fault, err
}
