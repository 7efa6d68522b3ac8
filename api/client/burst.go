package client

import (
	"context"
	"net/http"
	"net/url"

	"berth"
	"berth/spec"
	"berth/wire"
)

func burstPath(tenant berth.TenantID) string { return tenantPath(tenant) + "/burst" }

// Burst returns the policy of a tenant for machines of clouds, with the policies above it.
func (c *Client) Burst(ctx context.Context, tenant berth.TenantID) (wire.BurstPolicy, error) {
	var p wire.BurstPolicy
	_, err := c.do(ctx, request{method: http.MethodGet, path: burstPath(tenant)}, &p)
	return p, err
}

// SetBurst replaces the policy of a tenant for machines of clouds. A policy that permits more than the policies
// above it is invalid. A set Version that is out of date is a conflict.
func (c *Client) SetBurst(ctx context.Context, tenant berth.TenantID, b spec.Burst) (wire.BurstPolicy, error) {
	var p wire.BurstPolicy
	_, err := c.do(ctx, request{method: http.MethodPut, path: burstPath(tenant), body: b}, &p)
	return p, err
}

// DeleteBurst deletes the policy of a tenant itself. The policies above it then hold alone.
func (c *Client) DeleteBurst(ctx context.Context, tenant berth.TenantID) error {
	_, err := c.do(ctx, request{method: http.MethodDelete, path: burstPath(tenant)}, nil)
	return err
}

// Offers lists machine types of clouds with dated prices, by provider and region. An empty provider or type
// of GPU means all.
func (c *Client) Offers(ctx context.Context, provider, gpuType string) (wire.Page[wire.Offer], error) {
	query := url.Values{}
	if provider != "" {
		query.Set("provider", provider)
	}
	if gpuType != "" {
		query.Set("gpu_type", gpuType)
	}
	return pagesOf[wire.Offer](ctx, c, "/v1/offers", query)
}

// CloudUsage lists the spend for machines of clouds in the period that contains the date, such as 2026-11-26, by
// tenant, or by pool. An empty by means by tenant, an empty tenant all, an empty period the month, and an empty date
// today.
func (c *Client) CloudUsage(ctx context.Context, by string, tenant berth.TenantID, period spec.SpendPeriod,
	date string) (wire.Page[wire.CloudUsage], error) {
	query := url.Values{}
	for name, value := range map[string]string{"by": by, "tenant": string(tenant), "period": string(period),
		"date": date} {
		if value != "" {
			query.Set(name, value)
		}
	}
	return pagesOf[wire.CloudUsage](ctx, c, "/v1/usage", query)
}

// SetOfferPrice sets the price of an own contract for an offer, in place of the price of the file. A price of 0
// removes it.
func (c *Client) SetOfferPrice(ctx context.Context, p wire.OfferPrice) error {
	_, err := c.do(ctx, request{method: http.MethodPut, path: "/v1/offers/price", body: p}, nil)
	return err
}
