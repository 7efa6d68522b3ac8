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

// usageError is a wrong use of the program or a file that it cannot read.
type usageError struct{ error }

func (e *usageError) Unwrap() error { return e.error }

// noArgs refuses what a command has no use for.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return &usageError{fmt.Errorf("%s: unexpected %q: it takes flags only", cmd.CommandPath(), args[0])}
	}
	return nil
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:           "berth-sim",
		Short:         "Replay traces through Berth's placement engine",
		Version:       buildinfo.Version(),
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.ArbitraryArgs,
	}
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
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	root.AddCommand(placeCommand(), queueCommand(), clusterCommand())
	return root
}
