package client

import (
	"context"
	"net/http"
	"net/url"

	"berth"
	"berth/spec"
	"berth/wire"
)

// SubmitPipeline submits a pipeline; key and created are as in Submit.
func (c *Client) SubmitPipeline(ctx context.Context, pipeline spec.Pipeline,
	key string) (job wire.Job, created bool, err error) {
	return c.submit(ctx, "/v1/pipelines", pipeline, key)
}

// ResumePipeline submits a pipeline that takes over the unchanged steps of an ended run which
// succeeded; key and created are as in Submit. A run that is live, or was retried or
// resumed before, is a conflict.
func (c *Client) ResumePipeline(ctx context.Context, pipeline spec.Pipeline, run berth.JobID,
	key string) (job wire.Job, created bool, err error) {
	return c.submit(ctx, "/v1/pipelines?"+url.Values{"resume": {string(run)}}.Encode(), pipeline, key)
}

// Pipeline returns a pipeline with its steps. The id of a job that is not a pipeline is
// not found.
func (c *Client) Pipeline(ctx context.Context, id berth.JobID) (wire.Job, error) {
	var job wire.Job
	_, err := c.do(ctx, request{method: http.MethodGet, path: "/v1/pipelines/" + url.PathEscape(string(id))}, &job)
	return job, err
}
