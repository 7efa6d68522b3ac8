package main

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"berth"
	"berth/api/client"
	"berth/spec"
	"berth/wire"
)

// elementsLike matches an array with some of its elements: ID[3-7,9]. Group 1 is the array,
// group 2 the indexes.
var elementsLike = regexp.MustCompile(`^(.+)\[([0-9, -]+)\]$`)

// elementsOf splits an argument into an array and the indexes of its elements. which is ""
// for an argument without brackets. The indexes are not validated.
func elementsOf(arg string) (job, which string) {
	if m := elementsLike.FindStringSubmatch(arg); m != nil {
		return m[1], m[2]
	}
	return arg, ""
}

// findElement returns one element of an array, with its attempts. An element that the array
// lacks is taken from its retries and the arrays that it retries. More than one index is a
// usage error (exit code 2), an element that does not exist is not found (exit code 3).
func findElement(ctx context.Context, a *app, c *client.Client, array, which string) (wire.Job, error) {
	parent, err := a.job(ctx, c, array)
	if err != nil {
		return wire.Job{}, err
	}
	// GET /v1/jobs with parent and index. Two items are enough to detect that which names
	// several.
	q := client.JobsQuery{Parent: parent.ID, Index: which, Limit: 2}
	list, err := c.Jobs(ctx, q)
	if err == nil && len(list.Items) == 0 && parent.Results != nil {
		q.Merged = true
		list, err = c.Jobs(ctx, q)
	}
	switch {
	case err != nil:
		return wire.Job{}, a.failed(ctx, err)
	case len(list.Items) > 1:
		return wire.Job{}, usagef("%s[%s] names more than one element; this command takes one", array, which)
	// The server creates the elements of a large array over time, so a valid index may not
	// exist yet.
	case len(list.Items) == 0:
		return wire.Job{}, berth.Errorf(berth.CodeNotFound, "%s", noElement(parent, which))
	}
	// A listed job lacks its attempts and checkpoints.
	job, err := c.Job(ctx, list.Items[0].ID)
	return job, a.failed(ctx, err)
}

// noElement explains why an array has no element with an index: it is not created yet, or
// never will be. The retry of an array has only the indexes that it runs again.
func noElement(array wire.Job, which string) string {
	if array.Kind != berth.KindArray {
		return fmt.Sprintf("%s is not an array and has no element %s", named(array), which)
	}
	text := fmt.Sprintf("%s has no element %s", named(array), which)
	valid := "0"
	if array.Tally != nil && array.Tally.Total > 1 {
		valid = fmt.Sprintf("0-%d", array.Tally.Total-1)
	}
	if array.Indexes != "" {
		valid = array.Indexes
	}
	want, err := spec.ParseIndexes(which)
	has, err2 := spec.ParseIndexes(valid)
	if err == nil && err2 == nil && covers(has, want[0].First) {
		if !array.Status.Terminal() {
			return text + " yet; elements are created over time"
		}
		return text + ": the array ended before it was created"
	}
	word := "indexes "
	if err2 == nil && len(has) == 1 && has[0].First == has[0].Last {
		word = "index "
	}
	text += "; this array has only " + word + strings.ReplaceAll(valid, ",", ", ")
	if array.RetryOf != nil {
		text += fmt.Sprintf(" (it is a retry of %s)", shortID(*array.RetryOf))
	}
	return text
}

// covers reports whether one of the ranges contains the index.
func covers(list []spec.IndexRange, index int) bool {
	return slices.ContainsFunc(list, func(r spec.IndexRange) bool { return r.First <= index && index <= r.Last })
}

// cancelElements extends a command that cancels jobs to elements: of the arguments that
// name some, or of all arguments with --index. An argument's own indexes take precedence
// over --index.
func cancelElements(a *app, cmd *cobra.Command) *cobra.Command {
	var index string
	cmd.Flags().StringVar(&index, "index", "", "select elements of an array, such as 3-7,9")
	// The command's own RunE receives the remaining arguments, so both parts report alike.
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
			if err := whole(cmd, jobs); err != nil {
				failures = append(failures, err)
			}
		}
		// At the end: one wrong argument must not keep the others from being canceled.
		return reportAll(a, failures)
	}
	return cmd
}

// cancelSome cancels the elements of an array with one call, POST
// /v1/jobs/{id}/cancel?index=..., which is idempotent. Wrong indexes are refused before the
// call.
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
		return after, fmt.Sprintf("canceling elements %[2]s of %[1]s", named(job), which), err
	})
}

// tallyText formats the number of elements in all and in each status, in the order of a
// job's life. It returns "" without a tally.
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
		parts = append(parts, fmt.Sprintf("%d not created yet", t.Unmade))
	}
	return fmt.Sprintf("%d: %s", t.Total, strings.Join(parts, ", "))
}

// tallyProgress converts an array's counts into progress as jobs report progress: ended
// elements are the steps. So the bar of an array is drawn by the same code as a job's.
func tallyProgress(t *wire.Tally) *berth.Progress {
	return &berth.Progress{Step: int64(t.Ended()), Total: int64(t.Total)}
}

// tallyLine formats the counts of an array for one line of progress.
func tallyLine(t *wire.Tally) string {
	text := fmt.Sprintf("%d of %d done, %d running", t.Ended(), t.Total, t.ByStatus[berth.Running])
	if n := t.ByStatus[berth.Failed]; n > 0 {
		text += fmt.Sprintf(", %d failed", n)
	}
	return text
}

// nameText returns a job's name, with the index in brackets for an element of an array.
func nameText(j wire.Job) string {
	if j.ArrayIndex != nil {
		return fmt.Sprintf("%s[%d]", j.Name, *j.ArrayIndex)
	}
	return j.Name
}
