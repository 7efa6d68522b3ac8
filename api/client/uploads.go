package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"berth"
	"berth/wire"
)

// uploadTries bounds the sends of an archive to an unavailable server or over a broken
// connection.
const uploadTries = 3

// FindUpload returns an upload of the caller's tenant. An error of code not_found means
// that the archive must be sent.
func (c *Client) FindUpload(ctx context.Context, a berth.Address) (wire.Upload, error) {
	var u wire.Upload
	_, err := c.do(ctx, request{method: http.MethodGet, path: "/v1/uploads/" + url.PathEscape(string(a))}, &u)
	return u, err
}

// SendUpload stores an archive, a tar compressed by zstd. a is the hash of the tar before
// its compression. write generates the compressed bytes, once for each try.
func (c *Client) SendUpload(ctx context.Context, a berth.Address,
	write func(io.Writer) error) (u wire.Upload, err error) {
	for try := range uploadTries {
		if try > 0 {
			if err := pause(ctx, submitPause<<try); err != nil {
				return u, err
			}
		}
		u, err = c.sendUpload(ctx, a, write)
		if berth.CodeOf(err) != berth.CodeUnavailable && !Unreachable(err) {
			return u, err
		}
	}
	return u, err
}

// sendUpload sends an archive once. write runs in a goroutine that ends before sendUpload
// returns.
func (c *Client) sendUpload(ctx context.Context, a berth.Address,
	write func(io.Writer) error) (u wire.Upload, err error) {
	body, to := io.Pipe()
	packed := make(chan error, 1)
	go func() { // ends with the pipe, which is closed below
		err := write(to)
		packed <- err
		_ = to.CloseWithError(err)
	}()
	defer func() {
		_ = body.Close()
		// A failure to pack explains a broken call better than the call's error.
		if fault := <-packed; fault != nil && fault != io.ErrClosedPipe && err != nil &&
			berth.CodeOf(err) == berth.CodeInternal {
			err = fault
		}
	}()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost,
		c.base+"/v1/uploads?address="+url.QueryEscape(string(a)), body)
	if err != nil {
		return u, err
	}
	req.Header.Set("Content-Type", "application/zstd")
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return u, err
	}
	defer res.Body.Close()
	if res.StatusCode >= 300 {
		return u, problem(res)
	}
	if err := json.NewDecoder(res.Body).Decode(&u); err != nil {
		return u, fmt.Errorf("POST /v1/uploads: read the answer: %w", err)
	}
	return u, nil
}
