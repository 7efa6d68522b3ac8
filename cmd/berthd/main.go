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
	"berth/internal/lib/failpoint"
	"berth/internal/lib/tracing"
)

func main() {
	// The first signal stops the control plane in order; a second one ends the process at
	// once, since stop restores the default handling of signals.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	if err := command(os.LookupEnv).ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "berthd:", err)
		os.Exit(1)
	}
}

// command returns the command of berthd; lookup reads the environment, so that tests can
// pass their own.
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
			// After cobra has parsed the command line: only flags that it lacks are read
			// from the environment and the file.
			if err := load(cmd.Flags(), lookup); err != nil {
				return err
			}
			var err error
			if s.traces, err = tracing.FromEnvironment(lookup, s.otlp); err != nil {
				return err
			}
			s.adminToken, _ = lookup("BERTH_ADMIN_TOKEN") // no flag: other users can read the arguments of a process
			return run(cmd.Context(), s)
		},
	}
	s.flags(cmd.Flags())
	// Without the command that cobra adds to subcommands: berthd is started by services.
	cmd.CompletionOptions.DisableDefaultCmd = true
	cmd.AddCommand(newCA(), newToken(lookup), newNamespace(lookup), newCheckConfig(lookup), newStore(lookup),
		newBackup(lookup))
	return cmd
}

// run validates the settings, opens the traces and runs the control plane until ctx ends.
// An error ends the process with exit status 1; a stop by a signal is no error.
func run(ctx context.Context, s settings) error {
	if err := s.parse(); err != nil {
		return err
	}
	if err := s.Validate(); err != nil {
		return err
	}
	// TLS and credentials of Temporal are read as Temporal's own tools read them, from
	// TEMPORAL_TLS_... and TEMPORAL_API_KEY. The address is berthd's own setting.
	temporal, err := envconfig.LoadDefaultClientOptions()
	if err != nil {
		return fmt.Errorf("temporal client settings: %w", err)
	}
	log := s.logger()
	// The instance distinguishes replicas in traces, also several on one host. Without a
	// host name the process id remains.
	host, _ := os.Hostname()
	s.traces.Service, s.traces.Version, s.traces.Instance, s.traces.Logger = "berthd", buildinfo.Version(),
		fmt.Sprintf("%s/%d", host, os.Getpid()), log
	traces, err := tracing.Open(ctx, s.traces)
	if err != nil {
		return err
	}
	defer traces.Close()
	log.Info("traces", "otlp", s.traces)
	o := controlplane.Options{
		Logger: log, Version: buildinfo.Version(), Temporal: temporal, Traces: traces, AdminToken: s.adminToken,
		FirstToken: printToken,
	}
	o.CloudClock, o.CloudFaster = failpoint.Clock()
	c, err := controlplane.New(s.Config, o)
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

// printToken prints the secret of the first admin token to standard output, apart from the
// log on standard error: logs are collected and kept. Only this start can show the secret,
// as the database stores it nowhere.
func printToken(secret string) {
	fmt.Printf("First admin token, shown only now:\n\n    %s\n\nKeep it, and make others with: berth token create\n",
		secret)
}
