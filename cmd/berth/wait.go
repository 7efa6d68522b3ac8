package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth"
	"berth/api/client"
	"berth/wire"
)

// Pauses between two polls of wait: short at first, for short jobs, then longer, to spare
// the server. Each pause is a quarter longer than the one before.
const (
	pollFirst = 200 * time.Millisecond
	pollLast  = 2 * time.Second
)

// patience is how long wait continues with a server that does not answer: longer than a
// restart or an upgrade of the control plane should take. The job runs on meanwhile.
const patience = 10 * time.Minute

// newWait builds "berth wait", which polls GET /v1/jobs/{id} and exits with a code for the
// job's end; see exitCodes.
func newWait(a *app) *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "wait JOB",
		Short: "Wait for a job's end and exit with a code for it",
		Long: "Wait shows a job's progress until it ends: 0 if it succeeded, 1 if it failed, 5 if it was canceled,\n" +
			"124 if --timeout passed. After a failure it shows the reason and the last " + fmt.Sprint(tailLines) +
			" lines of the log, of the\nelement, step or member that failed first. With -o json it prints the job " +
			"that has ended. Ctrl-C stops\nthe waiting and never the job.",
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
			return waitAndPrint(cmd.Context(), a, job, waitOptions{timeout: timeout})
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "stop waiting after this, such as 2h; the job continues")
	return cmd
}

// waitOptions are the ways to wait for a job.
type waitOptions struct {
	timeout time.Duration // of the wait, not of the job; 0: none
	logs    bool          // print the job's log meanwhile
	whole   bool          // read the job at least once, as an answer to a submit is no whole document
}

// waitAndPrint waits until a job has ended, and prints the ended job if the output is for
// programs. The end decides the exit code, even if the job cannot be printed; see exitOf. After
// a timeout, an interrupt or a failed call there is no end to print.
func waitAndPrint(ctx context.Context, a *app, job wire.Job, o waitOptions) error {
	document := a.Output == "json" || a.Output == "yaml"
	o.whole = document
	final, err := waitForJob(ctx, a, job, o)
	_, ended := errors.AsType[*endedError](err)
	if !document && a.Output != "name" || err != nil && !ended {
		return err
	}
	return errors.Join(a.show(view{body: final, names: []string{string(final.ID)}}), err)
}

// waitForJob waits until a job has ended, and returns the job as last read. An end without
// success is the error, an endedError. With a timeout above 0 the wait ends with a
// timeoutError; the job continues in every case.
func waitForJob(ctx context.Context, a *app, job wire.Job, o waitOptions) (wire.Job, error) {
	c, err := a.client()
	if err != nil {
		return job, err
	}
	// Two contexts distinguish an interrupt (exit code 130) from a passed --timeout (124).
	waiting := ctx
	if o.timeout > 0 {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeout(ctx, o.timeout)
		defer cancel()
	}
	p := newProgress(a)
	c.OnRepeat = nil // the line of progress shows that the server does not respond
	var logs *waitLogs
	if o.logs {
		// Not the time limit of the wait: once the job has ended, its log is printed to the end.
		logs = startLogs(ctx, a, c, job, p)
	}
	final, err := pollJob(waiting, a, c, job, p, o.whole)
	var missing error
	if logs != nil {
		missing = logs.finish(ctx, err == nil)
	}
	// Before any message, which would otherwise stand behind the line of progress.
	p.done()
	switch {
	case err == nil:
		if missing != nil && ctx.Err() == nil {
			a.say("berth: the log is not shown in full: %v; see it with: berth logs %s", a.failed(ctx, missing),
				handle(job))
		}
		return final, sayEnd(a, final, func() {
			// Of a job with one log, the last lines were printed just now.
			if ranOnce(final) && (logs == nil || missing != nil || !alone(final)) {
				sayTail(ctx, a, c, final)
			}
		})
	case ctx.Err() != nil:
		a.say("%s continues; wait again: berth wait %s; stop it: berth cancel %s", job.Name, handle(job),
			handle(job))
		return final, ctx.Err()
	case waiting.Err() != nil:
		return final, &timeoutError{
			message: fmt.Sprintf("timed out after %s; %s is still %s", o.timeout, named(job), waitingText(final)),
			hint: fmt.Sprintf("wait again: berth wait %s; stop it: berth cancel %s", handle(job),
				handle(job)),
		}
	default:
		return final, err
	}
}

// waitingText formats the status of a job that has not ended, with the reason if it has one.
func waitingText(j wire.Job) string {
	if j.Waiting != nil {
		return fmt.Sprintf("%s (%s)", j.Status, oneLine(jobReason(j)))
	}
	if j.Reason == nil || j.Status.HoldsCapacity() {
		return string(j.Status)
	}
	return fmt.Sprintf("%s (%s)", j.Status, oneLine(reasonText(j.Reason)))
}

// pollJob polls the job until its end and returns the job as last seen, also with an error.
// Failures that may pass are tolerated until no call has been answered for patience since the first of them. With whole
// the job is read at least once, also if it has ended.
func pollJob(
	ctx context.Context, a *app, c *client.Client, job wire.Job, p *progress, whole bool,
) (wire.Job, error) {
	pause, failing := pollFirst, time.Time{} // failing is the time of the first failure in a row
	if whole && job.Status.Terminal() {
		pause = 0
	}
	for {
		p.update(job)
		if job.Status.Terminal() && !whole {
			return job, nil
		}
		select {
		case <-ctx.Done():
			return job, ctx.Err()
		case <-time.After(pause):
		}
		pause = min(max(pause*5/4, pollFirst), pollLast)
		next, err := c.Job(ctx, job.ID)
		switch {
		case err == nil:
			job, failing, whole = next, time.Time{}, false
			p.silent(nil)
			continue
		case ctx.Err() != nil:
			return job, ctx.Err()
		case failing.IsZero():
			failing = a.now()
		}
		if err = a.failed(ctx, err); !passing(err) || a.now().Sub(failing) > patience {
			return job, err
		}
		p.silent(err)
	}
}

// passing reports whether an error may pass without a change of the job: no connection, an
// overloaded or failing server, or too many calls. An error such as "not found" or
// "unauthorized" ends the wait, and so does a damaged log, which the client has read several times.
func passing(err error) bool {
	if _, ok := errors.AsType[*unreachableError](err); ok {
		return true
	}
	if e, ok := errors.AsType[*berth.Error](err); ok {
		passes := e.Code == berth.CodeUnavailable || e.Code == berth.CodeInternal || e.Code == berth.CodeCapacity
		return passes && e.Slug != wire.SlugLogDamaged
	}
	return false
}

// jobWord is the place of a job in the hints of rules, which hold for every job.
var jobWord = regexp.MustCompile(`\bJOB\b`)

// jobHint returns a hint of the server as a line that can be copied: with the handle of the job in place of the word
// JOB, and of the job's id.
func jobHint(j wire.Job, hint string) string {
	return jobWord.ReplaceAllString(oneLine(strings.ReplaceAll(hint, string(j.ID), handle(j))), handle(j))
}

// sayEnd prints a job's end and, for a job without success, a hint: the server's own, or
// for a failure the commands that show its cause. For a failure, tail prints the end of the
// log before the hint. It returns nil for success and an endedError otherwise.
func sayEnd(a *app, j wire.Job, tail func()) error {
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
	if j.Status == berth.Failed {
		tail()
	}
	switch {
	case j.Reason != nil && j.Reason.Hint != "":
		a.say("%s", a.errTerm.paint(faint, "hint: "+jobHint(j, j.Reason.Hint)))
	case j.Status == berth.Failed:
		a.say("%s", a.errTerm.paint(faint, "hint: see its output with berth logs "+handle(j)+
			", its history with berth events "+handle(j)))
	}
	return &endedError{state: j.Status}
}
