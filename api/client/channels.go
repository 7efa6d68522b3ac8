package client

import (
	"context"
	"net/http"
	"net/url"

	"berth/spec"
	"berth/wire"
)

func channelPath(name string) string { return "/v1/channels/" + url.PathEscape(name) }

// SetChannel creates a notification channel of the caller's tenant or replaces its settings. created is false if the
// channel existed.
func (c *Client) SetChannel(ctx context.Context, name string,
	n spec.Channel) (ch wire.ChannelStatus, created bool, err error) {
	status, err := c.do(ctx, request{method: http.MethodPut, path: channelPath(name), body: n}, &ch)
	return ch, status == http.StatusCreated, err
}

// Channels lists the notification channels of the tenant and of the tenants above it.
func (c *Client) Channels(ctx context.Context) (wire.Page[wire.ChannelStatus], error) {
	return pages[wire.ChannelStatus](ctx, c, "/v1/channels")
}

// Channel returns a notification channel of the tenant.
func (c *Client) Channel(ctx context.Context, name string) (ch wire.ChannelStatus, err error) {
	_, err = c.do(ctx, request{method: http.MethodGet, path: channelPath(name)}, &ch)
	return ch, err
}

// DeleteChannel deletes a notification channel of the tenant.
func (c *Client) DeleteChannel(ctx context.Context, name string) error {
	_, err := c.do(ctx, request{method: http.MethodDelete, path: channelPath(name)}, nil)
	return err
}

// TestChannel sends a notification to try a channel, and returns the channel as it was before the delivery.
func (c *Client) TestChannel(ctx context.Context, name string) (ch wire.ChannelStatus, err error) {
	_, err = c.do(ctx, request{method: http.MethodPost, path: channelPath(name) + "/test", once: true}, &ch)
	return ch, err
}
