package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth/api/client"
	"berth/wire"
)

// completionTime bounds the wait for a completion after a press of the tab key.
const completionTime = 2 * time.Second

type completer = func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective)

func anyJob(wire.Job) bool       { return true }
func liveJob(j wire.Job) bool    { return !j.Status.Terminal() }
func waitingJob(j wire.Job) bool { return j.Status.Waiting() && !j.Held }

// completeJobs offers the ids of recent jobs that a command can do something
// with, each with its name and status, and the names themselves once a letter
// is typed that no id has.
func (a *app) completeJobs(accept func(wire.Job) bool) completer {
	return func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(context.Background(), completionTime)
		defer cancel()
		c, err := a.client()
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		list, err := c.Jobs(ctx, client.JobsQuery{Limit: 200})
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var out []string
		for _, j := range list.Items {
			id, name := string(j.ID), j.Name
			if !accept(j) || slices.Contains(args, id) || slices.Contains(args, name) {
				continue
			}
			if strings.HasPrefix(id, word) {
				out = append(out, id+"\t"+oneLine(name)+" "+string(j.Status))
			}
			if word != "" && strings.HasPrefix(name, word) {
				out = append(out, name+"\t"+string(j.Status))
			}
		}
		return slices.Compact(out), cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
}

func (a *app) completeMachines(_ *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(context.Background(), completionTime)
	defer cancel()
	c, err := a.client()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
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
}

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
