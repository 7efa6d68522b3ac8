package api

import (
	"context"
	"fmt"
	"strings"
	"time"

	"berth"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

// listInput selects jobs. All given conditions must hold; several values of Status are
// alternatives.
type listInput struct {
	Status []string `query:"status,explode" doc:"any of these; may be given more than once, or with commas"`
	Name   string   `query:"name"`
	Label  []string `query:"label,explode" doc:"key=value; all of these; may be given more than once"`
	Tenant string   `query:"tenant" doc:"for admins; others see their own"`
	Parent string   `query:"parent" doc:"the elements of this array; without it they are left out"`
	Index  string   `query:"index" doc:"with parent: only these elements, such as 3-7,9"`
	Merged bool     `query:"merged" doc:"with parent: of an array and its retries the latest element of each index"`
	Since  string   `query:"since" doc:"submitted since: a time (RFC 3339), or how long ago (24h)"`
	By     string   `query:"submitted_by" maxLength:"200" doc:"actor of the submit, such as user:alice"`
	Dead   bool     `query:"dead_letter" doc:"only jobs that failed with no attempts left"`
	Count  bool     `query:"count" doc:"count the jobs of all pages, up to 1001: total"`
	Paging
}

// Paging selects a page of a list.
type Paging struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" doc:"default 100"`
	Cursor string `query:"cursor" maxLength:"500" doc:"next_cursor of the page before"`
}

// long returns the paging of a list that earlier clients expect whole: without a limit
// the page is as long as allowed.
func (p Paging) long() db.Paging {
	if p.Limit == 0 {
		p.Limit = db.MaxPage
	}
	return db.Paging{Limit: p.Limit, Cursor: p.Cursor}
}

type listOutput struct{ Body wire.Page[wire.Job] }

// listJobs returns a page of jobs. Waiting jobs without a reason show the pause of
// admission, if one is in force.
func (h *jobHandlers) listJobs(ctx context.Context, in *listInput) (*listOutput, error) {
	f, err := in.filter(ctx)
	if err != nil {
		return nil, err
	}
	jobs, next, err := h.jobs.List(ctx, f)
	if err != nil {
		return nil, err
	}
	each := make([]*wire.Job, len(jobs))
	for i := range jobs {
		each[i] = &jobs[i]
	}
	// Both calls fill in all jobs of the page at once, so that a page costs a fixed number of queries.
	if err := h.control.tellPause(ctx, each...); err != nil {
		return nil, err
	}
	if err := h.reasons.fill(ctx, each...); err != nil {
		return nil, err
	}
	out := &listOutput{page(jobs, next)}
	if in.Count {
		n, err := f.Count(ctx, h.jobs)
		if err != nil {
			return nil, err
		}
		out.Body.Total = &n
	}
	return out, nil
}

// page returns items with [] in place of null in JSON: clients iterate over items without
// a check.
func page[T any](items []T, next string) wire.Page[T] {
	if items == nil {
		items = []T{}
	}
	return wire.Page[T]{Items: items, NextCursor: next}
}

// filter converts the query into the filter of the database, or reports every fault at
// once. Users list their own tenant's jobs only.
func (in *listInput) filter(ctx context.Context) (db.JobFilter, error) {
	f := db.JobFilter{Tenant: scope(ctx), Name: in.Name, Limit: in.Limit, Cursor: in.Cursor,
		SubmittedBy: in.By, DeadLetter: in.Dead, Merged: in.Merged}
	var faults []berth.FieldError
	fault := func(field, detail, allowed string) {
		faults = append(faults, berth.FieldError{Field: field, Detail: clip(detail), Allowed: allowed})
	}
	for _, s := range in.Status {
		for part := range strings.SplitSeq(s, ",") {
			state, err := berth.ParseState(part)
			if err != nil {
				fault("status", fmt.Sprintf("%q is not known", part),
					"submitted, queued, scheduled, running, preempting, canceling, retrying, succeeded, failed, "+
						"canceled")
			}
			f.Status = append(f.Status, state)
		}
	}
	for _, l := range in.Label {
		key, value, ok := strings.Cut(l, "=")
		if !ok || key == "" {
			fault("label", fmt.Sprintf("%q is not a label", l), "key=value")
			continue
		}
		if f.Labels == nil {
			f.Labels = map[string]string{}
		}
		f.Labels[key] = value
	}
	if in.Parent != "" {
		id, err := berth.ParseJobID(in.Parent)
		if err != nil {
			fault("parent", err.Error(), "a job's whole id")
		}
		f.Parent = &id
	}
	if in.Index != "" {
		ranges, err := spec.ParseIndexes(in.Index)
		if err != nil || in.Parent == "" {
			fault("index", fmt.Sprintf("%q are no elements of an array", in.Index),
				"with parent, numbers and ranges such as 3-7,9")
		}
		f.Index = ranges
	}
	if in.Since != "" {
		at, err := parseSince(in.Since)
		if err != nil {
			fault("since", err.Error(), "a time such as 2026-01-31T12:00:00Z, or how long ago, such as 24h")
		}
		f.Since = at
	}
	// The same answer for any other tenant, so that it does not reveal whether one exists.
	if in.Tenant != "" && f.Tenant != "" && in.Tenant != string(f.Tenant) {
		return f, berth.Errorf(berth.CodeForbidden, "only admins list other tenants' jobs")
	}
	if in.Tenant != "" {
		f.Tenant = berth.TenantID(in.Tenant)
	}
	for field, text := range map[string]string{"name": in.Name, "tenant": in.Tenant, "submitted_by": in.By,
		"label": strings.Join(in.Label, "")} {
		if strings.ContainsRune(text, 0) {
			fault(field, "has a NUL", "text without NUL")
		}
	}
	return f, invalid("", faults, nil)
}

// parseSince reads a time (RFC 3339), or a duration before now.
func parseSince(s string) (time.Time, error) {
	if d, err := spec.ParseDuration(s); err == nil {
		return time.Now().Add(-d.Std()), nil
	}
	at, err := time.Parse(time.RFC3339Nano, s)
	if err != nil || at.Year() < 1970 || at.Year() > 9999 {
		return time.Time{}, fmt.Errorf("%.60q is neither a time nor a duration", s)
	}
	return at, nil
}
