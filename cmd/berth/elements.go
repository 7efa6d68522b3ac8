package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"berth"
	"berth/api/client"
	"berth/spec"
	"berth/wire"
)

// elementsLike is an array and some of its elements: ID[3-7,9].
var elementsLike = regexp.MustCompile(`^(.+)\[([0-9, -]+)\]$`)

// elementsOf takes the elements off an argument; which is "" for a whole job.
func elementsOf(arg string) (job, which string) {
	if m := elementsLike.FindStringSubmatch(arg); m != nil {
		return m[1], m[2]
	}
	return arg, ""
}

// findElement finds one element of an array.
func findElement(ctx context.Context, a *app, c *client.Client, array, which string) (wire.Job, error) {
	parent, err := a.job(ctx, c, array)
	if err != nil {
		return wire.Job{}, err
	}
	list, err := c.Jobs(ctx, client.JobsQuery{Parent: parent.ID, Index: which, Limit: 2})
	switch {
	case err != nil:
		return wire.Job{}, a.failed(ctx, err)
	case len(list.Items) > 1:
		return wire.Job{}, usagef("%s[%s] names more than one element; this command takes one", array, which)
	case len(list.Items) == 0:
		return wire.Job{}, berth.Errorf(berth.CodeNotFound, "%s has no element %s yet, or none at all",
			named(parent), which)
	}
	job, err := c.Job(ctx, list.Items[0].ID)
	return job, a.failed(ctx, err)
}

// cancelElements makes a command that cancels jobs also cancel elements: of
// arguments that name some, or with --index of all.
func cancelElements(a *app, cmd *cobra.Command) *cobra.Command {
	var index string
	cmd.Flags().StringVar(&index, "index", "", "select elements of an array, such as 3-7,9")
	whole := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var jobs []string
		var failures []error
		for _, arg := range args {
			job, which := elementsOf(arg)
			if which == "" {
				which = index
			}
			if which == "" {
				jobs = append(jobs, job)
				continue
			}
			if err := cancelSome(cmd.Context(), a, job, which); err != nil {
				failures = append(failures, err)
			}
		}
		if len(jobs) > 0 {
			failures = append(failures, whole(cmd, jobs))
		}
		return errors.Join(failures...)
	}
	return cmd
}

func cancelSome(ctx context.Context, a *app, array, which string) error {
	if _, err := spec.ParseIndexes(which); err != nil {
		return usagef("%v", err)
	}
	c, err := a.client()
	if err != nil {
		return err
	}
	return a.actOn(ctx, c, array, func(ctx context.Context, c *client.Client, job wire.Job) (wire.Job, string, error) {
		after, err := c.CancelElements(ctx, job.ID, strings.ReplaceAll(which, " ", ""))
		return after, fmt.Sprintf("%s: elements %s are canceled, or told to stop", named(job), which), err
	})
}

// tallyText is how an array's elements stand.
func tallyText(t *wire.Tally) string {
	if t == nil {
		return ""
	}
	var parts []string
	for _, s := range berth.States {
		if n := t.ByStatus[s]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, s))
		}
	}
	if t.Unmade > 0 {
		parts = append(parts, fmt.Sprintf("%d not made yet", t.Unmade))
	}
	return fmt.Sprintf("%d: %s", t.Total, strings.Join(parts, ", "))
}

// tallyProgress converts an array's counts into progress as jobs report it: ended
// elements are steps.
func tallyProgress(t *wire.Tally) *berth.Progress {
	p := &berth.Progress{Step: int64(t.Ended()), Total: int64(t.Total)}
	p.Message = fmt.Sprintf("%d at work", t.Holding())
	if n := t.ByStatus[berth.Failed]; n > 0 {
		p.Message += fmt.Sprintf(", %d failed", n)
	}
	return p
}

// nameText is a job's name, and which element of its array it is.
func nameText(j wire.Job) string {
	if j.ArrayIndex != nil {
		return fmt.Sprintf("%s[%d]", j.Name, *j.ArrayIndex)
	}
	return j.Name
}
