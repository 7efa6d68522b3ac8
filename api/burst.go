package api

import (
	"context"
	"log/slog"
	"net/http"

	"berth"
	"berth/db"
	"berth/internal/control/autoscale"
	"berth/spec"
	"berth/wire"
)

// burstHandlers serve the calls about the policies of tenants for machines of clouds. Each change drops
// the cached facts of quotes in this process; other replicas see it within seconds.
type burstHandlers struct {
	burst  *db.Burst
	quoter *autoscale.Quoter
	log    *slog.Logger
}

func (h *burstHandlers) mount(r *router) {
	const tag, path = "administration", "/v1/tenants/{tenant}/burst"
	register(r, r.operation("show-burst-policy", http.MethodGet, path, tag,
		"Show a tenant's policy for machines of clouds; users see their own tenant's"), h.show)
	set := r.operation("set-burst-policy", http.MethodPut, path, tag,
		"Replace a tenant's own policy for machines of clouds")
	set.Description = "The policy holds for the tenant and all tenants below it. It can only narrow the policies " +
		"above: a setting that permits more is a fault (422) that names the permitted values. A setting that the " +
		"body leaves out adds no rule. Machines that exist are not changed. " +
		"With a `version` that is not the present one: 409, so that no change is lost."
	registerWithBody[spec.Burst](r, set, h.set)
	remove := r.operation("delete-burst-policy", http.MethodDelete, path, tag,
		"Delete a tenant's own policy for machines of clouds; the policies above then hold alone")
	remove.DefaultStatus = http.StatusNoContent
	register(r, remove, h.delete)
}

type (
	burstOutput   struct{ Body wire.BurstPolicy }
	burstSetInput struct {
		TenantInput
		Request
	}
)

// show returns a tenant's policy. Another tenant is answered like one that does not exist. Admins see
// each tenant's, all others only their own.
func (h *burstHandlers) show(ctx context.Context, in *TenantInput) (*burstOutput, error) {
	// scope is empty for admins, who may see all tenants.
	if own := scope(ctx); own != "" && in.Tenant != string(own) {
		return nil, berth.Errorf(berth.CodeNotFound, "no such tenant %s", in.Tenant)
	}
	row, err := h.burst.Get(ctx, berth.TenantID(in.Tenant))
	if err != nil {
		return nil, err
	}
	p := wire.BurstPolicy{Tenant: row.Tenant, Own: row.Own, Above: row.Above, Effective: row.Effective,
		UpdatedBy: row.UpdatedBy}
	if row.Own != nil {
		p.UpdatedAt = &row.UpdatedAt
	}
	return &burstOutput{p}, nil
}

// set replaces a tenant's own policy. The database compares it with the policies above, under their
// locks.
func (h *burstHandlers) set(ctx context.Context, in *burstSetInput) (*burstOutput, error) {
	b, err := readValid[spec.Burst](in.Request, nil)
	if err != nil {
		return nil, err
	}
	if err := h.burst.Set(ctx, berth.TenantID(in.Tenant), b, operator(ctx)); err != nil {
		return nil, err
	}
	// The next quote must apply the new policy.
	h.quoter.Forget()
	h.log.Info("burst policy set", "tenant", in.Tenant, "allow", b.Allow, "by", operator(ctx))
	return h.show(ctx, &in.TenantInput)
}

// delete removes a tenant's own policy. Without a policy on its path the tenant launches no machine.
func (h *burstHandlers) delete(ctx context.Context, in *TenantInput) (*struct{}, error) {
	if err := h.burst.Delete(ctx, berth.TenantID(in.Tenant)); err != nil {
		return nil, err
	}
	h.quoter.Forget()
	h.log.Info("burst policy deleted", "tenant", in.Tenant, "by", operator(ctx))
	return nil, nil
}
