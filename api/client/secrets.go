package client

import (
	"context"
	"net/http"
	"net/url"

	"berth"
)

// SetSecret stores a secret, or another value of it. created says which.
func (c *Client) SetSecret(ctx context.Context, n berth.NewSecretValue) (s berth.Secret, created bool, err error) {
	status, err := c.do(ctx, request{method: http.MethodPost, path: "/v1/secrets", body: n}, &s)
	return s, status == http.StatusCreated, err
}

// Secrets lists the names of the tenant's secrets.
func (c *Client) Secrets(ctx context.Context) (berth.Page[berth.Secret], error) {
	return pages[berth.Secret](ctx, c, "/v1/secrets")
}

// DeleteSecret removes a secret.
func (c *Client) DeleteSecret(ctx context.Context, name string) error {
	_, err := c.do(ctx, request{method: http.MethodDelete, path: "/v1/secrets/" + url.PathEscape(name)}, nil)
	return err
}
