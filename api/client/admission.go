package client

import (
	"context"
	"net/http"

	"berth/spec"
	"berth/wire"
)

// Admission returns the newest change of admission: the present state, and the time,
// actor and reason of the change.
func (c *Client) Admission(ctx context.Context) (wire.Admission, error) {
	var a wire.Admission
	_, err := c.do(ctx, request{method: http.MethodGet, path: "/v1/admission"}, &a)
	return a, err
}

// SetAdmission pauses or resumes the start of new work in the whole cluster. Running work
// continues. The call needs a token of role admin; a repeat changes nothing.
func (c *Client) SetAdmission(ctx context.Context, n spec.NewAdmission) (wire.Admission, error) {
	var a wire.Admission
	_, err := c.do(ctx, request{method: http.MethodPut, path: "/v1/admission", body: n}, &a)
	return a, err
}
