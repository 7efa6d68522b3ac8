package client

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"berth"
	"berth/wire"
)

// Outputs lists the stored outputs of a job, the latest attempt first. For an array or a
// pipeline it lists the outputs of its elements or steps, each with Job and Step.
func (c *Client) Outputs(ctx context.Context, id berth.JobID) (wire.Page[wire.StoredOutput], error) {
	return pages[wire.StoredOutput](ctx, c, jobPath(id)+"/outputs")
}

// Output downloads an output in its stored form, a tar compressed by zstd. The caller
// closes the reader; ctx must live until then. A download that breaks off is not resumed.
func (c *Client) Output(ctx context.Context, id berth.JobID, o wire.StoredOutput) (io.ReadCloser, error) {
	q := url.Values{"attempt": {strconv.Itoa(o.Attempt)}, "member": {strconv.Itoa(o.Member)}}
	res, err := c.send(ctx, request{method: http.MethodGet, path: jobPath(id) + "/outputs/" + url.PathEscape(o.Name),
		query: q})
	if err != nil {
		return nil, err
	}
	return res.Body, nil
}
