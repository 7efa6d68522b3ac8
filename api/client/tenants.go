package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"

	"berth"
	"berth/spec"
	"berth/wire"
)

func tenantPath(id berth.TenantID) string { return "/v1/tenants/" + url.PathEscape(string(id)) }
func quotaPath(id berth.TenantID) string  { return "/v1/quotas/" + url.PathEscape(string(id)) }

// Tenants lists tenants with their usage; users see their own tenant.
func (c *Client) Tenants(ctx context.Context) (wire.Page[wire.Tenant], error) {
	return pages[wire.Tenant](ctx, c, "/v1/tenants")
}

// Tenant returns a tenant with its usage.
func (c *Client) Tenant(ctx context.Context, id berth.TenantID) (wire.Tenant, error) {
	var t wire.Tenant
	_, err := c.do(ctx, request{method: http.MethodGet, path: tenantPath(id)}, &t)
	return t, err
}

// CreateTenant creates a tenant. A tenant that exists is a conflict.
func (c *Client) CreateTenant(ctx context.Context, n spec.NewTenant) (wire.Tenant, error) {
	var t wire.Tenant
	_, err := c.do(ctx, request{method: http.MethodPost, path: "/v1/tenants", body: n}, &t)
	return t, err
}

// UpdateTenant changes a tenant's weight or parent.
func (c *Client) UpdateTenant(ctx context.Context, id berth.TenantID, p spec.TenantPatch) (wire.Tenant, error) {
	var t wire.Tenant
	_, err := c.do(ctx, request{method: http.MethodPatch, path: tenantPath(id), body: p}, &t)
	return t, err
}

// DeleteTenant removes a tenant without live jobs, valid tokens, schedules and child
// tenants.
func (c *Client) DeleteTenant(ctx context.Context, id berth.TenantID) error {
	_, err := c.do(ctx, request{method: http.MethodDelete, path: tenantPath(id)}, nil)
	return err
}

// Quotas lists the quotas of tenants with their use; users see their own.
func (c *Client) Quotas(ctx context.Context) (wire.Page[spec.Quota], error) {
	return pages[spec.Quota](ctx, c, "/v1/quotas")
}

// Quota returns the quota of a tenant with its use.
func (c *Client) Quota(ctx context.Context, id berth.TenantID) (spec.Quota, error) {
	var q spec.Quota
	_, err := c.do(ctx, request{method: http.MethodGet, path: quotaPath(id)}, &q)
	return q, err
}

// SetQuota replaces the quota of a tenant. Use is not sent. Unset settings are lifted;
// the later settings are sent as null, since the server keeps such a setting if it is
// left out. A set Version that is out of date is a conflict.
func (c *Client) SetQuota(ctx context.Context, q spec.Quota) (spec.Quota, error) {
	q.Use = nil
	var after spec.Quota
	body, err := quotaBody(q)
	if err != nil {
		return after, err
	}
	_, err = c.do(ctx, request{method: http.MethodPut, path: quotaPath(q.Tenant), body: body}, &after)
	return after, err
}

// quotaBody returns the fields of a quota, with null for unset later settings.
func quotaBody(q spec.Quota) (map[string]json.RawMessage, error) {
	text, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	body := map[string]json.RawMessage{}
	for name := range q.Later() {
		body[name] = json.RawMessage("null")
	}
	return body, json.Unmarshal(text, &body)
}

// DeleteQuota lifts all limits of a tenant.
func (c *Client) DeleteQuota(ctx context.Context, id berth.TenantID) error {
	_, err := c.do(ctx, request{method: http.MethodDelete, path: quotaPath(id)}, nil)
	return err
}
