package main

import (
	"context"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"berth/api/client"
	"berth/wire"
)

// completeFlags registers the completion of the flags that have one meaning in all commands, unless the command
// has its own. TestEveryNameIsCompleted fails for a flag or an argument that is left out.
func completeFlags(a *app, cmd *cobra.Command) {
	fixed := func(values ...string) completer {
		return cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)
	}
	for name, complete := range map[string]completer{
		"tenant":       a.completeTenants,
		"tenants":      ofList(a.completeTenants),
		"pool":         completePools(a),
		"secret":       ofList(ofFlag(a.completeSecrets)),
		"slack-secret": ofFlag(a.completeSecrets),
		"gpu-type":     ofList(completeGPUTypes(a)),
		"provider":     completeOffers(a, func(o wire.Offer) string { return o.Provider }),
		"region":       completeOffers(a, func(o wire.Offer) string { return o.Region }),
		"zone":         completeOffers(a, func(o wire.Offer) string { return o.Zone }),
		"type":         completeOffers(a, func(o wire.Offer) string { return o.Type }),
		"market":       fixed("on_demand", "spot"),
		"overlap":      fixed("skip", "buffer_one", "allow", "cancel_other"),
		"priority":     fixed("low", "normal", "high"),
	} {
		if f := cmd.Flags().Lookup(name); f == nil || f.Value.Type() == slurmType {
			continue
		}
		if _, own := cmd.GetFlagCompletionFunc(name); !own {
			_ = cmd.RegisterFlagCompletionFunc(name, complete)
		}
	}
}

// ofFlag is a completer of an argument for a flag, where the arguments before do not matter.
func ofFlag(complete completer) completer {
	return func(cmd *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
		return complete(cmd, nil, word)
	}
}

// ofList completes the last of several values with commas between them.
func ofList(complete completer) completer {
	return func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		last := strings.LastIndexByte(word, ',') + 1
		list, directive := complete(cmd, args, word[last:])
		for i := range list {
			list[i] = word[:last] + list[i]
		}
		return list, directive
	}
}

// inTurn completes the first argument with one function and the second with another one.
func inTurn(first, second completer) completer {
	return func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		switch len(args) {
		case 0:
			return first(cmd, args, word)
		case 1:
			return second(cmd, args, word)
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeJobNames offers the names of recent jobs, for filters.
func completeJobNames(a *app) completer {
	return a.completeNames(true, func(ctx context.Context, c *client.Client) ([]candidateName, error) {
		page, err := c.Jobs(ctx, client.JobsQuery{Limit: 200})
		var list []candidateName
		for _, j := range page.Items {
			list = append(list, candidateName{j.Name, "job"})
		}
		return distinct(list), err
	})
}

// completeWorks offers jobs as completeJobs does, and the schedules without a job of their name.
func completeWorks(a *app) completer {
	return func(_ *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return completing(a, func(ctx context.Context, c *client.Client) ([]string, cobra.ShellCompDirective) {
			list, directive := jobCandidates(ctx, c, anyJob, args, word)
			if directive&cobra.ShellCompDirectiveError != 0 {
				return list, directive
			}
			// Without schedules, as for a token that may not list them, jobs are still offered.
			more, _ := nameCandidates(ctx, c, scheduleNames, word)
			for _, s := range more {
				name, _, _ := strings.Cut(s, "\t")
				if !slices.ContainsFunc(list, func(j string) bool { return strings.HasPrefix(j, name+"\t") }) {
					list = append(list, s)
				}
			}
			return list, directive
		})
	}
}

// completeCopy offers running jobs as JOB: for one of the two arguments of cp; the shell completes the path of the
// other one.
func completeCopy(a *app) completer {
	const files = cobra.ShellCompDirectiveDefault
	jobs := a.completeJobs(liveJob)
	return func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		switch {
		case len(args) > 1, strings.Contains(word, ":"): // a path in a container
			return nil, cobra.ShellCompDirectiveNoFileComp
		case len(args) == 1 && strings.Contains(args[0], ":"), strings.ContainsAny(word, "./"):
			return nil, files
		}
		list, directive := jobs(cmd, nil, word)
		if directive&cobra.ShellCompDirectiveError != 0 {
			return nil, files
		}
		for i, j := range list {
			name, about, _ := strings.Cut(j, "\t")
			list[i] = name + ":\t" + about
		}
		if len(args) == 1 {
			return list, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
		}
		return list, cobra.ShellCompDirectiveNoSpace
	}
}

// completeOffers offers a property of the offers of clouds.
func completeOffers(a *app, property func(wire.Offer) string) completer {
	return a.completeNames(true, func(ctx context.Context, c *client.Client) ([]candidateName, error) {
		page, err := c.Offers(ctx, "", "")
		var list []candidateName
		for _, o := range page.Items {
			list = append(list, candidateName{property(o), "cloud"})
		}
		return distinct(list), err
	})
}

// completeGPUTypes offers the models of the machines' GPUs.
func completeGPUTypes(a *app) completer {
	return a.completeNames(true, func(ctx context.Context, c *client.Client) ([]candidateName, error) {
		page, err := c.Machines(ctx)
		var list []candidateName
		for _, m := range page.Items {
			for _, g := range m.GPUs {
				list = append(list, candidateName{g.Model, "GPU"})
			}
		}
		return distinct(list), err
	})
}

// completeOutputs offers the outputs of the job that the first argument names.
func completeOutputs(a *app) completer {
	return completePart(a, func(ctx context.Context, c *client.Client, job wire.Job) ([]candidateName, error) {
		page, err := c.Outputs(ctx, job.ID)
		var list []candidateName
		for _, o := range page.Items {
			list = append(list, candidateName{o.Name, "output"})
		}
		return distinct(list), err
	})
}

// completePart offers parts of the job that the first argument names. Messages about the job are left out: the
// shell would print them within the command line.
func completePart(a *app, list func(context.Context, *client.Client, wire.Job) ([]candidateName, error)) completer {
	return func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		quiet := *a
		quiet.err = io.Discard
		return a.completeNames(true, func(ctx context.Context, c *client.Client) ([]candidateName, error) {
			job, err := quiet.job(ctx, c, args[0])
			if err != nil {
				return nil, err
			}
			return list(ctx, c, job)
		})(cmd, args, word)
	}
}

// distinct returns the candidates without empty and repeated names, in their order.
func distinct(list []candidateName) (out []candidateName) {
	for _, n := range list {
		if n.name != "" && !slices.ContainsFunc(out, func(o candidateName) bool { return o.name == n.name }) {
			out = append(out, n)
		}
	}
	return out
}
