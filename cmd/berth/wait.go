package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"berth"
	"berth/api/client"
	"berth/wire"
)

// Polling of wait: quick at first, for short jobs, then easy on the server.
const (
	pollFirst = 200 * time.Millisecond
	pollLast  = 2 * time.Second
)

// patience is how long wait bears a server that does not answer.
const patience = 10 * time.Minute

func newWait(a *app) *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "wait JOB",
		Short: "Wait for a job's end and exit with its exit code",
		Long: "Wait shows a job's progress until it ends: 0 if it succeeded, 1 if it failed, 5 if it was canceled,\n" +
			"124 if --timeout passed. Ctrl-C stops the waiting and never the job.",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeJobs(liveJob),
		RunE: func(cmd *cobra.Command, args []string) error {
			if timeout < 0 {
				return usagef("--timeout %s is negative", timeout)
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			job, err := a.job(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			err = waitForJob(cmd.Context(), a, job, timeout)
			if a.Output == "table" || a.Output == "wide" {
				return err
			}
			return errors.Join(printEnd(cmd.Context(), a, c, job.ID, err), err)
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "stop waiting after this, such as 2h; the job continues")
	return cmd
}

// printEnd prints the job for a program, once it has ended.
func printEnd(ctx context.Context, a *app, c *client.Client, id berth.JobID, waited error) error {
	if _, ended := errors.AsType[*endedError](waited); waited != nil && !ended {
		return nil
	}
	job, err := c.Job(ctx, id)
	if err != nil {
		return a.failed(ctx, err)
	}
	return a.show(view{body: job, names: []string{string(job.ID)}})
}

// waitForJob follows a job to its end. Its end, if no success, is the error.
func waitForJob(ctx context.Context, a *app, job wire.Job, timeout time.Duration) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	waiting := ctx
	if timeout > 0 {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	p := newProgress(a)
	final, err := pollJob(waiting, a, c, job, p)
	p.done()
	switch {
	case err == nil:
		return sayEnd(a, final)
	case ctx.Err() != nil:
		a.say("%s goes on; berth wait %s waits again, berth cancel %s stops it", job.Name, shortID(job.ID),
			shortID(job.ID))
		return ctx.Err()
	case waiting.Err() != nil:
		return &timeoutError{
			message: fmt.Sprintf("%s is %s after %s", named(job), final.Status, timeout),
			hint: fmt.Sprintf("it goes on; berth wait %s waits again, berth cancel %s stops it", shortID(job.ID),
				shortID(job.ID)),
		}
	default:
		return err
	}
}

// pollJob asks for the job until it has ended and returns it as last seen.
func pollJob(ctx context.Context, a *app, c *client.Client, job wire.Job, p *progress) (wire.Job, error) {
	pause, answered := pollFirst, a.now()
	for {
		p.update(job)
		if job.Status.Terminal() {
			return job, nil
		}
		select {
		case <-ctx.Done():
			return job, ctx.Err()
		case <-time.After(pause):
		}
		pause = min(pause*5/4, pollLast)
		next, err := c.Job(ctx, job.ID)
		switch {
		case err == nil:
			job, answered = next, a.now()
			p.silent(nil)
		case ctx.Err() != nil:
			return job, ctx.Err()
		case !passing(a.failed(ctx, err)) || a.now().Sub(answered) > patience:
			return job, a.failed(ctx, err)
		default:
			p.silent(a.failed(ctx, err))
		}
	}
}

// passing reports whether an error says more of the moment than of the job.
func passing(err error) bool {
	if _, ok := errors.AsType[*unreachableError](err); ok {
		return true
	}
	if e, ok := errors.AsType[*berth.Error](err); ok {
		return e.Code == berth.CodeUnavailable || e.Code == berth.CodeInternal || e.Code == berth.CodeCapacity
	}
	return false
}

// sayEnd prints a job's end, and for a job without success the next commands to
// try.
func sayEnd(a *app, j wire.Job) error {
	ran := between(j.StartedAt, j.FinishedAt, a.now())
	line := fmt.Sprintf("%s %s", named(j), a.errTerm.paint(toneOfState(j.Status), string(j.Status)))
	if ran != "-" {
		line += " after " + ran
	}
	if j.Status == berth.Succeeded {
		a.say("%s", line)
		return nil
	}
	if j.Reason != nil {
		line += ": " + oneLine(reasonText(j.Reason))
	}
	a.say("%s", line)
	switch {
	case j.Reason != nil && j.Reason.Hint != "":
		a.say("%s", a.errTerm.paint(faint, "hint: "+oneLine(j.Reason.Hint)))
	case j.Status == berth.Failed:
		a.say("%s", a.errTerm.paint(faint, "hint: berth logs "+shortID(j.ID)+" shows its output, berth events "+
			shortID(j.ID)+" its history"))
	}
	return &endedError{state: j.Status}
}
