package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"go.temporal.io/sdk/contrib/envconfig"

	"berth/internal/control/controlplane"
	"berth/internal/lib/buildinfo"
	"berth/internal/lib/flags"
	"berth/internal/lib/tracing"
)

func main() {
	// The first signal stops it in order, a second one at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	if err := command(os.LookupEnv).ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "berthd:", err)
		os.Exit(1)
	}
}

// command is berthd; lookup reads the environment.
func command(lookup func(string) (string, bool)) *cobra.Command {
	s := settings{Config: controlplane.Default()}
	cmd := &cobra.Command{
		Use:           "berthd",
		Short:         "Berth's control plane",
		Version:       buildinfo.Version(),
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := flags.FromEnvironment(cmd.Flags(), lookup); err != nil {
				return err
			}
			var err error
			if s.traces, err = tracing.FromEnvironment(lookup, s.otlp); err != nil {
				return err
			}
			s.adminToken, _ = lookup("BERTH_ADMIN_TOKEN") // no flag: others on this machine could read it
			return run(cmd.Context(), s)
		},
	}
	s.flags(cmd.Flags())
	return cmd
}

func run(ctx context.Context, s settings) error {
	if err := s.parse(); err != nil {
		return err
	}
	if err := s.Validate(); err != nil {
		return err
	}
	// TLS and credentials of Temporal come the way its own tools take them, from
	// TEMPORAL_TLS_... and TEMPORAL_API_KEY.
	temporal, err := envconfig.LoadDefaultClientOptions()
	if err != nil {
		return fmt.Errorf("temporal client settings: %w", err)
	}
	log := s.logger()
	host, _ := os.Hostname()
	s.traces.Service, s.traces.Version, s.traces.Instance, s.traces.Logger = "berthd", buildinfo.Version(),
		fmt.Sprintf("%s/%d", host, os.Getpid()), log
	traces, err := tracing.Open(ctx, s.traces)
	if err != nil {
		return err
	}
	defer traces.Close()
	log.Info("traces", "otlp", s.traces)
	c, err := controlplane.New(s.Config, controlplane.Options{
		Logger: log, Version: buildinfo.Version(), Temporal: temporal, Traces: traces, AdminToken: s.adminToken,
		FirstToken: printToken,
	})
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

// printToken shows the first admin token, once and apart from the log.
func printToken(secret string) {
	fmt.Printf("First admin token, shown only now:\n\n    %s\n\nKeep it, and make others with: berth token create\n",
		secret)
}
