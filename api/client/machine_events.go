package client

import (
	"context"
	"net/url"
	"strconv"

	"berth"
	"berth/wire"
)

// MachineQuery selects machines. Zero fields select all machines that are not retired.
type MachineQuery struct {
	Pool   string
	Labels []string // key=value; all of these
}

// FindMachines returns the machines that q selects, read page by page.
func (c *Client) FindMachines(ctx context.Context, q MachineQuery) (wire.Page[wire.Machine], error) {
	values := url.Values{}
	if q.Pool != "" {
		values.Set("pool", q.Pool)
	}
	for _, l := range q.Labels {
		values.Add("label", l)
	}
	return pagesOf[wire.Machine](ctx, c, "/v1/machines", values)
}

// MachineEvents returns a machine's history after seq, oldest first; 0 is the whole history.
func (c *Client) MachineEvents(ctx context.Context, id berth.MachineID, seq int64) (wire.Page[wire.MachineEvent],
	error) {
	values := url.Values{}
	if seq > 0 {
		values.Set("cursor", strconv.FormatInt(seq, 10))
	}
	return pagesOf[wire.MachineEvent](ctx, c, machinePath(id)+"/events", values)
}
