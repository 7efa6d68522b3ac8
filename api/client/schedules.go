package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"berth/spec"
	"berth/wire"
)

// CreateSchedule creates a schedule. created is false if an equal schedule of that name
// exists; a different schedule of the name is a conflict.
func (c *Client) CreateSchedule(ctx context.Context,
	schedule spec.Schedule) (s wire.Schedule, created bool, err error) {
	status, err := c.do(ctx, request{method: http.MethodPost, path: "/v1/schedules", body: schedule}, &s)
	return s, status == http.StatusCreated, err
}

// ApplySchedule creates a schedule, or changes the one of that name; an equal one is unchanged.
func (c *Client) ApplySchedule(ctx context.Context, schedule spec.Schedule) (wire.AppliedSchedule, error) {
	var a wire.AppliedSchedule
	_, err := c.do(ctx, request{method: http.MethodPut, path: schedulePath(schedule.Name), body: schedule}, &a)
	return a, err
}

// Schedules lists the tenant's schedules, each with its last fire.
func (c *Client) Schedules(ctx context.Context) (wire.Page[wire.Schedule], error) {
	var page wire.Page[wire.Schedule]
	_, err := c.do(ctx, request{method: http.MethodGet, path: "/v1/schedules"}, &page)
	return page, err
}

// Schedule returns a schedule with its coming times and up to fires of its last fires.
func (c *Client) Schedule(ctx context.Context, name string, fires int) (wire.Schedule, error) {
	var s wire.Schedule
	_, err := c.do(ctx, request{method: http.MethodGet, path: schedulePath(name),
		query: url.Values{"fires": {strconv.Itoa(fires)}}}, &s)
	return s, err
}

// DeleteSchedule deletes a schedule; its jobs stay.
func (c *Client) DeleteSchedule(ctx context.Context, name string) error {
	_, err := c.do(ctx, request{method: http.MethodDelete, path: schedulePath(name)}, nil)
	return err
}

// PauseSchedule stops the fires of a schedule until ResumeSchedule; idempotent. A repeat
// changes the note.
func (c *Client) PauseSchedule(ctx context.Context, name, note string) (wire.Schedule, error) {
	return c.noteSchedule(ctx, name, "/pause", note)
}

// ResumeSchedule continues a paused schedule from now on; idempotent. Times that passed
// during the pause are skipped; see BackfillSchedule.
func (c *Client) ResumeSchedule(ctx context.Context, name, note string) (wire.Schedule, error) {
	return c.noteSchedule(ctx, name, "/resume", note)
}

// noteSchedule makes a call that changes a schedule with a note.
func (c *Client) noteSchedule(ctx context.Context, name, verb, note string) (wire.Schedule, error) {
	var s wire.Schedule
	_, err := c.do(ctx, request{method: http.MethodPost, path: schedulePath(name) + verb,
		body: spec.ScheduleNote{Note: note}}, &s)
	return s, err
}

// RunSchedule fires a schedule now, also a paused one, and returns the fire. Overlap ""
// means the schedule's own rule. The client does not repeat the call to an unavailable
// server: the schedule might fire twice.
func (c *Client) RunSchedule(ctx context.Context, name string, overlap spec.Overlap) (wire.Fire, error) {
	var f wire.Fire
	_, err := c.do(ctx, request{method: http.MethodPost, path: schedulePath(name) + "/run",
		body: spec.ScheduleRun{Overlap: overlap}, once: true}, &f)
	return f, err
}

// BackfillSchedule fires a schedule for past times, each once. Times that have created a
// job are left out, so the call may be repeated.
func (c *Client) BackfillSchedule(ctx context.Context, name string, b spec.Backfill) (wire.BackfillResult, error) {
	var r wire.BackfillResult
	_, err := c.do(ctx, request{method: http.MethodPost, path: schedulePath(name) + "/backfill", body: b}, &r)
	return r, err
}

func schedulePath(name string) string { return "/v1/schedules/" + url.PathEscape(name) }
