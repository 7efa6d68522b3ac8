package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth"
	"berth/api/client"
	"berth/spec"
	"berth/wire"
)

// newPipeline builds "berth pipeline". A pipeline is a job of its own kind, so wait, hold,
// events and other commands of jobs accept pipelines too.
func newPipeline(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pipeline",
		Short: "Submit, show and cancel pipelines of dependent jobs",
		Long: "A pipeline is a file of kind: pipeline with jobs that name what they need. It is a job as well: " +
			"list, wait, hold,\n" +
			"priority, events and retry --failed work with it.",
	}
	cmd.AddCommand(newPipelineSubmit(a), newPipelineShow(a), newPipelineCancel(a))
	return cmd
}

// newPipelineSubmit builds "berth pipeline submit" over POST /v1/pipelines.
func newPipelineSubmit(a *app) *cobra.Command {
	var flags submitFlags
	var noCache bool
	var resume string
	var over overrides
	cmd := &cobra.Command{
		Use:   "submit FILE|-",
		Short: "Submit a pipeline file",
		Long: "Submit stores a pipeline and all its steps. With --resume, steps that succeeded in an earlier run\n" +
			"and are unchanged since are taken over; changed steps, and all steps that need them, run.\n\n" + waitHelp,
		Example: "  berth pipeline submit nightly.yaml --wait\n  berth pipeline submit nightly.yaml --no-cache\n" +
			"  berth pipeline submit nightly.yaml --resume nightly",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := flags.check(); err != nil {
				return err
			}
			src, shown, err := a.readFile(cmd.Context(), "pipeline file", args[0])
			if err != nil {
				return err
			}
			pipeline, err := parsePipeline(shown, src, over)
			if err != nil {
				return err
			}
			pipeline.NoCache = pipeline.NoCache || noCache
			return submitPipeline(cmd.Context(), a, *pipeline, baseFolder(args[0]), resume, flags)
		},
	}
	flags.register(cmd)
	over.register(cmd)
	cmd.Flags().BoolVar(&noCache, "no-cache", false, "run cached steps again; later runs use the new results")
	cmd.Flags().StringVar(&resume, "resume", "",
		"ended pipeline whose succeeded steps are taken over where they are unchanged")
	_ = cmd.RegisterFlagCompletionFunc("resume", ofFlag(a.completeJobs(func(j wire.Job) bool {
		return isPipeline(j) && j.Status.Terminal()
	})))
	return cmd
}

// submitPipeline uploads the folders that the steps name relative to base, submits the
// pipeline, and waits for its end if --wait is set. resume names the run to resume; "" for
// none.
func submitPipeline(ctx context.Context, a *app, pipeline spec.Pipeline, base, resume string,
	flags submitFlags) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	submit := c.SubmitPipeline
	if resume != "" {
		run, err := findPipeline(ctx, a, c, resume)
		if err != nil {
			return err
		}
		submit = func(ctx context.Context, p spec.Pipeline, key string) (wire.Job, bool, error) {
			return c.ResumePipeline(ctx, p, run.ID, key)
		}
	}
	key := flags.key
	if key == "" {
		key = "cli-" + berth.NewSecret() // see submit
	}
	// Before the submit, since the submitted pipeline names its folders by the addresses of
	// the uploads.
	if err := sendSteps(ctx, a, c, pipeline, base, ""); err != nil {
		return err
	}
	if pipeline.Needs, err = identifyNeeds(ctx, a, c, pipeline.Needs, ""); err != nil {
		return err
	}
	job, created, err := submit(ctx, pipeline, key)
	if err != nil {
		return submitFailed(ctx, a, err, pipeline.Name, key)
	}
	created = created || flags.key == "" // see submitJob
	job = a.withHandle(ctx, c, job)
	if resume != "" {
		flags.note = takenText(job)
	}
	return finishSubmit(ctx, a, job, created, fmt.Sprintf("submitted %s, %s; show it with: berth pipeline show %s",
		job.Name, plural(job.Tally.Total, "step", "steps"), handle(job)), flags)
}

// sendSteps uploads the folders that a pipeline's steps name, at every level, and replaces
// the names in pipeline.Jobs; see sendFolders. at is the path of the pipeline in its file.
// Steps are sent by name, so that the order of messages is the same in every run.
func sendSteps(ctx context.Context, a *app, c *client.Client, pipeline spec.Pipeline, base, at string) error {
	for _, name := range slices.Sorted(maps.Keys(pipeline.Jobs)) {
		if pipeline.Jobs[name].Nests() {
			// Nested shares its map of jobs with the step, so the replaced names remain in
			// pipeline.
			if err := sendSteps(ctx, a, c, pipeline.Nested(name), base, at+"jobs."+name+"."); err != nil {
				return err
			}
			continue
		}
		step, err := sendFolders(ctx, a, c, pipeline.Jobs[name], base, at+"jobs."+name+".")
		if err != nil {
			return err
		}
		pipeline.Jobs[name] = step
	}
	return nil
}

// newPipelineShow builds "berth pipeline show". With --tree each nested pipeline takes a
// further call.
func newPipelineShow(a *app) *cobra.Command {
	var tree bool
	cmd := &cobra.Command{
		Use:   "show PIPELINE",
		Short: "Show a pipeline and its steps",
		Long: "Show prints a pipeline and its steps with their needs; with --tree the steps of all " +
			"levels.",
		Example:           "  berth pipeline show nightly\n  berth pipeline show nightly --tree",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeJobs(isPipeline),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			job, err := findPipeline(cmd.Context(), a, c, args[0])
			if err != nil {
				return err
			}
			return a.show(view{body: job, names: []string{string(job.ID)}, table: func(wide bool) error {
				if !tree {
					return describeJob(a, job, wide)
				}
				t := newStepTable(a)
				if err := addTree(cmd.Context(), a, c, t, job.Steps, ""); err != nil {
					return err
				}
				return t.write(a.out)
			}})
		},
	}
	cmd.Flags().BoolVar(&tree, "tree", false, "show only the steps, as a tree with nested pipelines")
	return cmd
}

// newPipelineCancel builds "berth pipeline cancel", which is "berth cancel" for pipelines
// alone. A name that belongs to another kind of job is refused.
func newPipelineCancel(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cancel PIPELINE...",
		Short: "Cancel pipelines; canceling twice is not an error",
		Long:  "Cancel cancels all steps of pipelines. Final steps still run; --skip-final cancels them, too.",
	}
	how := cancelFlags(cmd)
	return act(a, cmd, isPipeline, func(ctx context.Context, c *client.Client, job wire.Job) (wire.Job, string, error) {
		if !isPipeline(job) {
			return job, "", berth.Errorf(berth.CodeNotFound, "%s is not a pipeline", named(job))
		}
		after, err := c.Cancel(ctx, job.ID, how()...)
		return after, canceledText(job, after), err
	})
}

// isPipeline reports whether a job is a pipeline, at any level.
func isPipeline(j wire.Job) bool { return j.Kind == berth.KindPipeline }

// findPipeline resolves an argument to a pipeline. A job of another kind is not found (exit
// code 3).
func findPipeline(ctx context.Context, a *app, c *client.Client, arg string) (wire.Job, error) {
	job, err := a.job(ctx, c, arg)
	if err == nil && !isPipeline(job) {
		err = berth.Errorf(berth.CodeNotFound, "%s is not a pipeline", named(job))
	}
	return job, err
}

// stepTable returns the table of a pipeline's steps at one level.
func stepTable(a *app, steps []wire.Step) *table {
	t := newStepTable(a)
	for _, s := range steps {
		t.addStep(s, "", a.now())
	}
	return t
}

// newStepTable returns the empty table of steps.
func newStepTable(a *app) *table {
	return &table{screen: a.outTerm, head: []string{"STEP", "JOB", "STATUS", "AGE", "RAN", "NEEDS", "REASON"}}
}

// addStep adds a row for a step; an array or a nested pipeline shows how many of its own
// children have ended. AGE counts from the moment at which the step's needs had succeeded,
// RAN from its first start. within is the path of the pipeline that contains the step, ""
// for the outermost.
func (t *table) addStep(s wire.Step, within string, now time.Time) {
	status := string(s.Status)
	if s.Tally != nil {
		status += " (" + doneText(s.Kind, s.Status, s.Tally) + ")"
	}
	t.add(spec.StepPath(within, s.Name), handle(wire.Job{ID: s.Job, Handle: s.Handle}),
		cell{status, toneOfState(s.Status)}, since(s.QueuedAt, now), between(s.StartedAt, s.FinishedAt, now),
		orDash(needsText(s)),
		jobReason(wire.Job{Waiting: s.Waiting, Reason: s.Reason, CachedFrom: s.CachedFrom}))
}

// needsText lists the needs of a step with its condition: build,deploy (failure).
func needsText(s wire.Step) string {
	text := strings.Join(s.Needs, ",")
	if s.Final {
		text = "all others"
	}
	if s.When != "" {
		text = strings.TrimSpace(text + " (" + s.When + ")")
	}
	return text
}

// addTree adds steps, each nested pipeline followed by its own steps. GET
// /v1/pipelines/{id} returns one level, hence a call for each nested pipeline.
func addTree(ctx context.Context, a *app, c *client.Client, t *table, steps []wire.Step, within string) error {
	for _, s := range steps {
		t.addStep(s, within, a.now())
		if s.Kind != berth.KindPipeline {
			continue
		}
		inner, err := c.Pipeline(ctx, s.Job)
		if err != nil {
			return a.failed(ctx, err)
		}
		if err := addTree(ctx, a, c, t, inner.Steps, spec.StepPath(within, s.Name)); err != nil {
			return err
		}
	}
	return nil
}

// takenText lists the steps of a resumed pipeline that are taken over, which have succeeded
// already, and the steps that run.
func takenText(j wire.Job) string {
	var taken, runs []string
	for _, s := range j.Steps {
		switch {
		case s.Status == berth.Succeeded:
			taken = append(taken, s.Name)
		case !s.Status.Terminal(): // else it was skipped
			runs = append(runs, s.Name)
		}
	}
	if len(taken) == 0 {
		taken = []string{"no step"}
	}
	return fmt.Sprintf("taken over: %s; to run: %s", strings.Join(taken, ", "), strings.Join(runs, ", "))
}

// whyText returns the text of a reason; for a step that was not run, the job that has the
// result instead.
func whyText(r *berth.Reason, cachedFrom *berth.JobID) string {
	if cachedFrom != nil {
		return "taken over from job " + string(*cachedFrom)
	}
	return reasonText(r)
}
