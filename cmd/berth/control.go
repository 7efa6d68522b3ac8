package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"berth"
	"berth/api/client"
	"berth/spec"
	"berth/wire"
)

// act builds a command that does the same to each of its jobs. It continues after a
// failure, so that one ended job among ten does not stop the rest. The exit code is that of
// the last failure.
//
// accept selects the jobs that completion offers. do makes the call and returns the changed
// job and the sentence that -o table prints.
func act(a *app, cmd *cobra.Command, accept func(wire.Job) bool,
	do func(ctx context.Context, c *client.Client, job wire.Job) (wire.Job, string, error)) *cobra.Command {
	cmd.Args = cobra.MinimumNArgs(1)
	cmd.ValidArgsFunction = a.completeJobs(accept)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client()
		if err != nil {
			return err
		}
		var failures []error
		for _, arg := range args {
			if err := a.actOn(cmd.Context(), c, arg, do); err != nil {
				failures = append(failures, err)
			}
		}
		return reportAll(a, failures)
	}
	return cmd
}

// reportAll reports all failures except the last, which it returns for run to report. The exit
// code is that of the last. Without failures it returns nil.
func reportAll(a *app, failures []error) error {
	if len(failures) == 0 {
		return nil
	}
	last := len(failures) - 1
	for _, err := range failures[:last] {
		a.report(err)
	}
	return failures[last]
}

// actOn resolves one argument to a job, calls do and prints the changed job.
func (a *app) actOn(ctx context.Context, c *client.Client, arg string,
	do func(context.Context, *client.Client, wire.Job) (wire.Job, string, error)) error {
	job, err := a.job(ctx, c, arg)
	if err != nil {
		return err
	}
	return a.actOnJob(ctx, c, job, do)
}

// actOnJob calls do for one job and prints the changed job.
func (a *app) actOnJob(ctx context.Context, c *client.Client, job wire.Job,
	do func(context.Context, *client.Client, wire.Job) (wire.Job, string, error)) error {
	after, said, err := do(ctx, c, job)
	if err != nil {
		return a.failed(ctx, err)
	}
	return a.show(view{body: after, names: []string{string(after.ID)}, table: func(bool) error {
		_, err := fmt.Fprintln(a.out, said)
		return err
	}})
}

// filtered extends a command of act by flags that select jobs by filter. accept selects
// the jobs of the filters that the act can change.
func filtered(a *app, cmd *cobra.Command, accept func(wire.Job) bool,
	do func(context.Context, *client.Client, wire.Job) (wire.Job, string, error)) *cobra.Command {
	return filteredBy(a, cmd, &bulkFlags{usual: liveStatus}, accept, do)
}

// filteredBy is filtered with flags that have another status by default.
func filteredBy(a *app, cmd *cobra.Command, f *bulkFlags, accept func(wire.Job) bool,
	do func(context.Context, *client.Client, wire.Job) (wire.Job, string, error)) *cobra.Command {
	f.register(a, cmd)
	named := cmd.RunE
	cmd.Args = f.check
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return named(cmd, args)
		}
		return f.actOnAll(cmd.Context(), a, cmd.Name(), accept, do)
	}
	return cmd
}

// newCancel builds "berth cancel" over POST /v1/jobs/{id}/cancel. The call is idempotent
// and returns at once; the containers of a running job stop later.
func newCancel(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cancel [JOB...]",
		Short: "Cancel jobs; canceling twice is not an error",
		Long: "Cancel cancels waiting jobs at once; running jobs get SIGTERM, then SIGKILL after their stop_grace.\n" +
			"Ended jobs are not changed. ID[3-7] or --index selects elements of an array. Filters select jobs " +
			"instead:\nthe command names the number of jobs and asks for a confirmation, or requires --yes without a " +
			"terminal.\nThe final steps of a pipeline still run; --skip-final cancels them, too.",
		Example: "  berth cancel digits\n  berth cancel 'sweep[3-7,9]'\n" +
			"  berth cancel --status queued --name 'tune-*'\n  berth cancel --mine --yes",
	}
	how := cancelFlags(cmd)
	do := func(ctx context.Context, c *client.Client, job wire.Job) (wire.Job, string, error) {
		after, err := c.Cancel(ctx, job.ID, how()...)
		said := canceledText(job, after)
		// By the status before the call: a job that had ended keeps its end.
		if job.Status.Terminal() {
			said = fmt.Sprintf("%s had already %s", named(job), past(after.Status))
		}
		return after, said, err
	}
	return filtered(a, cancelElements(a, act(a, cmd, liveJob, do)), liveJob, do)
}

// cancelFlags adds the flags of a cancel; how returns their options.
func cancelFlags(cmd *cobra.Command) (how func() []client.CancelOption) {
	var skip bool
	cmd.Flags().BoolVar(&skip, "skip-final", false, "cancel the final steps of pipelines, too")
	return func() []client.CancelOption {
		if skip {
			return []client.CancelOption{client.SkipFinal}
		}
		return nil
	}
}

// canceledText describes a canceled job. A pipeline with final steps keeps its status while
// they run.
func canceledText(before, after wire.Job) string {
	if isPipeline(after) && !after.Status.Terminal() && after.Status != berth.Canceling {
		return fmt.Sprintf("%s is canceled, but its final steps still run; to cancel the final steps: "+
			"berth cancel --skip-final %s", named(before), handle(after))
	}
	return fmt.Sprintf("%s is %s", named(before), after.Status)
}

// newHold builds "berth hold" over POST /v1/jobs/{id}/hold, which keeps waiting jobs from
// being placed.
func newHold(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "hold [JOB...]",
		Short: "Hold waiting jobs",
		Long: "Hold keeps waiting jobs from starting until berth release. Held time does not count towards " +
			"queue_timeout.",
	}
	do := func(ctx context.Context, c *client.Client, job wire.Job) (wire.Job, string, error) {
		after, err := c.Hold(ctx, job.ID)
		return after, named(job) + " is held", err
	}
	return filtered(a, act(a, cmd, waitingJob, do), waitingJob, do)
}

// newRelease builds "berth release" over POST /v1/jobs/{id}/release. Releasing a job that
// is not held is no error, so the sentence distinguishes the two.
func newRelease(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "release [JOB...]",
		Short: "Release held jobs",
		Long: "Release ends the hold of jobs; for a pipeline or an array, the hold of all its children. A child of a " +
			"held parent is released only with the parent.\n\n" +
			"Of a job that has ended, release ends the hold of a failed attempt (hold_on_failure).",
	}
	held := func(j wire.Job) bool { return j.Held }
	do := func(ctx context.Context, c *client.Client, job wire.Job) (wire.Job, string, error) {
		after, err := c.Release(ctx, job.ID)
		said := named(job) + " is released"
		if !job.Held {
			said = named(job) + " was not held"
		}
		for _, h := range after.HeldAttempts {
			if job.Status.Terminal() && h.Status == berth.Canceling {
				said = fmt.Sprintf("the hold of attempt %d of %s ends", h.Attempt, named(job))
			}
		}
		return after, said, err
	}
	return filtered(a, act(a, cmd, held, do), held, do)
}

// newPriority builds "berth priority" over PATCH /v1/jobs/{id}. The command takes one job,
// since its second argument is the priority.
func newPriority(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "priority JOB PRIORITY",
		Short:   "Set a job's priority: low, normal, high, or 0 to 1000",
		Example: "  berth priority digits high",
		Args:    cobra.ExactArgs(2),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			// The words before the cursor are the job alone: offer the named priorities.
			if len(args) == 1 {
				return []string{"low", "normal", "high"}, cobra.ShellCompDirectiveNoFileComp
			}
			return a.completeJobs(liveJob)(cmd, args, word)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			priority, err := spec.ParsePriority(args[1])
			if err != nil {
				return usagef("%v", err)
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			return a.actOn(cmd.Context(), c, args[0],
				func(ctx context.Context, c *client.Client, job wire.Job) (wire.Job, string, error) {
					after, err := c.Update(ctx, job.ID, spec.JobPatch{Priority: &priority})
					return after, fmt.Sprintf("%s has priority %s", named(job), priority), err
				})
		},
	}
}

// named formats a job for messages: its name, its index in an array, and the beginning of
// its id, as several jobs may have one name.
func named(j wire.Job) string { return fmt.Sprintf("%s (%s)", nameText(j), handle(j)) }

// past returns an end in the form that follows "had": succeeded, failed, been canceled.
func past(s berth.State) string {
	if s == berth.Canceled {
		return "been canceled"
	}
	return string(s)
}
