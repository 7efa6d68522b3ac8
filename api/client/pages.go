package client

import (
	"context"
	"net/http"
	"net/url"

	"berth/wire"
)

// pages reads a list to its end and returns one page with all items. An error comes with
// the items read so far.
func pages[T any](ctx context.Context, c *Client, path string) (wire.Page[T], error) {
	all := wire.Page[T]{Items: []T{}}
	q := url.Values{"limit": {"1000"}}
	for {
		var page wire.Page[T]
		if _, err := c.do(ctx, request{method: http.MethodGet, path: path, query: q}, &page); err != nil {
			return all, err
		}
		all.Items = append(all.Items, page.Items...)
		if page.NextCursor == "" {
			return all, nil
		}
		q.Set("cursor", page.NextCursor)
	}
}
