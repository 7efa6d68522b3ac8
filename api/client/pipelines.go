package client

import (
	"context"
	"net/http"
	"net/url"

	"berth"
)

// SubmitPipeline submits a pipeline, as Submit does a job.
func (c *Client) SubmitPipeline(ctx context.Context, spec berth.PipelineSpec, key string) (job berth.Job, created bool, err error) {
	return c.submit(ctx, "/v1/pipelines", spec, key)
}

// Pipeline returns a pipeline with its steps.
func (c *Client) Pipeline(ctx context.Context, id berth.JobID) (berth.Job, error) {
	var job berth.Job
	_, err := c.do(ctx, request{method: http.MethodGet, path: "/v1/pipelines/" + url.PathEscape(string(id))}, &job)
	return job, err
}
