package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"berth"
	"berth/api/client"
	"berth/internal/lib/jobfile"
	"berth/spec"
	"berth/wire"
)

// submitFlags are the common flags of the commands that submit: submit, run and pipeline
// submit.
type submitFlags struct {
	wait    bool
	timeout time.Duration // of the wait, not of the job; 0: none
	key     string        // idempotency key; "": a new one for each run
}

// register adds the flags to a command.
func (f *submitFlags) register(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&f.wait, "wait", "w", false, "wait for the job's end and exit with its exit code")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 0, "stop waiting after this, such as 2h; the job continues")
	cmd.Flags().StringVar(&f.key, "idempotency-key", "",
		"idempotency key; a repeated submit with the same key returns the existing job")
}

// check refuses flags that contradict each other, before anything is read or sent.
func (f *submitFlags) check() error {
	if f.timeout != 0 && !f.wait {
		return &usageError{message: "--timeout has no effect without --wait",
			hint: "add --wait; to limit the job itself, set time_limit in the job file"}
	}
	if f.timeout < 0 {
		return usagef("--timeout %s is negative", f.timeout)
	}
	return nil
}

// newSubmit builds "berth submit" over POST /v1/jobs. Only the job's id goes to standard
// output, so that scripts can assign the output to a variable.
func newSubmit(a *app) *cobra.Command {
	var flags submitFlags
	var later scheduleFlags
	var over overrides
	cmd := &cobra.Command{
		Use:   "submit FILE|-",
		Short: "Submit a file: a job, an array or a pipeline; or create its schedule",
		Long: "Submit validates a file (YAML or JSON, - for standard input), submits the job or pipeline and prints " +
			"its id.\ndocs/guide/job-file.md describes the fields. A file with kind: schedule creates the schedule. " +
			"With --at or\n--in it creates a schedule for that one time instead, which berth schedule shows and " +
			"deletes.\n" +
			"--env, --set and --secret change the file as it is read; PATH names a field as an error does.",
		Example: "  berth submit job.yaml --wait\n  id=$(berth submit job.yaml)\n  berth submit job.yaml --in 2h\n" +
			"  berth submit job.yaml -e LR=0.1 --set resources.gpus=2\n" +
			"  berth submit nightly.yaml --set jobs.train.time_limit=4h",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := flags.check(); err != nil {
				return err
			}
			w, err := a.readWork(args[0], over)
			if err != nil {
				return err
			}
			if later.at != "" || later.in != 0 {
				return submitLater(cmd.Context(), a, w, later, flags)
			}
			return submitWork(cmd.Context(), a, w, flags)
		},
	}
	flags.register(cmd)
	later.registerTime(cmd)
	over.register(cmd)
	return cmd
}

// readFile reads a file, or standard input for "-", and returns the name for messages. It
// reads at most one byte beyond jobfile.MaxBytes, by which the parser refuses a larger
// file.
func (a *app) readFile(what, name string) (src []byte, shown string, err error) {
	in, shown := a.in, "stdin"
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, name, usagef("read %s: %v", what, err)
		}
		defer f.Close()
		in, shown = f, name
	}
	if src, err = io.ReadAll(io.LimitReader(in, jobfile.MaxBytes+1)); err != nil {
		return nil, shown, usagef("read %s %s: %v", what, shown, err)
	}
	return src, shown, nil
}

// submitJob uploads the folders of a spec, submits the job and, with --wait, waits for its
// end. file is the source in which faults are shown that only the server finds; nil for a
// job without a file.
func submitJob(ctx context.Context, a *app, jobSpec spec.Job, file *jobfile.File, flags submitFlags) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	key := flags.key
	if key == "" {
		// A key for this run makes it safe to send the call again when the answer to the
		// first one is lost: the server returns the existing job.
		key = "cli-" + berth.NewSecret()
	}
	if jobSpec, err = sendFolders(ctx, a, c, jobSpec, baseOf(file), ""); err != nil {
		return err
	}
	job, created, err := c.Submit(ctx, jobSpec, key)
	// Ctrl-C between the call and its answer: only the server knows whether the job exists.
	if err != nil && ctx.Err() != nil {
		a.say("interrupted; the job may have been submitted, check with: berth list --name %s", jobSpec.Name)
	}
	if err != nil {
		return located(a.failed(ctx, err), file)
	}
	if created {
		a.say("submitted %s; follow it with: berth logs -f %s", job.Name, handle(a.withHandle(ctx, c, job)))
	} else {
		a.say("%s was submitted before under this key, %s", job.Name, ago(job.SubmittedAt, a.now()))
	}
	id := string(job.ID)
	err = a.show(view{body: job, names: []string{id}, table: func(bool) error {
		_, err := fmt.Fprintln(a.out, id)
		return err
	}})
	if err != nil || !flags.wait {
		return err
	}
	return waitForJob(ctx, a, job, flags.timeout)
}

// withHandle adds the handle to the answer of a submit, which has none, for messages to
// people. If the call for it fails, messages name the beginning of the id instead.
func (a *app) withHandle(ctx context.Context, c *client.Client, job wire.Job) wire.Job {
	if job.Handle == "" {
		if read, err := c.Job(ctx, job.ID); err == nil {
			job.Handle = read.Handle
		}
	}
	return job
}

// located converts faults of the server's validation into an error that shows their places
// in the job file. Other errors, and all errors without a file, stay unchanged.
func located(err error, file *jobfile.File) error {
	e, ok := errors.AsType[*berth.Error](err)
	if !ok || file == nil || e.StableCode() != berth.SlugInvalidSpec || len(e.Fields) == 0 {
		return err
	}
	return file.Locate(e.Fields)
}
