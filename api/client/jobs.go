package client

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"berth"
	"berth/spec"
	"berth/wire"
)

// pause waits for d, or returns the error of ctx.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// JobsQuery selects jobs. All set fields must match; a zero field does not restrict the
// selection.
type JobsQuery struct {
	Status []berth.State
	Name   string
	Labels map[string]string // a job must have all of these
	Tenant berth.TenantID    // for admins; users see their own tenant
	Parent berth.JobID       // an array: selects its elements
	Index  string            // with Parent: only these elements, such as 3-7,9
	Merged bool              // with Parent: of an array and its retries the latest element of each index
	Since  time.Time         // submitted at this time or later

	SubmittedBy string // actor of the submit, such as user:alice
	DeadLetter  bool   // only jobs that failed with no attempts left
	Count       bool   // also count the jobs of all pages: Total of the page

	Limit  int    // 0: 100; at most 1000
	Cursor string // NextCursor of the page before; "": the first page
}

// Jobs returns a page of jobs, newest first. Without q.Parent, elements of arrays are
// left out. NextCursor of the page is the Cursor of the next; "" after the last page.
func (c *Client) Jobs(ctx context.Context, q JobsQuery) (wire.Page[wire.Job], error) {
	v := url.Values{}
	for _, s := range q.Status {
		v.Add("status", string(s))
	}
	for k, value := range q.Labels {
		v.Add("label", k+"="+value)
	}
	set(v, "name", q.Name)
	set(v, "tenant", string(q.Tenant))
	set(v, "parent", string(q.Parent))
	set(v, "index", q.Index)
	set(v, "cursor", q.Cursor)
	if !q.Since.IsZero() {
		v.Set("since", q.Since.UTC().Format(time.RFC3339Nano))
	}
	set(v, "submitted_by", q.SubmittedBy)
	if q.DeadLetter {
		v.Set("dead_letter", "true")
	}
	if q.Merged {
		v.Set("merged", "true")
	}
	if q.Count {
		v.Set("count", "true")
	}
	if q.Limit > 0 {
		v.Set("limit", strconv.Itoa(q.Limit))
	}
	var page wire.Page[wire.Job]
	_, err := c.do(ctx, request{method: http.MethodGet, path: "/v1/jobs", query: v}, &page)
	return page, err
}

// set sets a parameter unless the value is empty.
func set(v url.Values, key, value string) {
	if value != "" {
		v.Set(key, value)
	}
}

// Job returns a job with its attempts and checkpoints. id may be the beginning of an id,
// if exactly one job's id begins so.
func (c *Client) Job(ctx context.Context, id berth.JobID) (wire.Job, error) {
	return c.job(ctx, http.MethodGet, id, "", nil)
}

// A CancelOption changes a cancel.
type CancelOption func(url.Values)

// SkipFinal cancels the final steps of a pipeline, too, which otherwise still run.
func SkipFinal(q url.Values) { q.Set("skip_final", "true") }

// Cancel cancels a job, or an array or pipeline as a whole; idempotent. The returned job
// may still be canceling: its containers get their grace to stop. A pipeline with final
// steps keeps its status until these have ended. Wait returns after the end.
func (c *Client) Cancel(ctx context.Context, id berth.JobID, how ...CancelOption) (wire.Job, error) {
	query := url.Values{}
	for _, set := range how {
		set(query)
	}
	return c.act(ctx, id, "/cancel", query)
}

// CancelElements cancels some elements of an array, such as 3-7,9; idempotent.
func (c *Client) CancelElements(ctx context.Context, id berth.JobID, index string) (wire.Job, error) {
	return c.act(ctx, id, "/cancel", url.Values{"index": {index}})
}

// Hold keeps a waiting job from being placed until Release.
func (c *Client) Hold(ctx context.Context, id berth.JobID) (wire.Job, error) {
	return c.job(ctx, http.MethodPost, id, "/hold", nil)
}

// Suspend stops a job after a checkpoint and holds it until Release; a waiting job is only held.
// Without loseWork a running job that could not continue from a checkpoint is a conflict.
// The returned job may still be preempting.
func (c *Client) Suspend(ctx context.Context, id berth.JobID, loseWork bool) (wire.Job, error) {
	return c.act(ctx, id, "/suspend", url.Values{"lose_work": {strconv.FormatBool(loseWork)}})
}

// Save asks a running job to write a checkpoint, by its checkpoint.signal. Save does not wait for
// the checkpoint.
func (c *Client) Save(ctx context.Context, id berth.JobID) (wire.Job, error) {
	return c.job(ctx, http.MethodPost, id, "/save", nil)
}

// Release ends a hold. The time on hold does not count towards the queue timeout.
func (c *Client) Release(ctx context.Context, id berth.JobID) (wire.Job, error) {
	return c.job(ctx, http.MethodPost, id, "/release", nil)
}

// RetryOptions say how an ended job is submitted again. The zero value repeats it as a whole,
// from its newest verified checkpoint.
type RetryOptions struct {
	Failed bool      // of an array or a pipeline: only the parts that did not succeed
	Fresh  bool      // start as the job's file says, not from a checkpoint of the old job
	Spec   *spec.Job // run in place of the old spec; not with Failed

	FreshImage bool // resolve the image's name again, instead of the digest found at the submit of the old job
}

// Retry submits an ended job again and returns the new job. For a job that was retried with
// equal options already, Retry returns the existing successor, so a repeated call has no
// further effect. A live job is a conflict, and so is a job that was retried with another
// Spec.
func (c *Client) Retry(ctx context.Context, id berth.JobID, o RetryOptions) (wire.Job, error) {
	r := request{method: http.MethodPost, path: jobPath(id) + "/retry", query: url.Values{}}
	for name, on := range map[string]bool{"failed": o.Failed, "fresh": o.Fresh, "with_spec": o.Spec != nil,
		"fresh_image": o.FreshImage} {
		if on {
			r.query.Set(name, "true")
		}
	}
	if o.Spec != nil {
		r.body = o.Spec
	}
	var job wire.Job
	_, err := c.do(ctx, r, &job)
	return job, err
}

// act changes a job by a POST with parameters.
func (c *Client) act(ctx context.Context, id berth.JobID, verb string, q url.Values) (wire.Job, error) {
	var job wire.Job
	_, err := c.do(ctx, request{method: http.MethodPost, path: jobPath(id) + verb, query: q}, &job)
	return job, err
}

// Update changes priority, labels or time limit of a live job. A time limit applies from
// the next attempt on.
func (c *Client) Update(ctx context.Context, id berth.JobID, patch spec.JobPatch) (wire.Job, error) {
	return c.job(ctx, http.MethodPatch, id, "", patch)
}

// job makes a call that returns one job.
func (c *Client) job(ctx context.Context, method string, id berth.JobID, verb string, body any) (wire.Job, error) {
	var job wire.Job
	_, err := c.do(ctx, request{method: method, path: jobPath(id) + verb, body: body}, &job)
	return job, err
}

func jobPath(id berth.JobID) string { return "/v1/jobs/" + url.PathEscape(string(id)) }

// MetricsQuery selects a part of a job's metrics. The zero value selects member 0 of the
// latest attempt.
type MetricsQuery struct {
	Attempt int // 0: the latest
	Member  int // below 0: all
	Since   time.Time
}

// values renders the query as parameters.
func (q MetricsQuery) values() url.Values {
	v := url.Values{"attempt": {strconv.Itoa(q.Attempt)}, "member": {strconv.Itoa(max(q.Member, -1))}}
	if !q.Since.IsZero() {
		v.Set("since", q.Since.UTC().Format(time.RFC3339Nano))
	}
	return v
}

// Metrics returns the resource usage of a job's members in one attempt, read page by
// page. Members without measurements are left out.
func (c *Client) Metrics(ctx context.Context, id berth.JobID, q MetricsQuery) (wire.Page[wire.MemberMetrics], error) {
	all := wire.Page[wire.MemberMetrics]{Items: []wire.MemberMetrics{}}
	for v := q.values(); ; {
		var page wire.Page[wire.MemberMetrics]
		if _, err := c.do(ctx, request{method: http.MethodGet, path: jobPath(id) + "/metrics", query: v},
			&page); err != nil {
			return all, err
		}
		all.Items = append(all.Items, page.Items...)
		if page.NextCursor == "" {
			return all, nil
		}
		v.Set("cursor", page.NextCursor)
	}
}

// MetricsSVG returns the metrics as an SVG picture, of up to 64 members.
func (c *Client) MetricsSVG(ctx context.Context, id berth.JobID, q MetricsQuery) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	v := q.values()
	v.Set("format", "svg")
	v.Set("limit", "64")
	res, err := c.send(ctx, request{method: http.MethodGet, path: jobPath(id) + "/metrics", query: v})
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, fmt.Errorf("read the picture: %w", err)
	}
	return b, nil
}

// Events returns the whole history of a job after seq, oldest first, read page by page. 0
// means from the beginning.
func (c *Client) Events(ctx context.Context, id berth.JobID, after int64) (wire.Page[wire.Event], error) {
	all := wire.Page[wire.Event]{Items: []wire.Event{}}
	cursor := strconv.FormatInt(after, 10)
	for {
		var page wire.Page[wire.Event]
		q := url.Values{"cursor": {cursor}, "limit": {"1000"}}
		if _, err := c.do(ctx, request{method: http.MethodGet, path: jobPath(id) + "/events", query: q},
			&page); err != nil {
			return all, err
		}
		all.Items = append(all.Items, page.Items...)
		if page.NextCursor == "" {
			return all, nil
		}
		cursor = page.NextCursor
	}
}

// Explain returns the reasons for a job's state, and its blockers.
func (c *Client) Explain(ctx context.Context, id berth.JobID) (wire.Explanation, error) {
	var e wire.Explanation
	_, err := c.do(ctx, request{method: http.MethodGet, path: jobPath(id) + "/explain"}, &e)
	return e, err
}

// Plan predicts the placement of a job, and stores nothing. The answer rests on a reading
// of the queue that is at most two seconds old.
func (c *Client) Plan(ctx context.Context, jobSpec spec.Job) (wire.Plan, error) {
	var p wire.Plan
	_, err := c.do(ctx, request{method: http.MethodPost, path: "/v1/plans", body: jobSpec}, &p)
	return p, err
}

// Wait returns the job after its end. It follows the job's history instead of polling,
// and reconnects a broken stream; ctx bounds the wait.
func (c *Client) Wait(ctx context.Context, id berth.JobID) (wire.Job, error) {
	if err := c.FollowEvents(ctx, id, 0, func(wire.Event) error { return nil }); err != nil {
		return wire.Job{}, fmt.Errorf("wait for job %s: %w", id, err)
	}
	return c.Job(ctx, id)
}
