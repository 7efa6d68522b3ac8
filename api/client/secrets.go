package client

import (
	"context"
	"net/http"
	"net/url"

	"berth/spec"
	"berth/wire"
)

// SetSecret stores a secret of the caller's tenant. created is false if the secret
// existed and has another value now. No call returns the value.
func (c *Client) SetSecret(ctx context.Context, n spec.NewSecretValue) (s wire.Secret, created bool, err error) {
	status, err := c.do(ctx, request{method: http.MethodPost, path: "/v1/secrets", body: n}, &s)
	return s, status == http.StatusCreated, err
}

// Secrets lists the names of the tenant's secrets.
func (c *Client) Secrets(ctx context.Context) (wire.Page[wire.Secret], error) {
	return pages[wire.Secret](ctx, c, "/v1/secrets")
}

// DeleteSecret deletes a secret. Jobs that name the secret and have not started will
// fail.
func (c *Client) DeleteSecret(ctx context.Context, name string) error {
	_, err := c.do(ctx, request{method: http.MethodDelete, path: "/v1/secrets/" + url.PathEscape(name)}, nil)
	return err
}
