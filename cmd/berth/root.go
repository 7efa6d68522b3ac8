package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// Groups of commands in the help text.
const (
	groupJobs     = "jobs"
	groupMachines = "machines"
	groupAdmin    = "admin"
	groupSelf     = "self"
)

// newRoot builds the whole command tree for one run.
func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "berth",
		Short: "Run containers on a cluster of machines and GPUs",
		Long: "berth submits jobs to a Berth control plane, shows what becomes of them and looks after its " +
			"machines.\n\n" +
			"The server is BERTH_URL (default " + defaultURL +
			") with BERTH_TOKEN, or a context stored by berth login.\n" +
			"Where a command takes a JOB, an id, the beginning of an id or a name will do; a name means its latest " +
			"job.\n\n" + exitHelp(),
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			return a.config.Validate()
		},
	}
	root.AddGroup(
		&cobra.Group{ID: groupJobs, Title: "Jobs:"},
		&cobra.Group{ID: groupMachines, Title: "Machines:"},
		&cobra.Group{ID: groupAdmin, Title: "Administration:"},
		&cobra.Group{ID: groupSelf, Title: "This program:"},
	)
	flags := root.PersistentFlags()
	flags.StringVar(&a.URL, "url", a.URL, "server URL [BERTH_URL]")
	flags.StringVar(&a.Context, "context", a.Context, "stored server to use [BERTH_CONTEXT]")
	flags.StringVarP(&a.Output, "output", "o", "table", "output format: table, wide, json, yaml or name")
	_ = root.RegisterFlagCompletionFunc("output",
		cobra.FixedCompletions([]string{"table", "wide", "json", "yaml", "name"}, cobra.ShellCompDirectiveNoFileComp))
	_ = root.RegisterFlagCompletionFunc("context", a.completeContexts)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &usageError{message: err.Error(), hint: cmd.CommandPath() + " --help shows its flags"}
	})
	root.SetHelpCommandGroupID(groupSelf)
	root.SetCompletionCommandGroupID(groupSelf)
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add(groupJobs, newSubmit(a), newRun(a), newPlan(a), newList(a), newShow(a), newExplain(a), newEvents(a), newLogs(a),
		newWait(a), newCancel(a), newHold(a), newRelease(a), newRetry(a), newPriority(a), newMetrics(a),
		newCheckpoints(a), newOutputs(a), newPipeline(a), newSchedule(a))
	add(groupMachines, newMachineList(a, "machines"), newMachine(a), newJoinToken(a))
	add(groupAdmin, newAdmission(a), newTenant(a), newQuota(a), newToken(a), newSecret(a))
	add(groupSelf, newLogin(a), newContext(a), newVersion(a))
	eachCommand(root, checkArgs)
	return root
}

func eachCommand(c *cobra.Command, visit func(*cobra.Command)) {
	visit(c)
	for _, sub := range c.Commands() {
		eachCommand(sub, visit)
	}
}

// checkArgs words wrong arguments the way every other error is worded.
func checkArgs(c *cobra.Command) {
	check := c.Args
	if c.HasSubCommands() && !c.Runnable() {
		c.RunE = func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			return unknownCommand(cmd, args[0])
		}
		check = cobra.ArbitraryArgs
	}
	if check == nil {
		check = cobra.NoArgs
	}
	c.Args = func(cmd *cobra.Command, args []string) error {
		err := check(cmd, args)
		if _, ours := errors.AsType[*usageError](err); ours || err == nil {
			return err
		}
		return &usageError{message: cmd.CommandPath() + " does not take " + plural(len(args),
			"argument", "arguments"), hint: "usage: " + cmd.UseLine()}
	}
}

func unknownCommand(cmd *cobra.Command, word string) error {
	e := &usageError{message: fmt.Sprintf("%q is not a command of %s", word, cmd.CommandPath()),
		hint: cmd.CommandPath() + " --help lists them"}
	cmd.SuggestionsMinimumDistance = 2
	if names := cmd.SuggestionsFor(word); len(names) > 0 {
		e.hint = "did you mean " + strings.Join(names, " or ") + "?"
	}
	return e
}

func exitHelp() string {
	var b strings.Builder
	b.WriteString("Exit codes:\n")
	for _, e := range exitCodes {
		fmt.Fprintf(&b, "  %-4d %s\n", e.code, e.meaning)
	}
	return strings.TrimRight(b.String(), "\n")
}
