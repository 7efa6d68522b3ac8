package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"berth"
	"berth/api/client"
	"berth/wire"
)

// newLogs builds "berth logs" over GET /v1/jobs/{id}/logs. With --follow the client
// reconnects after the last line that it has received.
func newLogs(a *app) *cobra.Command {
	var q client.LogsQuery
	var sinceText string
	printer := newLogPrinter(a)
	cmd := &cobra.Command{
		Use:   "logs JOB",
		Short: "Print the log of a job, or of all members, elements or steps",
		Long: "Logs prints the standard output and standard error of a job's latest attempt, or of --attempt.\n" +
			"Logs outlive the machine.\n\n" +
			"For a gang, an array or a pipeline it prints the logs of all members, elements or steps one after\n" +
			"the other, and each line names its origin. Logs of elements, steps and members that failed come\n" +
			"first. With --follow it prints new lines of all logs, of at most " + fmt.Sprint(maxFollowed) +
			" at a time; the others\nfollow in full, once logs have ended. --tail applies to each log; with --grep\n" +
			"it counts matching lines.\n\n" +
			"A progress bar is reduced to its last state. With --follow on a terminal it moves about once a\n" +
			"second, below the finished lines; of several logs, the bar that moved last is shown. On a terminal\n" +
			"all control characters except colours are removed. --raw prints the text as stored. With -o json\n" +
			"each line is a document with time and stream.",
		Example:           "  berth logs -f digits\n  berth logs digits --attempt 1 --tail 20\n  berth logs 'sweep[3]'",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeWorks(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case q.Attempt < 0:
				return usagef("--attempt %d is out of range; allowed: 1 or more", q.Attempt)
			case q.Member < 0:
				return usagef("--member %d is out of range; allowed: 0 or more", q.Member)
			case q.Tail < 0:
				return usagef("--tail %d is out of range; allowed: 0 or more", q.Tail)
			}
			c, job, since, err := a.jobSince(cmd.Context(), args[0], sinceText)
			if err != nil {
				return err
			}
			q.Since = since
			// No error: the step succeeded, and its log exists under the job that ran.
			if job.CachedFrom != nil {
				a.say("%s was cached and did not run; see the log of the job that ran: berth logs %s", named(job),
					*job.CachedFrom)
				return nil
			}
			tree := newLogTree(a, c)
			// Member 0 is valid, so the default value cannot stand for all members.
			if cmd.Flags().Changed("member") {
				tree.member = q.Member
			}
			return a.failed(cmd.Context(), printLogs(cmd.Context(), tree, printer, job, q))
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&q.Follow, "follow", "f", false, "follow the log until the job ends")
	f.IntVar(&q.Attempt, "attempt", 0, "attempt number, from 1 (default: the latest)")
	f.IntVar(&q.Member, "member", 0, "gang member, from 0 (default: all members)")
	f.IntVar(&q.Tail, "tail", 0, "print only this many last lines (default: all)")
	f.StringVar(&q.Grep, "grep", "", "print only lines that match this regular expression (RE2), such as (?i)error")
	f.StringVar(&sinceText, "since", "", "print only lines since: 10m, 2h, or an RFC 3339 time")
	f.BoolVarP(&printer.stamps, "timestamps", "t", false, "print the time before each line")
	f.BoolVar(&printer.raw, "raw", false, "print lines as stored, with control characters, also on a terminal")
	return cmd
}

// printLogs prints the logs below a job, or follows them. An interrupt while the job runs
// prints that the job continues.
func printLogs(ctx context.Context, t *logTree, p *logPrinter, job wire.Job, q client.LogsQuery) error {
	if !q.Follow {
		return printStored(ctx, t, p, job, q)
	}
	below := newProgress(t.app)
	// Every line passes through the progress line, which is erased before it and drawn again after it.
	p.around = below.around
	p.live(below)
	t.client.OnRepeat = nil // a server that does not respond is reported once, below
	say := t.say
	t.say = func(format string, args ...any) {
		_ = below.around(func() error {
			say(format, args...)
			return nil
		})
	}
	p.say = t.say
	err := followLogs(ctx, t, p, job, q)
	below.done()
	t.say = say
	if ctx.Err() != nil && !job.Status.Terminal() {
		id := handle(job)
		if t.app.errTerm.terminal {
			fmt.Fprint(t.app.err, eraseLine) // the terminal has printed ^C
		}
		t.app.say("%s continues; follow it again: berth logs -f %s; stop it: berth cancel %s", job.Name, id, id)
	}
	return err
}

// printStored prints the stored logs below a job one after the other, with one call at a
// time: the server allows few downloads at once.
func printStored(ctx context.Context, t *logTree, p *logPrinter, job wire.Job, q client.LogsQuery) error {
	list, err := t.leaves(ctx, job)
	if err != nil {
		return err
	}
	// The log that explains the failure comes first; the others may be long.
	if job.Status == berth.Failed {
		culpritsFirst(list)
	}
	var logs []logSource
	for _, l := range list {
		logs = append(logs, t.sources(l)...)
	}
	if job.Status == berth.Failed && len(list) == 1 && len(logs) > 1 {
		// A gang: its only leaf has several logs.
		member, err := failedMember(ctx, t.client, job.ID)
		if err != nil {
			return err
		}
		member = min(member, len(logs)-1)
		logs = slices.Concat(logs[member:member+1], logs[:member], logs[member+1:])
	}
	p.expect(logs)
	lines := 0
	for _, s := range logs {
		q.Member = s.member
		err := t.client.Logs(ctx, s.job, q, func(l wire.LogLine) error {
			lines++
			return p.print(s, l)
		})
		// Not every element has an attempt of this number.
		if len(logs) > 1 && q.Attempt > 0 && berth.CodeOf(err) == berth.CodeNotFound {
			continue
		}
		if _, output := errors.AsType[*outputError](err); err != nil && s.label != "" && !output {
			return fmt.Errorf("log of %s: %w", s.label, err)
		}
		if err != nil {
			return err
		}
	}
	// An empty output alone would leave open whether the command worked.
	if lines == 0 && q.Grep != "" {
		t.say("no line of %s matches %q", named(job), q.Grep)
	} else if lines == 0 && q.Tail == 0 && q.Since.IsZero() {
		t.say("%s has no log lines; its status is %s", named(job), job.Status)
	}
	return nil
}
