package api

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"berth"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

func (s *Server) registerTenants() {
	const tag = "administration"
	create := s.operation("create-tenant", http.MethodPost, "/v1/tenants", tag, "Make a tenant")
	create.DefaultStatus = http.StatusCreated
	registerWithBody[spec.NewTenant](s, create, s.createTenant)
	register(s, s.operation("list-tenants", http.MethodGet, "/v1/tenants", tag, "List tenants with what they use; users see their own"), s.listTenants)
	register(s, s.operation("show-tenant", http.MethodGet, "/v1/tenants/{tenant}", tag, "Show a tenant with what it uses"), s.showTenant)
	registerWithBody[spec.TenantPatch](s, s.operation("update-tenant", http.MethodPatch, "/v1/tenants/{tenant}", tag, "Change a tenant's weight or parent"), s.updateTenant)
	remove := s.operation("delete-tenant", http.MethodDelete, "/v1/tenants/{tenant}", tag, "Remove a tenant to which nothing belongs")
	remove.DefaultStatus = http.StatusNoContent
	register(s, remove, s.deleteTenant)

	register(s, s.operation("list-quotas", http.MethodGet, "/v1/quotas", tag, "List what tenants may have; users see their own"), s.listQuotas)
	register(s, s.operation("show-quota", http.MethodGet, "/v1/quotas/{tenant}", tag, "Show what a tenant may have, and has"), s.showQuota)
	set := s.operation("set-quota", http.MethodPut, "/v1/quotas/{tenant}", tag, "Replace what a tenant may have")
	set.Description = "What the body leaves out binds no more, except for `" + strings.Join(db.LaterQuotaSettings, "`, `") + "`: " +
		"older clients do not know these; left out they stay, and null lifts them. " +
		"With a `version` that is not the present one: 409, so that nobody undoes another's change unseen."
	registerWithBody[spec.Quota](s, set, s.setQuota)
	unset := s.operation("delete-quota", http.MethodDelete, "/v1/quotas/{tenant}", tag, "Lift all limits of a tenant")
	unset.DefaultStatus = http.StatusNoContent
	register(s, unset, s.deleteQuota)
}

// TenantInput is the path of a call about one tenant.
type TenantInput struct {
	Tenant string `path:"tenant" maxLength:"64"`
}

// tenants reads one tenant, or all that the caller may see. Another tenant is
// answered like one that does not exist.
func (s *Server) tenants(ctx context.Context, id string) ([]db.TenantRow, error) {
	own := scope(ctx)
	if own == "" {
		return s.DB.Tenants.List(ctx, berth.TenantID(id))
	}
	if id != "" && id != string(own) {
		return nil, berth.Errorf(berth.CodeNotFound, "no such tenant %s", id)
	}
	return s.DB.Tenants.List(ctx, own)
}

type (
	tenantOutput     struct{ Body wire.Tenant }
	tenantListOutput struct{ Body wire.Page[wire.Tenant] }
	quotaOutput      struct{ Body spec.Quota }
	quotaListOutput  struct{ Body wire.Page[spec.Quota] }
)

// tenantPage reads a page of the tenants that the caller may see.
func (s *Server) tenantPage(ctx context.Context, in *Paging) ([]db.TenantRow, string, error) {
	if scope(ctx) == "" {
		return s.DB.Tenants.Page(ctx, in.long())
	}
	if in.Cursor != "" {
		return nil, "", berth.Errorf(berth.CodeInvalid, "cursor %.40q is not one that this list gave", in.Cursor)
	}
	rows, err := s.tenants(ctx, "")
	return rows, "", err
}

func (s *Server) listTenants(ctx context.Context, in *Paging) (*tenantListOutput, error) {
	rows, next, err := s.tenantPage(ctx, in)
	if err != nil {
		return nil, err
	}
	list := make([]wire.Tenant, len(rows))
	for i, r := range rows {
		list[i] = r.Tenant
	}
	return &tenantListOutput{page(list, next)}, nil
}

func (s *Server) showTenant(ctx context.Context, in *TenantInput) (*tenantOutput, error) {
	rows, err := s.tenants(ctx, in.Tenant)
	if err != nil {
		return nil, err
	}
	return &tenantOutput{rows[0].Tenant}, nil
}

func (s *Server) createTenant(ctx context.Context, in *Request) (*tenantOutput, error) {
	n, err := readValid(*in, func(n *spec.NewTenant) { n.Weight = cmp.Or(n.Weight, 1) })
	if err != nil {
		return nil, err
	}
	if err := s.DB.Tenants.Create(ctx, n); err != nil {
		return nil, err
	}
	s.admission.Forget()
	s.explainer.Forget()
	s.Logger.Info("tenant made", "tenant", n.ID, "parent", n.Parent, "weight", n.Weight, "by", operator(ctx))
	return s.showTenant(ctx, &TenantInput{string(n.ID)})
}

type tenantPatchInput struct {
	TenantInput
	Request
}

func (s *Server) updateTenant(ctx context.Context, in *tenantPatchInput) (*tenantOutput, error) {
	p, err := readValid[spec.TenantPatch](in.Request, nil)
	if err != nil {
		return nil, err
	}
	if err := s.DB.Tenants.Update(ctx, berth.TenantID(in.Tenant), p); err != nil {
		return nil, err
	}
	s.admission.Forget()
	s.explainer.Forget()
	s.Logger.Info("tenant changed", "tenant", in.Tenant, "by", operator(ctx))
	return s.showTenant(ctx, &in.TenantInput)
}

func (s *Server) deleteTenant(ctx context.Context, in *TenantInput) (*struct{}, error) {
	if err := s.DB.Tenants.Delete(ctx, berth.TenantID(in.Tenant)); err != nil {
		return nil, err
	}
	s.explainer.Forget()
	s.Logger.Info("tenant removed", "tenant", in.Tenant, "by", operator(ctx))
	return nil, nil
}

// quotaOf returns a tenant's quota together with its use.
func quotaOf(r db.TenantRow) spec.Quota {
	r.Quota.Use = &r.Use
	return r.Quota
}

func (s *Server) listQuotas(ctx context.Context, in *Paging) (*quotaListOutput, error) {
	rows, next, err := s.tenantPage(ctx, in)
	if err != nil {
		return nil, err
	}
	list := make([]spec.Quota, len(rows))
	for i, r := range rows {
		list[i] = quotaOf(r)
	}
	return &quotaListOutput{page(list, next)}, nil
}

func (s *Server) showQuota(ctx context.Context, in *TenantInput) (*quotaOutput, error) {
	rows, err := s.tenants(ctx, in.Tenant)
	if err != nil {
		return nil, err
	}
	return &quotaOutput{quotaOf(rows[0])}, nil
}

type quotaInput struct {
	TenantInput
	Request
}

func (s *Server) setQuota(ctx context.Context, in *quotaInput) (*quotaOutput, error) {
	var q spec.Quota
	faults, err := decode(in.ContentType, in.RawBody, &q)
	if err != nil {
		return nil, err
	}
	checked := q.Validate()
	if q.Tenant != "" && string(q.Tenant) != in.Tenant {
		checked = append(checked, berth.FieldError{Field: "tenant", Detail: "is not the one of the path", Allowed: in.Tenant + ", or leave it out"})
	}
	if err := invalid(berth.SlugInvalidSpec, faults, checked); err != nil {
		return nil, err
	}
	q.Tenant = berth.TenantID(in.Tenant)
	if err := s.DB.Tenants.SetQuota(ctx, q, leftOut(in.RawBody, db.LaterQuotaSettings)...); err != nil {
		return nil, err
	}
	s.admission.Forget()
	s.explainer.Forget()
	s.Logger.Info("quota set", "tenant", q.Tenant, "by", operator(ctx))
	return s.showQuota(ctx, &in.TenantInput)
}

// leftOut returns the names that a JSON object does not have.
func leftOut(object []byte, names []string) []string {
	var has map[string]json.RawMessage
	_ = json.Unmarshal(object, &has) // it was decoded before
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		_, named := has[name]
		return named
	})
}

func (s *Server) deleteQuota(ctx context.Context, in *TenantInput) (*struct{}, error) {
	if err := s.DB.Tenants.SetQuota(ctx, spec.Quota{Tenant: berth.TenantID(in.Tenant)}); err != nil {
		return nil, err
	}
	s.admission.Forget()
	s.explainer.Forget()
	s.Logger.Info("quota lifted", "tenant", in.Tenant, "by", operator(ctx))
	return nil, nil
}
