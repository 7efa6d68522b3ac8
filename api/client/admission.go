package client

import (
	"context"
	"net/http"

	"berth/spec"
	"berth/wire"
)

// Admission shows whether new work may start.
func (c *Client) Admission(ctx context.Context) (wire.Admission, error) {
	var a wire.Admission
	_, err := c.do(ctx, request{method: http.MethodGet, path: "/v1/admission"}, &a)
	return a, err
}

// SetAdmission pauses or resumes the start of new work in the whole cluster.
func (c *Client) SetAdmission(ctx context.Context, n spec.NewAdmission) (wire.Admission, error) {
	var a wire.Admission
	_, err := c.do(ctx, request{method: http.MethodPut, path: "/v1/admission", body: n}, &a)
	return a, err
}
