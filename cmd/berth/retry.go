package main

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/spf13/cobra"

	"berth"
	"berth/api/client"
	"berth/internal/lib/jobfile"
	"berth/spec"
	"berth/wire"
)

// newRetry builds "berth retry" over POST /v1/jobs/{id}/retry. A whole job that was retried
// before returns its existing retry, so a repeated command creates no second one.
func newRetry(a *app) *cobra.Command {
	var failed bool
	var from freshness
	var file string
	var over overrides
	cmd := &cobra.Command{
		Use:   "retry [JOB...]",
		Short: "Run ended jobs again as new jobs, linked to the originals",
		Long: "Retry submits the spec of an ended job as a new job, with the same code and inputs. The old job does\n" +
			"not change; each names the other. The new job resumes from the newest verified checkpoint of the old\n" +
			"one. A job that succeeded, or never saved a checkpoint, starts from the beginning, as does any with\n" +
			"--fresh. If the tag of the old job's image was resolved at its submit, the new job runs the same\n" +
			"digest, even if the tag has moved, and the command prints it. With --fresh-image, --file, --env,\n" +
			"--set or --secret, and in all other cases, the tag is resolved again.\n" +
			"With --failed only the failed part runs again: the failed elements of an array, with their indexes, or\n" +
			"the steps of a pipeline that did not succeed. With --file a changed job file runs in place of the old\n" +
			"spec. --env, --set and --secret change the file, or without one the old spec.\n" +
			"Filters select jobs instead: ended jobs without a retry, and only failed ones unless --status names\n" +
			"others. The command names the number of jobs and asks for a confirmation, or requires --yes without\n" +
			"a terminal.",
		Example: "  berth retry digits\n  berth retry --fresh digits\n  berth retry --failed sweep\n" +
			"  berth retry digits --file train.yaml\n" +
			"  berth retry digits --set env.LR=0.01\n  berth retry --name 'tune-*' --since 24h",
	}
	over.register(cmd)
	cmd.Flags().BoolVar(&failed, "failed", false, "retry only the failed elements of an array or steps of a pipeline")
	cmd.Flags().BoolVar(&from.start, "fresh", false, "start from the beginning, or from checkpoint.from of the file")
	cmd.Flags().BoolVar(&from.image, "fresh-image", false,
		"resolve the image's tag again, instead of running the content that it named at the submit of the old job")
	cmd.Flags().StringVarP(&file, "file", "f", "", "job file to run in place of the old spec, or - for standard input")
	cmd.MarkFlagsMutuallyExclusive("failed", "file")
	ended := func(j wire.Job) bool { return j.Status.Terminal() }
	do := retryWhole(a, &failed, &from)
	// The retry of a job that has one would print that one as new.
	unretried := func(j wire.Job) bool { return ended(j) && j.RetriedBy == nil }
	filteredBy(a, act(a, cmd, ended, do), &bulkFlags{usual: string(berth.Failed)}, unretried, do)
	plain := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := refuseEmpty(cmd, "file"); err != nil {
			return err
		}
		changes := file != "" || !over.none()
		switch {
		case !changes:
			return plain(cmd, args)
		case failed:
			return usagef("--failed runs the old spec; leave it out, or leave out --env, --set and --secret")
		case len(args) != 1:
			return usagef("a changed spec is the retry of one job, but %d are given", len(args))
		}
		return retryChanged(cmd.Context(), a, args[0], changedJob{file, over, from})
	}
	return cmd
}

// freshness lists the parts of the old job that a retry does not take over.
type freshness struct {
	start bool // its checkpoints
	image bool // the digest of its image
}

// retryWhole returns the act of a retry with the old spec, by the flags --failed, --fresh and --fresh-image. Only the
// new id goes to standard output, as with submit, for id=$(berth retry JOB).
func retryWhole(
	a *app, failed *bool, from *freshness,
) func(context.Context, *client.Client, wire.Job) (wire.Job, string, error) {
	return func(ctx context.Context, c *client.Client, job wire.Job) (wire.Job, string, error) {
		after, err := c.Retry(ctx, job.ID, client.RetryOptions{
			Failed: *failed, Fresh: from.start, FreshImage: from.image,
		})
		if err == nil {
			sayRetried(a, job, after)
		}
		return after, string(after.ID), err
	}
}

// changedJob is the spec that a job is retried with: a job file, or without one the job's own
// spec, with overrides.
type changedJob struct {
	name string // of the file, "" without one
	over overrides
	from freshness
}

// retryChanged submits a changed spec as the retry of a job. It uploads the folders of the
// file first.
func retryChanged(ctx context.Context, a *app, arg string, by changedJob) error {
	var file *jobfile.File
	if by.name != "" {
		src, shown, err := a.readFile(ctx, "job file", by.name)
		if err != nil {
			return err
		}
		if file, err = parseJob(shown, src, by.over); err != nil {
			return err
		}
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
		var changed spec.Job
		var err error
		if file != nil {
			changed, err = sendFolders(ctx, a, c, file.Spec, baseOf(file), "")
		} else {
			changed, err = changedSpec(job, by.over)
		}
		if err != nil {
			return job, "", err
		}
		after, err := c.Retry(ctx, job.ID, client.RetryOptions{Fresh: by.from.start, FreshImage: by.from.image,
			Spec: &changed})
		if err != nil {
			return job, "", located(a.failed(ctx, err), file)
		}
		sayRetried(a, job, after)
		return after, string(after.ID), nil
	})
}

// changedSpec returns the job's spec with overrides. The job is not changed.
func changedSpec(job wire.Job, over overrides) (spec.Job, error) {
	var changed spec.Job
	if job.Spec == nil {
		return changed, usagef("the spec of %s is not stored any longer; give the file with --file", named(job))
	}
	// A copy through JSON is deep: the overrides must not reach the maps and slices of the shown job.
	text, err := json.Marshal(job.Spec)
	if err == nil {
		err = json.Unmarshal(text, &changed)
	}
	if err != nil {
		return changed, err
	}
	changed = spec.Resized(changed, *job.Spec) // before the overrides, which may change groups or members
	return changed, over.apply(&changed)
}

// sayRetried reports the new job, and the code and the inputs that it runs with. The server answers a repeated retry
// with the job that the first one created.
func sayRetried(a *app, old, job wire.Job) {
	// The old job was read before the call: if it already named this retry, the call created nothing.
	if old.RetriedBy != nil && *old.RetriedBy == job.ID {
		a.say("%s was retried before, %s, as %s", named(old), ago(job.SubmittedAt, a.now()), job.ID)
		return
	}
	a.say("submitted %s as a retry of %s", job.ID, named(old))
	sayStart(a, old, job)
	if job.ImageDigestBy == wire.DigestByRetry {
		a.say("it runs the image %s of the old job's submit; --fresh-image runs what the tag names now",
			shortAddress(job.ImageDigest))
	}
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

// sayStart reports where a retry starts, if the job has checkpoints.
func sayStart(a *app, old, job wire.Job) {
	switch from := job.StartedFrom; {
	case from != nil && from.Job == old.ID:
		a.say("it resumes from step %d%s", from.Step, allParts(from))
	case from != nil:
		a.say("it starts from step %d of job %s%s", from.Step, from.Job, allParts(from))
	case job.Spec != nil && job.Spec.Checkpoint != nil && job.Spec.Array == nil:
		a.say("it starts from the beginning")
	}
}

// allParts says that each member gets all parts of the checkpoint from which a job starts; "" if it gets its own.
func allParts(from *wire.StartPoint) string {
	if from.Parts == 0 {
		return ""
	}
	return "; each member gets the parts of " + plural(from.Parts, "member", "members")
}
