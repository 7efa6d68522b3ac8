package client

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"berth"
	"berth/wire"
)

// Checkpoints returns a job's checkpoints, newest first.
func (c *Client) Checkpoints(ctx context.Context, id berth.JobID) (wire.Page[berth.Checkpoint], error) {
	var page wire.Page[berth.Checkpoint]
	_, err := c.do(ctx, request{method: http.MethodGet, path: jobPath(id) + "/checkpoints"}, &page)
	return page, err
}

// CheckpointInterval returns the interval between checkpoints that would lose least work of a job.
func (c *Client) CheckpointInterval(ctx context.Context, id berth.JobID) (wire.CheckpointInterval, error) {
	var interval wire.CheckpointInterval
	_, err := c.do(ctx, request{method: http.MethodGet, path: jobPath(id) + "/checkpoint-interval"}, &interval)
	return interval, err
}

// CheckpointFiles lists the files of one member in a verified checkpoint.
func (c *Client) CheckpointFiles(ctx context.Context, id berth.JobID, step int64,
	member int) (wire.CheckpointFiles, error) {
	var files wire.CheckpointFiles
	_, err := c.do(ctx, request{method: http.MethodGet, path: memberPath(id, step, member)}, &files)
	return files, err
}

// CheckpointFile downloads a file of a list, by its place in the list. The caller closes the
// reader; ctx must live until then. A download that breaks off is not resumed.
func (c *Client) CheckpointFile(ctx context.Context, id berth.JobID, of wire.CheckpointFiles,
	file int) (io.ReadCloser, error) {
	res, err := c.send(ctx, request{method: http.MethodGet,
		path:  fmt.Sprintf("%s/files/%d", memberPath(id, of.Step, of.Member), file),
		query: url.Values{"attempt": {strconv.Itoa(of.Attempt)}}})
	if err != nil {
		return nil, err
	}
	return res.Body, nil
}

// PinCheckpoint keeps a verified checkpoint from being pruned until UnpinCheckpoint; both are
// idempotent.
func (c *Client) PinCheckpoint(ctx context.Context, id berth.JobID, step int64) (berth.Checkpoint, error) {
	return c.changeCheckpoint(ctx, id, step, "/pin")
}

// UnpinCheckpoint ends the effect of PinCheckpoint.
func (c *Client) UnpinCheckpoint(ctx context.Context, id berth.JobID, step int64) (berth.Checkpoint, error) {
	return c.changeCheckpoint(ctx, id, step, "/unpin")
}

// RemoveCheckpoint removes a checkpoint of an ended job. One that is pinned, or from which a
// live job started, is a conflict.
func (c *Client) RemoveCheckpoint(ctx context.Context, id berth.JobID, step int64) error {
	_, err := c.do(ctx, request{method: http.MethodDelete, path: stepPath(id, step)}, nil)
	return err
}

func (c *Client) changeCheckpoint(ctx context.Context, id berth.JobID, step int64,
	verb string) (berth.Checkpoint, error) {
	var after berth.Checkpoint
	_, err := c.do(ctx, request{method: http.MethodPost, path: stepPath(id, step) + verb}, &after)
	return after, err
}

func stepPath(id berth.JobID, step int64) string {
	return jobPath(id) + "/checkpoints/" + strconv.FormatInt(step, 10)
}

func memberPath(id berth.JobID, step int64, member int) string {
	return fmt.Sprintf("%s/members/%d", stepPath(id, step), member)
}
