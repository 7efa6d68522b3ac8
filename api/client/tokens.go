package client

import (
	"context"
	"net/http"
	"net/url"

	"berth/spec"
	"berth/wire"
)

// CreateToken creates a token. Only this call returns its Secret.
func (c *Client) CreateToken(ctx context.Context, n spec.NewToken) (wire.Token, error) {
	var t wire.Token
	_, err := c.do(ctx, request{method: http.MethodPost, path: "/v1/tokens", body: n, once: true}, &t)
	return t, err
}

// Tokens lists the tokens of all tenants, without secrets.
func (c *Client) Tokens(ctx context.Context) (wire.Page[wire.Token], error) {
	return pages[wire.Token](ctx, c, "/v1/tokens")
}

// TokenEvents lists the creations and revocations of tokens, oldest first.
func (c *Client) TokenEvents(ctx context.Context) (wire.Page[wire.TokenEvent], error) {
	return pages[wire.TokenEvent](ctx, c, "/v1/tokens/events")
}

// RevokeToken revokes a token for good. The server refuses to revoke the token of this
// call.
func (c *Client) RevokeToken(ctx context.Context, id string) error {
	_, err := c.do(ctx, request{method: http.MethodDelete, path: "/v1/tokens/" + url.PathEscape(id), once: true}, nil)
	return err
}

// CreateJoinToken creates a token with which one machine joins. Only this call returns
// its Secret.
func (c *Client) CreateJoinToken(ctx context.Context, n spec.NewJoinToken) (wire.JoinToken, error) {
	var t wire.JoinToken
	_, err := c.do(ctx, request{method: http.MethodPost, path: "/v1/join-tokens", body: n, once: true}, &t)
	return t, err
}

// JoinTokens lists join tokens, without secrets.
func (c *Client) JoinTokens(ctx context.Context) (wire.Page[wire.JoinToken], error) {
	return pages[wire.JoinToken](ctx, c, "/v1/join-tokens")
}

// RevokeJoinToken makes a join token useless. Machines that have joined are not affected.
func (c *Client) RevokeJoinToken(ctx context.Context, id string) error {
	_, err := c.do(ctx, request{method: http.MethodDelete, path: "/v1/join-tokens/" + url.PathEscape(id), once: true},
		nil)
	return err
}
