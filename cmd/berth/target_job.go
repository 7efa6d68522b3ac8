package main

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"berth"
	"berth/api/client"
	"berth/wire"
)

// idLike matches the beginning of an id; the server requires four characters. A name can
// look like one too, so a name is tried when no id matches.
var idLike = regexp.MustCompile(`^[0-9a-fA-F]{4}[0-9a-fA-F-]*$`)

// scheduleName matches names that a schedule may have.
var scheduleName = regexp.MustCompile(`^[a-z0-9-]{1,63}$`)

// job returns the job that an argument means: by handle, by id or its beginning, or by name,
// where the latest job of that name is taken and a message says so. The name of a schedule, if no
// job has it, is its last job. ID[3] or NAME[3] is an
// element of an array, and NAME.fit the step fit of a pipeline; the two combine. Several
// ids with the same beginning or end, or no job, are errors.
func (a *app) job(ctx context.Context, c *client.Client, arg string) (wire.Job, error) {
	job, err := jobOnly(ctx, a, c, arg)
	if berth.CodeOf(err) != berth.CodeNotFound || !scheduleName.MatchString(arg) {
		return job, err
	}
	id, err := jobOfSchedule(ctx, a, c, arg, err)
	if err != nil {
		return wire.Job{}, err
	}
	job, err = c.Job(ctx, id)
	return job, a.failed(ctx, err)
}

// jobOnly is job without the names of schedules.
func jobOnly(ctx context.Context, a *app, c *client.Client, arg string) (wire.Job, error) {
	if arg == "" { // as from an unset variable: the server would list all jobs
		return wire.Job{}, usagef("no job given: an id, the beginning of an id, or a name is required")
	}
	if array, which := elementsOf(arg); which != "" {
		return findElement(ctx, a, c, array, which)
	}
	if dot := strings.LastIndexByte(arg, '.'); dot >= 0 {
		if dot == 0 || dot == len(arg)-1 {
			return wire.Job{}, usagef("%q does not name a step; allowed: PIPELINE.STEP", arg)
		}
		return a.step(ctx, c, arg[:dot], arg[dot+1:])
	}
	// One call for an id, the usual case. Only "not found" leads on to the search by name:
	// any other error would be hidden by it.
	if idLike.MatchString(arg) {
		job, err := c.Job(ctx, berth.JobID(arg))
		if err == nil || berth.CodeOf(a.failed(ctx, err)) != berth.CodeNotFound {
			return job, a.failed(ctx, err)
		}
	}
	id, err := a.jobNamed(ctx, c, arg)
	if err != nil {
		return wire.Job{}, err
	}
	// A listed job lacks its attempts and checkpoints, hence a second call.
	job, err := c.Job(ctx, id)
	return job, a.failed(ctx, err)
}

// step returns one step of a pipeline, which may be a nested pipeline itself. The last dot
// separates the step, since neither names nor ids contain dots; the rest is resolved as a
// job again.
func (a *app) step(ctx context.Context, c *client.Client, pipeline, name string) (wire.Job, error) {
	parent, err := a.job(ctx, c, pipeline)
	if err != nil {
		return wire.Job{}, err
	}
	if parent.Kind != berth.KindPipeline {
		return wire.Job{}, usagef("%s is not a pipeline and has no step %q", named(parent), name)
	}
	for _, step := range parent.Steps {
		if step.Name == name {
			job, err := c.Job(ctx, step.Job)
			return job, a.failed(ctx, err)
		}
	}
	return wire.Job{}, berth.Errorf(berth.CodeNotFound, "%s has no step %q; list its steps: berth pipeline show %s",
		named(parent), name, pipeline)
}

// jobNamed returns the id of the latest job with a name. Names need not be unique: a retry
// has the name of its original. Two items of the list are enough to know that there are
// several.
func (a *app) jobNamed(ctx context.Context, c *client.Client, name string) (berth.JobID, error) {
	list, err := c.Jobs(ctx, client.JobsQuery{Name: name, Limit: 2})
	if err != nil {
		return "", a.failed(ctx, err)
	}
	switch len(list.Items) {
	case 0:
		return "", berth.Errorf(berth.CodeNotFound, "no job has the id or name %q", name)
	case 1:
	default:
		a.say("using the latest of %s jobs named %s: %s (list them: berth list --name %s)",
			numberNamed(ctx, c, name), name, handle(list.Items[0]), name)
	}
	return list.Items[0].ID, nil
}

// numberNamed returns the number of jobs with a name, of which there are at least two. It is "several" where
// the server does not count, which is no reason to fail.
func numberNamed(ctx context.Context, c *client.Client, name string) string {
	counted, err := c.Jobs(ctx, client.JobsQuery{Name: name, Limit: 1, Count: true})
	switch {
	case err != nil || counted.Total == nil || *counted.Total < 2:
		return "several"
	case *counted.Total > mostCounted:
		return fmt.Sprintf("more than %d", mostCounted)
	}
	return strconv.Itoa(*counted.Total)
}

// jobOfSchedule returns the id of the last job that a schedule has submitted, for a name that no
// job has; missing is the error for a name that no schedule has either.
func jobOfSchedule(
	ctx context.Context, a *app, c *client.Client, name string, missing error,
) (berth.JobID, error) {
	// Fires without a job, as skipped ones, may be the newest.
	s, err := c.Schedule(ctx, name, shownFires)
	if berth.CodeOf(a.failed(ctx, err)) == berth.CodeNotFound {
		return "", missing
	}
	if err != nil {
		return "", a.failed(ctx, err)
	}
	for _, f := range s.Fires {
		if f.Job != nil {
			a.say("using the last job of schedule %s: %s (list them: berth schedule show %s)", name, fireHandle(f),
				name)
			return *f.Job, nil
		}
	}
	return "", berth.Errorf(berth.CodeNotFound, "schedule %s has not submitted a job yet", name)
}

// jobSince resolves the arguments of a command that reads a job's history: the job, and the
// earliest time. The zero time means the whole history. --since is parsed first, so that a
// wrong one fails without a call.
func (a *app) jobSince(ctx context.Context,
	name, sinceText string) (c *client.Client, job wire.Job, since time.Time, err error) {
	if since, err = parseSince(sinceText, a.now()); err != nil {
		return nil, job, since, err
	}
	if c, err = a.client(); err != nil {
		return nil, job, since, err
	}
	job, err = a.job(ctx, c, name)
	return c, job, since, err
}
