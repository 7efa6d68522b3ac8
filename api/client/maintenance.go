package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"berth/spec"
	"berth/wire"
)

func maintenancePath(id int64) string { return "/v1/maintenance/" + strconv.FormatInt(id, 10) }

// MaintenanceWindows lists maintenance windows, the latest first. all includes windows that have
// ended or were canceled.
func (c *Client) MaintenanceWindows(ctx context.Context, all bool) (wire.Page[wire.Maintenance], error) {
	var q url.Values
	if all {
		q = url.Values{"all": {"true"}}
	}
	return pagesOf[wire.Maintenance](ctx, c, "/v1/maintenance", q)
}

// Maintenance returns a maintenance window with its machines.
func (c *Client) Maintenance(ctx context.Context, id int64) (wire.Maintenance, error) {
	return maintenance(ctx, c, request{method: http.MethodGet, path: maintenancePath(id)})
}

// CreateMaintenance plans a maintenance window. A machine with another window at the time is a conflict.
func (c *Client) CreateMaintenance(ctx context.Context, m spec.NewMaintenance) (wire.Maintenance, error) {
	return maintenance(ctx, c, request{method: http.MethodPost, path: "/v1/maintenance", body: m, once: true})
}

// ChangeMaintenance changes the settings of a maintenance window that m contains. A Version that is
// out of date is a conflict.
func (c *Client) ChangeMaintenance(ctx context.Context, id int64, m spec.MaintenanceChange) (
	wire.Maintenance, error) {
	return maintenance(ctx, c, request{method: http.MethodPatch, path: maintenancePath(id), body: m,
		once: m.Version != 0})
}

// CancelMaintenance cancels a maintenance window. A window that has begun is a conflict.
func (c *Client) CancelMaintenance(ctx context.Context, id int64) (wire.Maintenance, error) {
	return maintenance(ctx, c, request{method: http.MethodDelete, path: maintenancePath(id)})
}

// EndMaintenance ends a maintenance window early. A window that has not begun is a conflict.
func (c *Client) EndMaintenance(ctx context.Context, id int64) (wire.Maintenance, error) {
	return maintenance(ctx, c, request{method: http.MethodPost, path: maintenancePath(id) + "/end"})
}

// maintenance sends a request whose answer is a maintenance window.
func maintenance(ctx context.Context, c *Client, r request) (x wire.Maintenance, err error) {
	_, err = c.do(ctx, r, &x)
	return x, err
}
