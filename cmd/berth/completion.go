package main

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth/api/client"
	"berth/wire"
)

// completionTime bounds one completion. The shell waits for the completion after a press of
// the tab key, so no candidates after two seconds are better than a shell that hangs.
const completionTime = 2 * time.Second

// completer is cobra's type of a completion function: the words before the cursor and the
// beginning of the present one give candidates, each as a word, a tab and a description.
type completer = func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective)

// anyJob, liveJob and waitingJob select the jobs that a command's completion offers. They
// only shorten the list of candidates; the server decides whether an act is allowed.
func anyJob(wire.Job) bool       { return true }
func liveJob(j wire.Job) bool    { return !j.Status.Terminal() }
func waitingJob(j wire.Job) bool { return j.Status.Waiting() && !j.Held }

// completing calls f with a client and a context that bounds all calls of one completion.
func completing(a *app,
	f func(context.Context, *client.Client) ([]string, cobra.ShellCompDirective),
) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(context.Background(), completionTime)
	defer cancel()
	c, err := a.client()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return f(ctx, c)
}

// completeJobs offers the handles of recent jobs that a command can act on, each with its
// name and status, and also matching ids and names once a letter is typed. Jobs that the command line
// names already are left out. It calls GET /v1/jobs.
func (a *app) completeJobs(accept func(wire.Job) bool) completer {
	return func(_ *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		return completing(a, func(ctx context.Context, c *client.Client) ([]string, cobra.ShellCompDirective) {
			return jobCandidates(ctx, c, accept, args, word)
		})
	}
}

// jobCandidates lists the candidates of completeJobs.
func jobCandidates(ctx context.Context, c *client.Client, accept func(wire.Job) bool, args []string, word string) (
	[]string, cobra.ShellCompDirective) {
	// One page: older jobs are found by typing an id, and a second call could miss the
	// deadline.
	list, err := c.Jobs(ctx, client.JobsQuery{Limit: 200})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var out []string
	for _, j := range list.Items {
		id, short, name := string(j.ID), cmp.Or(j.Handle, string(j.ID)), j.Name
		if !accept(j) || slices.Contains(args, id) || slices.Contains(args, short) || slices.Contains(args, name) {
			continue
		}
		switch {
		case strings.HasPrefix(short, word):
			out = append(out, short+"\t"+oneLine(name)+" "+string(j.Status))
		case strings.HasPrefix(id, word):
			out = append(out, id+"\t"+oneLine(name)+" "+string(j.Status))
		}
		if word != "" && strings.HasPrefix(name, word) {
			out = append(out, name+"\t"+string(j.Status))
		}
	}
	// Runs of one name with one status give equal candidates. The server's order,
	// newest first, is kept, since a user most often means the latest job.
	return slices.Compact(out), cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
}

// completeMachines offers the machines that are not retired, each with its state. The
// commands take one machine, so nothing is offered after the first.
func (a *app) completeMachines(_ *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return completing(a, func(ctx context.Context, c *client.Client) ([]string, cobra.ShellCompDirective) {
		list, err := c.Machines(ctx)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var out []string
		for _, m := range list.Items {
			if strings.HasPrefix(string(m.ID), word) {
				out = append(out, string(m.ID)+"\t"+string(m.State))
			}
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	})
}

// completeContexts offers the names of stored contexts with their URLs. It reads the file
// only and never a token.
func (a *app) completeContexts(_ *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
	stored, err := loadContexts(a.Contexts)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var out []string
	for name, t := range stored.Contexts {
		if strings.HasPrefix(name, word) {
			out = append(out, name+"\t"+t.URL)
		}
	}
	slices.Sort(out)
	return out, cobra.ShellCompDirectiveNoFileComp
}
