package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"berth/internal/control/cloud"
	"berth/internal/control/cloud/cloudexec"
	"berth/internal/lib/buildinfo"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "berth-cloud:", err)
		os.Exit(1)
	}
}

// command returns the command with a subcommand for each cloud.
func command() *cobra.Command {
	root := &cobra.Command{
		Use:   "berth-cloud",
		Short: "Create and terminate machines of a cloud",
		Long: "Create and terminate machines of a cloud.\n\n" +
			"Each run reads one request from standard input and writes one answer to standard output. The exit " +
			"status is 0 if the answer is valid, also for an answer with an error.",
		Version:       buildinfo.Version(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(ec2Command(), gceCommand(), localCommand(), machineCommand(), reclaimCommand())
	return root
}

// serve answers one request with a provider.
func serve(cmd *cobra.Command, p cloud.Provider) error {
	return cloudexec.Serve(cmd.Context(), p, cmd.InOrStdin(), cmd.OutOrStdout(),
		os.Getenv(cloudexec.AnswersEnv))
}
