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
)

// main runs the command. A stack stopped by a signal is a success.
func main() {
	// The first SIGINT or SIGTERM stops the stack in order. It also restores the default
	// handling, so a second signal ends the process at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	if err := command().ExecuteContext(ctx); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "berth-dev:", err)
		os.Exit(1)
	}
}

// command returns the root command, which starts the stack, with its subcommands.
func command() *cobra.Command {
	cfg := &config{}
	root := &cobra.Command{
		Use:           "berth-dev",
		Short:         "All of Berth on this machine: PostgreSQL, Temporal, the control plane and agents",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cfg.validate(); err != nil {
				return err
			}
			// Logs go to stderr, addresses for people to stdout.
			log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: cfg.LogLevel}))
			return run(cmd.Context(), cfg, log)
		},
	}
	cfg.flags(root.Flags())
	root.AddCommand(downCommand(), killMachineCommand())
	return root
}

// downCommand returns the command that stops the private engines, which a stack leaves
// running on purpose.
func downCommand() *cobra.Command {
	dir := defaultDir()
	cmd := &cobra.Command{
		Use:   "down",
		Short: "End the private engines and their containers that a stopped berth-dev left running; data stays",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return down(cmd.Context(), dir)
		},
	}
	cmd.Flags().StringVar(&dir, "dir", dir, "folder that keeps all state")
	return cmd
}

// killMachineCommand returns the command that simulates the loss of a machine.
func killMachineCommand() *cobra.Command {
	dir := defaultDir()
	cmd := &cobra.Command{
		Use:   "kill-machine NAME",
		Short: "Kill a machine of a running berth-dev as a power cut would: agent, engine and containers at once",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return askKill(cmd.Context(), dir, args[0])
		},
	}
	cmd.Flags().StringVar(&dir, "dir", dir, "folder of the running berth-dev")
	return cmd
}
