package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"berth/internal/devstack/temporaldev"
	"berth/internal/lib/buildinfo"
	"berth/internal/lib/flags"
)

func main() {
	// The first signal stops the server in order; a second one ends the process at once, since stop restores the
	// default handling of signals.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	if err := command(os.LookupEnv).ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "berth-temporal:", err)
		os.Exit(1)
	}
}

// command returns the command of berth-temporal; lookup reads the environment, so that tests can pass their own.
func command(lookup func(string) (string, bool)) *cobra.Command {
	s := defaults()
	cmd := &cobra.Command{
		Use:           "berth-temporal",
		Short:         "A Temporal server for small sites: one process on one host",
		Version:       buildinfo.Version(),
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// After cobra has parsed the command line: only flags that it lacks are read from the environment and
			// the file.
			if err := flags.Load(cmd.Flags(), cmd.Flags(), lookup); err != nil {
				return err
			}
			if err := s.validate(); err != nil {
				return err
			}
			return run(cmd.Context(), s)
		},
	}
	s.flags(cmd.Flags())
	return cmd
}

// run starts the server and stops it when ctx ends. It returns an error if another server has taken the
// databases.
func run(ctx context.Context, s settings) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: s.level}))
	o := s.options()
	o.Logger = log
	log.Info("temporal starting", "version", buildinfo.Version(), "listen", s.listen, "tls", s.cert != "")
	server, err := temporaldev.Start(ctx, o)
	if ctx.Err() != nil && err != nil {
		return nil // stopped during the start
	}
	if err != nil {
		return err
	}
	var fault error
	select {
	case <-ctx.Done():
	case <-server.Lost():
		fault = errors.New("the lock of the databases is lost: another berth-temporal has it, or the database does " +
			"not answer")
	}
	log.Info("temporal stopping")
	return errors.Join(fault, server.Stop())
}
