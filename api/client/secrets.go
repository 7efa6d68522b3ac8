package client

import (
	"context"
	"net/http"
	"net/url"

	"berth/spec"
	"berth/wire"
)

// SetSecret stores a secret, or another value of it. created says which.
func (c *Client) SetSecret(ctx context.Context, n spec.NewSecretValue) (s wire.Secret, created bool, err error) {
	status, err := c.do(ctx, request{method: http.MethodPost, path: "/v1/secrets", body: n}, &s)
	return s, status == http.StatusCreated, err
}

// Secrets lists the names of the tenant's secrets.
func (c *Client) Secrets(ctx context.Context) (wire.Page[wire.Secret], error) {
	return pages[wire.Secret](ctx, c, "/v1/secrets")
}

// DeleteSecret removes a secret.
func (c *Client) DeleteSecret(ctx context.Context, name string) error {
	_, err := c.do(ctx, request{method: http.MethodDelete, path: "/v1/secrets/" + url.PathEscape(name)}, nil)
	return err
}
