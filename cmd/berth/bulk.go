package main

import (
	"bufio"
	"context"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth/api/client"
	"berth/wire"
)

// bulkFlags select the jobs of a command by filter instead of by argument. All given filters
// must match.
type bulkFlags struct {
	usual  string // the status without --status
	status []string
	name   string // pattern of path.Match
	labels map[string]string
	tenant string
	since  string
	mine   bool
	yes    bool // do not ask
}

// register adds the flags to a command.
func (f *bulkFlags) register(a *app, cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringSliceVarP(&f.status, "status", "s", nil,
		"instead of a JOB: jobs with these statuses, such as queued; or live (default "+f.usual+")")
	flags.StringVar(&f.name, "name", "", "instead of a JOB: jobs with this name, or names like 'x*'")
	filterVar(flags, &f.labels, "label", "l", "instead of a JOB: jobs with these labels: KEY=VALUE")
	flags.StringVar(&f.tenant, "tenant", "", "with a filter: jobs of this tenant, for admins")
	flags.StringVar(&f.since, "since", "", "with a filter: jobs submitted since: 24h, 7d or a time")
	flags.BoolVar(&f.mine, "mine", false, "instead of a JOB: jobs that you submitted, in your tenant or --tenant")
	flags.BoolVar(&f.yes, "yes", false, "with a filter: do not ask for a confirmation")
	_ = cmd.RegisterFlagCompletionFunc("status", completeStatus())
	_ = cmd.RegisterFlagCompletionFunc("name", completeJobNames(a))
}

// filters reports whether a filter is given.
func (f *bulkFlags) filters() bool {
	return len(f.status) > 0 || f.name != "" || len(f.labels) > 0 || f.mine
}

// check refuses a mixture of filters and arguments, neither of both, and a flag that would select fewer jobs but has no
// effect: an empty value, or --index of an array without a JOB.
func (f *bulkFlags) check(cmd *cobra.Command, args []string) error {
	if err := refuseEmpty(cmd, "status", "name", "tenant", "since", "index"); err != nil {
		return err
	}
	switch index := cmd.Flags().Lookup("index"); {
	case len(args) == 0 && index != nil && index.Changed:
		return &usageError{message: "--index needs a JOB: filters select whole jobs",
			hint: "name the array: " + cmd.CommandPath() + " JOB --index " + index.Value.String()}
	case len(args) > 0 && (f.filters() || f.tenant != "" || f.since != ""):
		return usagef("give jobs or filters, not both")
	case len(args) == 0 && (f.tenant != "" || f.since != "") && !f.filters():
		return usagef("--tenant and --since need another filter: --status, --name, --label or --mine")
	case len(args) == 0 && !f.filters():
		return &usageError{
			message: cmd.CommandPath() + " needs a JOB, or a filter: --status, --name, --label or --mine",
			hint:    "usage: " + cmd.UseLine()}
	}
	if _, err := path.Match(f.name, ""); err != nil {
		return usagef("--name %q is not a pattern; allowed: * and ? for any characters, and [a-c]", f.name)
	}
	return nil
}

// jobs returns the jobs that match the filters and accept. Elements and steps are left out:
// their parents stand for them.
func (f *bulkFlags) jobs(
	ctx context.Context, a *app, c *client.Client, accept func(wire.Job) bool,
) ([]wire.Job, error) {
	status := f.status
	if len(status) == 0 {
		status = []string{f.usual}
	}
	states, err := parseStatuses(status)
	if err != nil {
		return nil, err
	}
	q := client.JobsQuery{Status: states, Labels: f.labels, Tenant: tenantID(f.tenant), Limit: 1000}
	if q.Since, err = parseSince(f.since, a.now()); err != nil {
		return nil, err
	}
	if f.mine {
		if err := a.onlyMine(ctx, c, &q); err != nil {
			return nil, err
		}
	}
	// The server filters by a whole name. It knows no patterns, so they are matched here, below.
	if !strings.ContainsAny(f.name, `*?[\`) {
		q.Name = f.name
	}
	list, err := a.listJobs(ctx, c, q, true)
	if err != nil {
		return nil, err
	}
	var jobs []wire.Job
	for _, j := range list.Items {
		if ok, _ := path.Match(f.name, j.Name); accept(j) && (ok || f.name == "") {
			jobs = append(jobs, j)
		}
	}
	return jobs, nil
}

// maxNamed is the number of jobs that a confirmation names.
const maxNamed = 5

// confirm asks on a terminal whether the act may go on. Elsewhere --yes is required, since a
// question would have no answer.
func (f *bulkFlags) confirm(ctx context.Context, a *app, verb string, jobs []wire.Job) error {
	names := make([]string, 0, maxNamed)
	for _, j := range jobs[:min(len(jobs), maxNamed)] {
		names = append(names, named(j))
	}
	text := fmt.Sprintf("%s %s: %s", verb, plural(len(jobs), "job", "jobs"), strings.Join(names, ", "))
	if more := len(jobs) - len(names); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	if f.yes {
		a.say("%s", text)
		return nil
	}
	if a.readSecret == nil || !a.errTerm.terminal { // standard input or error is no terminal
		return &usageError{message: text + " needs a confirmation", hint: "add --yes, or run it on a terminal"}
	}
	fmt.Fprintf(a.err, "%s\ncontinue? [y/N] ", text)
	line, err := untilDone(ctx, func() (string, error) { return bufio.NewReader(a.in).ReadString('\n') })
	if ctx.Err() != nil {
		a.say("\nnothing was changed")
		return ctx.Err()
	}
	if answer := strings.ToLower(strings.TrimSpace(line)); answer == "y" || answer == "yes" {
		return nil
	}
	if err != nil {
		fmt.Fprintln(a.err)
	}
	return usagef("nothing was changed")
}

// bulkPause spaces the calls of a bulk act, so that it stays below the rate limit of a token.
const bulkPause = 20 * time.Millisecond

// actOnAll does the same to every job of the filters, and returns the number of failures. It
// continues after a failure, since another caller may have changed a job meanwhile.
func (f *bulkFlags) actOnAll(ctx context.Context, a *app, verb string, accept func(wire.Job) bool,
	do func(context.Context, *client.Client, wire.Job) (wire.Job, string, error)) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	jobs, err := f.jobs(ctx, a, c, accept)
	if err != nil {
		return err
	}
	if len(jobs) == 0 {
		a.say("no jobs")
		return nil
	}
	if err := f.confirm(ctx, a, verb, jobs); err != nil {
		return err
	}
	var last error
	done := 0
	for i, job := range jobs {
		if i > 0 {
			select {
			case <-ctx.Done():
			case <-time.After(bulkPause):
			}
		}
		if ctx.Err() != nil {
			break
		}
		err := a.actOnJob(ctx, c, job, do)
		if err == nil {
			done++
			continue
		}
		if last != nil {
			a.report(last)
		}
		last = err
	}
	if ctx.Err() == nil {
		return last
	}
	if last != nil {
		a.report(last) // a call that Ctrl-C interrupted is no failure, and not reported
	}
	a.say("interrupted: %s: %d of %s", verb, done, plural(len(jobs), "job", "jobs"))
	return ctx.Err()
}

// untilDone calls read, which waits for a person at the terminal, until it returns or ctx is done: Ctrl-C ends the
// question, and the read goes on until the end of the process.
func untilDone[T any](ctx context.Context, read func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	got := make(chan result, 1)
	go func() {
		value, err := read()
		got <- result{value, err}
	}()
	select {
	case r := <-got:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}
