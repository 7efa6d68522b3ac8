package client

import (
	"context"
	"net/http"
	"net/url"

	"berth/spec"
	"berth/wire"
)

func poolPath(name string) string { return "/v1/pools/" + url.PathEscape(name) }

// Pools lists pools of machines with their rules, by name.
func (c *Client) Pools(ctx context.Context) (wire.Page[wire.Pool], error) {
	return pages[wire.Pool](ctx, c, "/v1/pools")
}

// Pool returns a pool with its rules.
func (c *Client) Pool(ctx context.Context, name string) (wire.Pool, error) {
	var p wire.Pool
	_, err := c.do(ctx, request{method: http.MethodGet, path: poolPath(name)}, &p)
	return p, err
}

// SetPool replaces the rules of a pool, and creates the pool if it does not exist. Unset rules are
// lifted. A set Version that is out of date is a conflict.
func (c *Client) SetPool(ctx context.Context, name string, p spec.PoolRules) (wire.Pool, error) {
	var after wire.Pool
	_, err := c.do(ctx, request{method: http.MethodPut, path: poolPath(name), body: p}, &after)
	return after, err
}

// DeletePool deletes a pool. A pool in use is a conflict.
func (c *Client) DeletePool(ctx context.Context, name string) error {
	_, err := c.do(ctx, request{method: http.MethodDelete, path: poolPath(name)}, nil)
	return err
}
