package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"berth"
	"berth/api/client"
	"berth/wire"
)

// newRetry builds "berth retry" over POST /v1/jobs/{id}/retry. A whole job that was retried
// before returns its existing retry, so a repeated command creates no second one.
func newRetry(a *app) *cobra.Command {
	var failed bool
	var file string
	cmd := &cobra.Command{
		Use:   "retry JOB...",
		Short: "Run ended jobs again as new jobs, linked to the originals",
		Long: "Retry submits the spec of an ended job as a new job, with the same code and inputs. The old job does\n" +
			"not change; each names the other.\n" +
			"With --failed only the failed part runs again: the failed elements of an array, with their indexes, or\n" +
			"the steps of a pipeline that did not succeed. With --file a changed job file runs in place of the old\n" +
			"spec.",
		Example: "  berth retry digits\n  berth retry --failed sweep\n  berth retry digits --file train.yaml",
	}
	cmd.Flags().BoolVar(&failed, "failed", false, "retry only the failed elements of an array or steps of a pipeline")
	cmd.Flags().StringVarP(&file, "file", "f", "", "job file to run in place of the old spec, or - for standard input")
	cmd.MarkFlagsMutuallyExclusive("failed", "file")
	ended := func(j wire.Job) bool { return j.Status.Terminal() }
	act(a, cmd, ended, func(ctx context.Context, c *client.Client, job wire.Job) (wire.Job, string, error) {
		retry := c.Retry
		if failed {
			retry = c.RetryFailed
		}
		after, err := retry(ctx, job.ID)
		if err == nil {
			sayRetried(a, job, after)
		}
		// Only the new id goes to standard output, as with submit, for id=$(berth retry
		// JOB).
		return after, string(after.ID), err
	})
	plain := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case file == "":
			return plain(cmd, args)
		case len(args) > 1:
			return usagef("--file is the spec of one job, but %d are given", len(args))
		}
		return retryWithFile(cmd.Context(), a, args[0], file)
	}
	return cmd
}

// retryWithFile submits a job file as the retry of a job, and uploads its folders first.
func retryWithFile(ctx context.Context, a *app, arg, name string) error {
	file, err := a.readJobFile(name)
	if err != nil {
		return err
	}
	c, err := a.client()
	if err != nil {
		return err
	}
	return a.actOn(ctx, c, arg, func(ctx context.Context, c *client.Client, job wire.Job) (wire.Job, string, error) {
		if isPipeline(job) {
			return job, "", usagef("%s is a pipeline; run the changed file with: "+
				"berth pipeline submit FILE --resume %s", named(job), arg)
		}
		jobSpec, err := sendFolders(ctx, a, c, file.Spec, baseOf(file), "")
		if err != nil {
			return job, "", err
		}
		after, err := c.RetryAs(ctx, job.ID, jobSpec)
		if err != nil {
			return job, "", located(a.failed(ctx, err), file)
		}
		sayRetried(a, job, after)
		return after, string(after.ID), nil
	})
}

// sayRetried reports the new job, and the code and the inputs that it runs with.
func sayRetried(a *app, old, job wire.Job) {
	a.say("submitted %s as a retry of %s", job.ID, named(old))
	if job.Spec == nil {
		return
	}
	var parts []string
	if job.Spec.Workdir != "" {
		text := "code " + shortAddress(job.Spec.Workdir)
		if old.Spec != nil && old.Spec.Workdir == job.Spec.Workdir {
			text += " (unchanged)"
		}
		parts = append(parts, text)
	}
	if n := len(job.Spec.Inputs); n > 0 {
		from := make([]string, n)
		for i, in := range job.Spec.Inputs {
			from[i] = shortAddress(in.From)
		}
		parts = append(parts, plural(n, "input", "inputs")+": "+strings.Join(from, ", "))
	}
	if len(parts) > 0 {
		a.say("it runs with %s", oneLine(strings.Join(parts, "; ")))
	}
}

// shortAddress returns the part of a content address that people compare; any other text is
// returned unchanged.
func shortAddress(text string) string {
	const shown = len("sha256:") + 12
	if _, err := berth.ParseAddress(text); err != nil {
		return text
	}
	return text[:min(len(text), shown)]
}
