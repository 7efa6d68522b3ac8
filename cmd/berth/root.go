package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// Groups of commands in the help text. Every command of the first level belongs to one.
const (
	groupJobs     = "jobs"
	groupMachines = "machines"
	groupAdmin    = "admin"
	groupSelf     = "self"
)

// newRoot builds the whole command tree for one run. Flags write into a, so a tree serves
// one run only. The texts are also the source of docs/reference/cli.md, which a test
// compares.
func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "berth",
		Short: "Run containers on a cluster of machines and GPUs",
		Long: "berth submits jobs to a Berth control plane, shows their state and manages its " +
			"machines.\n\n" +
			"The server is BERTH_URL (default " + defaultURL +
			") with BERTH_TOKEN, or a context stored by berth login.\n" +
			"A JOB is a handle (the end of its id, as berth list shows it), an id, the beginning of an id, or a\n" +
			"name; a name selects its latest job.\n\n" + exitHelp(),
		// app.report prints errors, with hints and without a page of usage.
		SilenceErrors: true,
		SilenceUsage:  true,
		// Runs before every command. A command with a hook of its own would hide this one.
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
	// The defaults are the values from the environment, so that a flag takes precedence.
	flags.StringVar(&a.URL, "url", a.URL, "server URL [BERTH_URL]")
	flags.StringVar(&a.Context, "context", a.Context, "stored server to use [BERTH_CONTEXT]")
	flags.StringVarP(&a.Output, "output", "o", "table", "output format: table, wide, json, yaml or name")
	_ = root.RegisterFlagCompletionFunc("output",
		cobra.FixedCompletions([]string{"table", "wide", "json", "yaml", "name"}, cobra.ShellCompDirectiveNoFileComp))
	_ = root.RegisterFlagCompletionFunc("context", a.completeContexts)
	// Children inherit the function: every wrong flag is a usage error with exit code 2.
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &usageError{message: err.Error(), hint: "list its flags: " + cmd.CommandPath() + " --help"}
	})
	root.SetHelpCommandGroupID(groupSelf)
	root.SetCompletionCommandGroupID(groupSelf)
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add(groupJobs, newSubmit(a), newRun(a), newSbatch(a), newPlan(a), newList(a), newQueue(a), newShow(a),
		newExplain(a), newEvents(a), newLogs(a), newWait(a), newCancel(a), newHold(a), newRelease(a), newSuspend(a),
		newCheckpoint(a), newRetry(a), newPriority(a),
		newExec(a), newAttach(a), newPortForward(a), newCp(a), newSessions(a),
		newMetrics(a), newCheckpoints(a), newOutputs(a), newPipeline(a), newSchedule(a))
	add(groupMachines, newMachineList(a, "machines"), newTop(a), newMachine(a), newMaintenance(a), newPool(a),
		newJoinToken(a))
	add(groupAdmin, newAdmission(a), newTenant(a), newQuota(a), newBurst(a), newOffers(a), newUsage(a),
		newToken(a), newSecret(a), newChannel(a))
	add(groupSelf, newLogin(a), newWhoami(a), newContext(a), newVersion(a))
	// After the whole tree exists: checkArgs wraps each command's own check.
	eachCommand(root, checkArgs)
	eachCommand(root, func(c *cobra.Command) { completeFlags(a, c) })
	return root
}

// eachCommand visits a command and then all commands below.
func eachCommand(c *cobra.Command, visit func(*cobra.Command)) {
	visit(c)
	for _, sub := range c.Commands() {
		eachCommand(sub, visit)
	}
}

// checkArgs makes wrong arguments a usageError in the wording of all other errors. A group
// without an action of its own, such as "berth machine", prints its help. cobra does so for
// an unknown word too and exits with 0, which hides a misspelt command from scripts.
func checkArgs(c *cobra.Command) {
	check := c.Args
	if c.HasSubCommands() && !c.Runnable() {
		c.RunE = func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			return unknownCommand(cmd, args[0])
		}
		// RunE must see the unknown word to refuse it.
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
		return &usageError{message: argsText(cmd, len(args)), hint: "usage: " + cmd.UseLine()}
	}
}

// argsText describes a wrong number of arguments, by the names in the command's usage line.
func argsText(cmd *cobra.Command, given int) string {
	var required []string
	for _, word := range strings.Fields(cmd.Use)[1:] {
		if word[0] == '[' || word[0] == '-' {
			break
		}
		required = append(required, strings.TrimSuffix(word, "..."))
	}
	path := cmd.CommandPath()
	switch {
	case given < len(required) && required[given] == "FILE|-":
		return path + " needs a FILE (or - for standard input)"
	case given < len(required):
		article := " needs a "
		if required[given] == "ID" {
			article = " needs an "
		}
		return path + article + required[given]
	case len(required) == 0:
		return path + " takes no arguments"
	default:
		return fmt.Sprintf("%s does not take %s", path, plural(given, "argument", "arguments"))
	}
}

// unknownCommand reports a word that names no command, with similar names as the hint.
func unknownCommand(cmd *cobra.Command, word string) error {
	e := &usageError{message: fmt.Sprintf("%q is not a command of %s", word, cmd.CommandPath()),
		hint: "list its commands: " + cmd.CommandPath() + " --help"}
	cmd.SuggestionsMinimumDistance = 2
	if names := cmd.SuggestionsFor(word); len(names) > 0 {
		e.hint = "did you mean " + strings.Join(names, " or ") + "?"
	}
	return e
}

// exitHelp returns the table of exit codes for the help text.
func exitHelp() string {
	var b strings.Builder
	b.WriteString("Exit codes:\n")
	for _, e := range exitCodes {
		fmt.Fprintf(&b, "  %-4d %s\n", e.code, e.meaning)
	}
	return strings.TrimRight(b.String(), "\n")
}
