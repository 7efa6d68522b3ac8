package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"berth/internal/lib/buildinfo"
)

// main exits with 2 after a wrong use, which repeats with the same arguments, and with 1
// after any other failure.
func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "berth-sim:", err)
		if errors.As(err, new(*usageError)) {
			os.Exit(2)
		}
		os.Exit(1)
	}
}

// usageError wraps the error of a wrong invocation or an unreadable file; main exits with
// 2.
type usageError struct{ error }

func (e *usageError) Unwrap() error { return e.error }

// noArgs rejects positional arguments with an error that names the first one.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return &usageError{fmt.Errorf("%s: unexpected %q: it takes flags only", cmd.CommandPath(), args[0])}
	}
	return nil
}

// command returns the root command with all subcommands.
func command() *cobra.Command {
	root := &cobra.Command{
		Use:           "berth-sim",
		Short:         "Replay traces through Berth's placement engine",
		Version:       buildinfo.Version(),
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.ArbitraryArgs,
	}
	// Cobra by itself prints the help and succeeds when the subcommand is missing; a script
	// with a typing error must fail.
	root.RunE = func(_ *cobra.Command, args []string) error {
		var names []string
		for _, c := range root.Commands() {
			if c.IsAvailableCommand() {
				names = append(names, c.Name())
			}
		}
		allowed := "allowed are " + strings.Join(names, ", ")
		if len(args) == 0 {
			return &usageError{errors.New("no command: " + allowed)}
		}
		return &usageError{fmt.Errorf("unknown command %q: %s", args[0], allowed)}
	}
	// An unknown or malformed flag is a usage error too.
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	root.AddCommand(placeCommand(), queueCommand(), clusterCommand(), burstCommand(), snapshotCommand(),
		replayCommand())
	return root
}
