package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"berth"
	"berth/wire"
)

// QueueQuery selects waiting jobs. All set fields must match; a zero field does not restrict
// the selection.
type QueueQuery struct {
	Tenant berth.TenantID // for admins; users see their own tenant
	Pool   string         // jobs that a machine of this pool could run
	Limit  int            // 0: 100; at most 1000
	Cursor string         // NextCursor of the page before; "": the first page
}

// Queue returns a page of the waiting jobs in the order in which they would start.
// NextCursor of the page is the Cursor of the next; "" after the last page. A page may be
// shorter than its limit, since it leaves out jobs that have just started.
func (c *Client) Queue(ctx context.Context, q QueueQuery) (wire.Queue, error) {
	v := url.Values{}
	set(v, "tenant", string(q.Tenant))
	set(v, "pool", q.Pool)
	set(v, "cursor", q.Cursor)
	if q.Limit > 0 {
		v.Set("limit", strconv.Itoa(q.Limit))
	}
	var queue wire.Queue
	_, err := c.do(ctx, request{method: http.MethodGet, path: "/v1/queue", query: v}, &queue)
	return queue, err
}
