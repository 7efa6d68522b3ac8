package client

import (
	"context"
	"net/http"
	"net/url"

	"berth"
	"berth/spec"
	"berth/wire"
)

// Machines returns all machines that are not retired, read page by page.
func (c *Client) Machines(ctx context.Context) (wire.Page[wire.Machine], error) {
	return c.FindMachines(ctx, MachineQuery{})
}

// Machine returns a machine with its devices and its running jobs.
func (c *Client) Machine(ctx context.Context, id berth.MachineID) (wire.Machine, error) {
	var m wire.Machine
	_, err := c.do(ctx, request{method: http.MethodGet, path: machinePath(id)}, &m)
	return m, err
}

// Drain keeps new work off a machine. Running jobs continue until the deadline of the
// order, and are then moved away; without a deadline they may end by themselves. A repeat
// changes reason and deadline.
func (c *Client) Drain(ctx context.Context, id berth.MachineID, order wire.DrainRequest) (wire.Machine, error) {
	var m wire.Machine
	_, err := c.do(ctx, request{method: http.MethodPost, path: machinePath(id) + "/drain", body: order}, &m)
	return m, err
}

// Undrain opens a draining machine for work again. A machine that is not draining is left
// unchanged.
func (c *Client) Undrain(ctx context.Context, id berth.MachineID) (wire.Machine, error) {
	var m wire.Machine
	_, err := c.do(ctx, request{method: http.MethodPost, path: machinePath(id) + "/undrain"}, &m)
	return m, err
}

// Taint changes the taints of a machine. Jobs that run there continue.
func (c *Client) Taint(ctx context.Context, id berth.MachineID, change spec.TaintChange) (wire.Machine, error) {
	var m wire.Machine
	_, err := c.do(ctx, request{method: http.MethodPost, path: machinePath(id) + "/taints", body: change}, &m)
	return m, err
}

// WaiveFloor states that the reported version of a machine's component is secure, until a date.
func (c *Client) WaiveFloor(ctx context.Context, id berth.MachineID, w spec.NewWaiver) (wire.Machine, error) {
	var m wire.Machine
	_, err := c.do(ctx, request{method: http.MethodPost, path: machinePath(id) + "/waivers", body: w}, &m)
	return m, err
}

// UnwaiveFloor ends a waiver before its date.
func (c *Client) UnwaiveFloor(ctx context.Context, id berth.MachineID, component string) (wire.Machine, error) {
	var m wire.Machine
	_, err := c.do(ctx, request{method: http.MethodDelete,
		path: machinePath(id) + "/waivers/" + url.PathEscape(component)}, &m)
	return m, err
}

// Approve approves the equipment that a machine reported last. A fingerprint of other equipment than
// the present one is refused.
func (c *Client) Approve(ctx context.Context, id berth.MachineID, fingerprint string) (wire.Machine, error) {
	var m wire.Machine
	_, err := c.do(ctx, request{method: http.MethodPost, path: machinePath(id) + "/approve",
		body: wire.ApproveRequest{Fingerprint: fingerprint}}, &m)
	return m, err
}

// ConfirmDead records the operator's confirmation that a silent machine's containers have
// stopped. The capacity is released, and the affected jobs are returned. A machine that
// still answers is refused. With a wrong confirmation, at_most_one work may run twice.
func (c *Client) ConfirmDead(ctx context.Context, id berth.MachineID) (wire.ConfirmedDead, error) {
	var dead wire.ConfirmedDead
	_, err := c.do(ctx, request{method: http.MethodPost, path: machinePath(id) + "/confirm-dead"}, &dead)
	return dead, err
}

// RemoveMachine retires a machine that holds no work, and revokes its token.
func (c *Client) RemoveMachine(ctx context.Context, id berth.MachineID) error {
	_, err := c.do(ctx, request{method: http.MethodDelete, path: machinePath(id), once: true}, nil)
	return err
}

func machinePath(id berth.MachineID) string { return "/v1/machines/" + url.PathEscape(string(id)) }
