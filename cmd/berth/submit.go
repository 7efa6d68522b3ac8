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

// waitHelp describes --wait in the help of the commands that submit.
const waitHelp = "With --wait, standard output is the job's log, of all its members, elements or steps, and\n" +
	"standard error shows progress and end. After a failure the reason follows, and the last 20 lines\n" +
	"of the log, unless they were just printed. With --no-logs standard output is the id, with -o json\n" +
	"the document of the ended job."

// submitFlags are the common flags of the commands that submit: submit, run and pipeline
// submit.
type submitFlags struct {
	wait    bool          // its value at register is the default
	noLogs  bool          // do not print the log while waiting
	note    string        // a second message about the created job; "": none
	timeout time.Duration // of the wait, not of the job; 0: none
	detach  bool          // berth run was told not to wait
	waits   bool          // the command waits by default, and has flags in place of a job file
	key     string        // idempotency key; "": a new one for each run
}

// register adds the flags to a command.
func (f *submitFlags) register(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&f.wait, "wait", "w", f.wait,
		"print the job's log, wait for its end and exit with a code for that end")
	f.registerWaiting(cmd)
}

// registerWaiting adds the flags except --wait, which berth sbatch has from Slurm.
func (f *submitFlags) registerWaiting(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.noLogs, "no-logs", false,
		"with --wait: do not print the log, except its end after a failure")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 0, "stop waiting after this, such as 2h; the job continues")
	cmd.Flags().StringVar(&f.key, "idempotency-key", "",
		"idempotency key; a repeated submit with the same key returns the existing job")
}

// check refuses flags that contradict each other, before anything is read or sent.
func (f *submitFlags) check() error {
	if f.timeout != 0 && f.detach {
		return &usageError{message: "--timeout has no effect with --detach",
			hint: "to limit the job itself, use --time-limit"}
	}
	if f.noLogs && f.detach {
		return usagef("--no-logs has no effect with --detach")
	}
	if f.timeout != 0 && !f.wait {
		hint := "add --wait; to limit the job itself, set time_limit in the job file"
		if f.waits {
			hint = "leave out --wait=false; to limit the job itself, use --time-limit"
		}
		return &usageError{message: "--timeout has no effect without --wait", hint: hint}
	}
	if f.noLogs && !f.wait {
		return usagef("--no-logs has no effect without --wait")
	}
	if f.timeout < 0 {
		return usagef("--timeout %s is negative", f.timeout)
	}
	return nil
}

// newSubmit builds "berth submit" over POST /v1/jobs. Only the job's id goes to standard
// output, so that scripts can assign the output to a variable; with --wait the job's log
// does.
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
			"--env, --set and --secret change the file as it is read; PATH names a field as an error does.\n\n" +
			waitHelp,
		Example: "  berth submit job.yaml --wait\n  id=$(berth submit job.yaml)\n  berth submit job.yaml --in 2h\n" +
			"  berth submit job.yaml -e LR=0.1 --set resources.gpus=2\n" +
			"  berth submit nightly.yaml --set jobs.train.time_limit=4h",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := flags.check(); err != nil {
				return err
			}
			w, err := a.readWork(cmd.Context(), args[0], over)
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
// file. Ctrl-C ends the read of standard input, whose writer may hang.
func (a *app) readFile(ctx context.Context, what, name string) (src []byte, shown string, err error) {
	limited := func(r io.Reader) ([]byte, error) { return io.ReadAll(io.LimitReader(r, jobfile.MaxBytes+1)) }
	if name == "-" {
		shown = "stdin"
		src, err = untilDone(ctx, func() ([]byte, error) { return limited(a.in) })
		if ctx.Err() != nil {
			return nil, shown, ctx.Err()
		}
	} else {
		shown = name
		f, failed := os.Open(name)
		if failed != nil {
			return nil, name, usagef("read %s: %v", what, failed)
		}
		defer f.Close()
		src, err = limited(f)
	}
	if err != nil {
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
	if err != nil {
		return located(submitFailed(ctx, a, err, jobSpec.Name, key), file)
	}
	created = created || flags.key == "" // by an earlier try of this call: no other caller has the key
	job = a.withHandle(ctx, c, job)
	return finishSubmit(ctx, a, job, created, fmt.Sprintf("submitted %s; follow it with: berth logs -f %s", job.Name,
		handle(job)), flags)
}

// finishSubmit prints a submitted job. With --wait it prints the job's log instead, or the
// document of the ended job; with --no-logs the id, as without --wait. message is for a job
// that was created just now and is not waited for.
func finishSubmit(
	ctx context.Context, a *app, job wire.Job, created bool, message string, flags submitFlags,
) error {
	switch {
	case !created:
		a.say("%s was submitted before under this key, %s", named(job), ago(job.SubmittedAt, a.now()))
	case flags.wait:
		a.say("submitted %s", named(job))
	default:
		a.say("%s", message)
	}
	if created && flags.note != "" {
		a.say("%s", flags.note)
	}
	logs := flags.wait && a.streamed(flags.noLogs)
	document := flags.wait && (a.Output == "json" || a.Output == "yaml")
	if !logs && !document {
		id := string(job.ID)
		err := a.show(view{body: job, names: []string{id}, table: func(bool) error {
			_, err := fmt.Fprintln(a.out, id)
			return err
		}})
		if err != nil {
			return err
		}
	}
	o := waitOptions{timeout: flags.timeout, logs: logs}
	switch {
	case !flags.wait:
		return nil
	case document:
		return waitAndPrint(ctx, a, job, o)
	default:
		_, err := waitForJob(ctx, a, job, o)
		return err
	}
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
// in the job file. Other errors and all errors without a file stay unchanged. An error after which the job may exist
// also stays unchanged: its hint has the idempotency key.
func located(err error, file *jobfile.File) error {
	e, ok := errors.AsType[*berth.Error](err)
	_, unknown := errors.AsType[*unknownSubmitError](err)
	if !ok || unknown || file == nil || e.StableCode() != berth.SlugInvalidSpec || len(e.Fields) == 0 {
		return err
	}
	return file.Locate(e.Fields)
}
