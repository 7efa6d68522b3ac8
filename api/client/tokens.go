package client

import (
	"context"
	"net/http"
	"net/url"

	"berth"
)

// CreateToken creates a token. Only this call returns its Secret.
func (c *Client) CreateToken(ctx context.Context, n berth.NewToken) (berth.Token, error) {
	var t berth.Token
	_, err := c.do(ctx, request{method: http.MethodPost, path: "/v1/tokens", body: n, once: true}, &t)
	return t, err
}

// Tokens lists tokens.
func (c *Client) Tokens(ctx context.Context) (berth.Page[berth.Token], error) {
	return pages[berth.Token](ctx, c, "/v1/tokens")
}

// RevokeToken ends a token.
func (c *Client) RevokeToken(ctx context.Context, id string) error {
	_, err := c.do(ctx, request{method: http.MethodDelete, path: "/v1/tokens/" + url.PathEscape(id), once: true}, nil)
	return err
}

// CreateJoinToken creates a token with which one machine joins. Only this call
// returns its Secret.
func (c *Client) CreateJoinToken(ctx context.Context, n berth.NewJoinToken) (berth.JoinToken, error) {
	var t berth.JoinToken
	_, err := c.do(ctx, request{method: http.MethodPost, path: "/v1/join-tokens", body: n, once: true}, &t)
	return t, err
}

// JoinTokens lists join tokens.
func (c *Client) JoinTokens(ctx context.Context) (berth.Page[berth.JoinToken], error) {
	return pages[berth.JoinToken](ctx, c, "/v1/join-tokens")
}

// RevokeJoinToken makes a join token useless.
func (c *Client) RevokeJoinToken(ctx context.Context, id string) error {
	_, err := c.do(ctx, request{method: http.MethodDelete, path: "/v1/join-tokens/" + url.PathEscape(id), once: true}, nil)
	return err
}
