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
	return pagesOf[T](ctx, c, path, nil)
}

// pagesOf is pages for a list that q selects from. It leaves q unchanged.
func pagesOf[T any](ctx context.Context, c *Client, path string, q url.Values) (wire.Page[T], error) {
	all := wire.Page[T]{Items: []T{}}
	values := url.Values{"limit": {"1000"}}
	for key, list := range q {
		values[key] = list
	}
	for {
		var page wire.Page[T]
		if _, err := c.do(ctx, request{method: http.MethodGet, path: path, query: values}, &page); err != nil {
			return all, err
		}
		all.Items = append(all.Items, page.Items...)
		if page.NextCursor == "" {
			return all, nil
		}
		values["cursor"] = []string{page.NextCursor}
	}
}
