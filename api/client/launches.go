package client

import (
	"context"
	"net/http"
	"net/url"

	"berth"
	"berth/wire"
)

// Launches lists requests for machines of clouds, by machine; all includes launches that are
// gone or failed. An empty machine means every machine.
func (c *Client) Launches(ctx context.Context, machine berth.MachineID, all bool) (wire.Page[wire.Launch], error) {
	query := url.Values{}
	if machine != "" {
		query.Set("machine", string(machine))
	}
	if all {
		query.Set("all", "true")
	}
	return pagesOf[wire.Launch](ctx, c, "/v1/launches", query)
}

// Launch requests machines of a cloud. A key makes a repeated call harmless; without one, each call
// launches further machines.
func (c *Client) Launch(ctx context.Context, r wire.LaunchRequest) (wire.Page[wire.Launch], error) {
	var made wire.Page[wire.Launch]
	_, err := c.do(ctx, request{method: http.MethodPost, path: "/v1/launches", body: r, once: r.Key == ""}, &made)
	return made, err
}

// Terminate drains a machine of a cloud and terminates its instance.
func (c *Client) Terminate(ctx context.Context, id berth.MachineID, r wire.TerminateRequest) (wire.Launch, error) {
	var l wire.Launch
	_, err := c.do(ctx, request{method: http.MethodPost,
		path: "/v1/launches/" + url.PathEscape(string(id)) + "/terminate", body: r}, &l)
	return l, err
}
