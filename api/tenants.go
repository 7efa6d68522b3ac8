package api

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"berth"
	"berth/db"
	"berth/internal/control/admission"
	"berth/internal/control/explain"
	"berth/spec"
	"berth/wire"
)

// tenantHandlers serve the calls about tenants and their quotas. After a change the
// explainer of this process, and after a change of limits its controller of admission,
// reads the tenants again; other replicas notice the change with a delay.
type tenantHandlers struct {
	tenants   *db.Tenants
	admission *admission.Controller
	explainer *explain.Explainer
	log       *slog.Logger
}

func (h *tenantHandlers) mount(r *router) {
	const tag = "administration"
	create := r.operation("create-tenant", http.MethodPost, "/v1/tenants", tag, "Create a tenant")
	create.DefaultStatus = http.StatusCreated
	registerWithBody[spec.NewTenant](r, create, h.createTenant)
	register(r, r.operation("list-tenants", http.MethodGet, "/v1/tenants", tag,
		"List tenants with their use; users see their own"), h.listTenants)
	register(r, r.operation("show-tenant", http.MethodGet, "/v1/tenants/{tenant}", tag,
		"Show a tenant with its usage"), h.showTenant)
	registerWithBody[spec.TenantPatch](r, r.operation("update-tenant", http.MethodPatch, "/v1/tenants/{tenant}", tag,
		"Change a tenant's weight, parent or trust"), h.updateTenant)
	remove := r.operation("delete-tenant", http.MethodDelete, "/v1/tenants/{tenant}", tag,
		"Delete a tenant without live jobs, tokens, schedules and tenants below it")
	remove.DefaultStatus = http.StatusNoContent
	register(r, remove, h.deleteTenant)

	register(r, r.operation("list-quotas", http.MethodGet, "/v1/quotas", tag,
		"List the quotas of tenants; users see their own"), h.listQuotas)
	register(r, r.operation("show-quota", http.MethodGet, "/v1/quotas/{tenant}", tag,
		"Show a tenant's quota and its use"), h.showQuota)
	set := r.operation("set-quota", http.MethodPut, "/v1/quotas/{tenant}", tag, "Replace a tenant's quota")
	set.Description = "A setting that the body leaves out is removed, except `" + strings.Join(db.LaterQuotaSettings,
		"`, `") + "`: " +
		"older clients do not know these, so they stay unless the body sets them to null. " +
		"With a `version` that is not the present one: 409, so that no change overwrites another one unseen."
	registerWithBody[spec.Quota](r, set, h.setQuota)
	unset := r.operation("delete-quota", http.MethodDelete, "/v1/quotas/{tenant}", tag,
		"Delete a tenant's quota, and so all its limits")
	unset.DefaultStatus = http.StatusNoContent
	register(r, unset, h.deleteQuota)
}

// TenantInput is the path of a call about one tenant.
type TenantInput struct {
	Tenant string `path:"tenant" maxLength:"64"`
}

// visible reads one tenant, or all tenants that the caller may see. Another tenant is
// answered like one that does not exist.
func (h *tenantHandlers) visible(ctx context.Context, id string) ([]db.TenantRow, error) {
	own := scope(ctx)
	if own == "" {
		return h.tenants.List(ctx, berth.TenantID(id))
	}
	if id != "" && id != string(own) {
		return nil, berth.Errorf(berth.CodeNotFound, "no such tenant %s", id)
	}
	return h.tenants.List(ctx, own)
}

type (
	tenantOutput     struct{ Body wire.Tenant }
	tenantListOutput struct{ Body wire.Page[wire.Tenant] }
	quotaOutput      struct{ Body spec.Quota }
	quotaListOutput  struct{ Body wire.Page[spec.Quota] }
)

// tenantPage reads a page of the tenants that the caller may see. A user sees one tenant,
// so that a cursor of a user cannot come from this list.
func (h *tenantHandlers) tenantPage(ctx context.Context, in *Paging) ([]db.TenantRow, string, error) {
	if scope(ctx) == "" {
		return h.tenants.Page(ctx, in.long())
	}
	if in.Cursor != "" {
		return nil, "", berth.Errorf(berth.CodeInvalid, "cursor %.40q is not one that this list gave", in.Cursor)
	}
	rows, err := h.visible(ctx, "")
	return rows, "", err
}

// listTenants lists tenants with their usage.
func (h *tenantHandlers) listTenants(ctx context.Context, in *Paging) (*tenantListOutput, error) {
	rows, next, err := h.tenantPage(ctx, in)
	if err != nil {
		return nil, err
	}
	list := make([]wire.Tenant, len(rows))
	for i, r := range rows {
		list[i] = r.Tenant
	}
	return &tenantListOutput{page(list, next)}, nil
}

// showTenant returns a tenant with its usage.
func (h *tenantHandlers) showTenant(ctx context.Context, in *TenantInput) (*tenantOutput, error) {
	rows, err := h.visible(ctx, in.Tenant)
	if err != nil {
		return nil, err
	}
	return &tenantOutput{rows[0].Tenant}, nil
}

// createTenant creates a tenant, with weight 1 by default.
func (h *tenantHandlers) createTenant(ctx context.Context, in *Request) (*tenantOutput, error) {
	n, err := readValid(*in, func(n *spec.NewTenant) { n.Weight = cmp.Or(n.Weight, 1) })
	if err != nil {
		return nil, err
	}
	if err := h.tenants.Create(ctx, n); err != nil {
		return nil, err
	}
	h.admission.Forget()
	h.explainer.Forget()
	h.log.Info("tenant created", "tenant", n.ID, "parent", n.Parent, "weight", n.Weight, "untrusted",
		n.Untrusted, "by", operator(ctx))
	return h.showTenant(ctx, &TenantInput{string(n.ID)})
}

type tenantPatchInput struct {
	TenantInput
	Request
}

// updateTenant changes a tenant's weight, parent or trust.
func (h *tenantHandlers) updateTenant(ctx context.Context, in *tenantPatchInput) (*tenantOutput, error) {
	p, err := readValid[spec.TenantPatch](in.Request, nil)
	if err != nil {
		return nil, err
	}
	if err := h.tenants.Update(ctx, berth.TenantID(in.Tenant), p); err != nil {
		return nil, err
	}
	h.admission.Forget()
	h.explainer.Forget()
	if p.Untrusted != nil {
		h.log.Info("trust of tenant changed", "tenant", in.Tenant, "untrusted", *p.Untrusted, "by", operator(ctx))
	}
	h.log.Info("tenant changed", "tenant", in.Tenant, "by", operator(ctx))
	return h.showTenant(ctx, &in.TenantInput)
}

// deleteTenant removes a tenant without live jobs, valid tokens, schedules and child
// tenants.
func (h *tenantHandlers) deleteTenant(ctx context.Context, in *TenantInput) (*struct{}, error) {
	if err := h.tenants.Delete(ctx, berth.TenantID(in.Tenant)); err != nil {
		return nil, err
	}
	h.admission.Forget() // a new tenant of this name must not inherit the limits
	h.explainer.Forget()
	h.log.Info("tenant removed", "tenant", in.Tenant, "by", operator(ctx))
	return nil, nil
}

// quotaOf returns a tenant's quota together with its use.
func quotaOf(r db.TenantRow) spec.Quota {
	r.Quota.Use = &r.Use
	return r.Quota
}

// listQuotas lists the quotas of tenants with their use.
func (h *tenantHandlers) listQuotas(ctx context.Context, in *Paging) (*quotaListOutput, error) {
	rows, next, err := h.tenantPage(ctx, in)
	if err != nil {
		return nil, err
	}
	list := make([]spec.Quota, len(rows))
	for i, r := range rows {
		list[i] = quotaOf(r)
	}
	return &quotaListOutput{page(list, next)}, nil
}

// showQuota returns the quota of a tenant with its use.
func (h *tenantHandlers) showQuota(ctx context.Context, in *TenantInput) (*quotaOutput, error) {
	rows, err := h.visible(ctx, in.Tenant)
	if err != nil {
		return nil, err
	}
	return &quotaOutput{quotaOf(rows[0])}, nil
}

type quotaInput struct {
	TenantInput
	Request
}

// setQuota replaces a tenant's quota. Settings that older clients do not know stay unless
// the body names them: an older client that writes back a quota must not lift them.
func (h *tenantHandlers) setQuota(ctx context.Context, in *quotaInput) (*quotaOutput, error) {
	var q spec.Quota
	faults, err := decode(in.ContentType, in.RawBody, &q)
	if err != nil {
		return nil, err
	}
	checked := q.Validate()
	if q.Tenant != "" && string(q.Tenant) != in.Tenant {
		checked = append(checked, berth.FieldError{Field: "tenant", Detail: "is not the one of the path",
			Allowed: in.Tenant + ", or leave it out"})
	}
	if err := invalid(berth.SlugInvalidSpec, faults, checked); err != nil {
		return nil, err
	}
	q.Tenant = berth.TenantID(in.Tenant)
	if err := h.tenants.SetQuota(ctx, q, leftOut(in.RawBody, db.LaterQuotaSettings)...); err != nil {
		return nil, err
	}
	h.admission.Forget()
	h.explainer.Forget()
	h.log.Info("quota set", "tenant", q.Tenant, "by", operator(ctx))
	return h.showQuota(ctx, &in.TenantInput)
}

// leftOut returns the names that a JSON object lacks.
func leftOut(object []byte, names []string) []string {
	var has map[string]json.RawMessage
	_ = json.Unmarshal(object, &has) // it was decoded before
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		_, named := has[name]
		return named
	})
}

// deleteQuota lifts all limits of a tenant, also the settings that older clients do not
// know.
func (h *tenantHandlers) deleteQuota(ctx context.Context, in *TenantInput) (*struct{}, error) {
	if err := h.tenants.SetQuota(ctx, spec.Quota{Tenant: berth.TenantID(in.Tenant)}); err != nil {
		return nil, err
	}
	h.admission.Forget()
	h.explainer.Forget()
	h.log.Info("quota lifted", "tenant", in.Tenant, "by", operator(ctx))
	return nil, nil
}
