package client

import (
	"context"
	"net/http"
	"net/url"

	"berth/wire"
)

// Whoami returns the name, the tenant and the role of the client's token.
func (c *Client) Whoami(ctx context.Context) (wire.Caller, error) {
	var w wire.Caller
	_, err := c.do(ctx, request{method: http.MethodGet, path: "/v1/whoami"}, &w)
	return w, err
}

// OwnTokens lists the tokens with the name and the tenant of the client's token.
func (c *Client) OwnTokens(ctx context.Context) (wire.Page[wire.Token], error) {
	return pages[wire.Token](ctx, c, "/v1/whoami/tokens")
}

// RevokeOwnToken revokes a token that OwnTokens lists, also the client's own one.
func (c *Client) RevokeOwnToken(ctx context.Context, id string) error {
	_, err := c.do(ctx, request{method: http.MethodDelete, path: "/v1/whoami/tokens/" + url.PathEscape(id), once: true},
		nil)
	return err
}
