package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/contrib/envconfig"

	"berth/internal/lib/flags"
	"berth/workers"
)

// minRetention is the shortest retention that Temporal accepts.
const minRetention = 24 * time.Hour

// newNamespace builds "berthd namespace", which prepares Temporal for berthd. Temporal refuses
// workflows in a namespace, or with a search attribute, that does not exist.
func newNamespace(lookup func(string) (string, bool)) *cobra.Command {
	cmd := &cobra.Command{Use: "namespace", Short: "Prepare the Temporal namespace of the workflows"}
	cmd.AddCommand(newNamespaceCreate(lookup))
	return cmd
}

// newNamespaceCreate builds "berthd namespace create". A repeat changes nothing, so that it
// fits the setup scripts of operators.
func newNamespaceCreate(lookup func(string) (string, bool)) *cobra.Command {
	address, namespace := "127.0.0.1:7233", workers.DefaultNamespace
	retention, wait := 3*24*time.Hour, 30*time.Second
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Create the Temporal namespace and its search attributes unless they exist",
		Long: "Create the Temporal namespace and the search attributes of Berth's workflows, and wait until they can " +
			"be used. An existing namespace keeps its settings. The certificate, the key and the API key of Temporal " +
			"are read from TEMPORAL_TLS_CLIENT_CERT_PATH, TEMPORAL_TLS_CLIENT_KEY_PATH, " +
			"TEMPORAL_TLS_SERVER_CA_CERT_PATH and TEMPORAL_API_KEY, as by Temporal's own tools.",
		Example: "  berthd namespace create --temporal-namespace berth --namespace-retention 72h",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := load(cmd.Flags(), lookup); err != nil {
				return err
			}
			if retention < minRetention {
				return fmt.Errorf("--namespace-retention %s: allowed are %s and more", retention, minRetention)
			}
			base, err := envconfig.LoadDefaultClientOptions()
			if err != nil {
				return fmt.Errorf("temporal client settings: %w", err)
			}
			c, err := workers.Dial(workers.ClientOptions{Base: base, Address: address, Namespace: namespace})
			if err != nil {
				return err
			}
			defer c.Close()
			ctx, cancel := context.WithTimeout(cmd.Context(), wait)
			defer cancel()
			return createNamespace(ctx, cmd, c, namespace, retention)
		},
	}
	flags.File(cmd.Flags(), settingsPath)
	flags.Temporal(cmd.Flags(), &address, &namespace)
	cmd.Flags().DurationVar(&retention, "namespace-retention", retention,
		"how long Temporal keeps the history of ended workflows; at least 24h. Berth's own history is in PostgreSQL")
	return cmd
}

// createNamespace creates the namespace, and repeats each step until Temporal's services know the
// result of the one before, or ctx ends. Temporal's services cache namespaces, so for some seconds they
// do not know a new one.
func createNamespace(ctx context.Context, cmd *cobra.Command, c client.Client, namespace string,
	retention time.Duration) error {
	var created bool
	err := repeat(ctx, func() (err error) {
		created, err = workers.CreateNamespace(ctx, c, namespace, retention)
		return err
	})
	if err != nil {
		return err
	}
	if err := repeat(ctx, func() error { return workers.AddSearchAttributes(ctx, c, namespace) }); err != nil {
		return err
	}
	// An existing namespace keeps its retention, so the output shows the one in force, not the
	// flag's.
	keeps, err := workers.NamespaceRetention(ctx, c, namespace)
	if err != nil {
		return err
	}
	state := "exists"
	if created {
		state = "created"
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "namespace %s %s; ended workflows are kept for %s\n", namespace, state,
		keeps)
	return err
}

// repeat calls f until it succeeds, twice a second, and returns f's last error when ctx ends. The first
// call comes at once. An error that no wait can repair is returned only when ctx ends.
func repeat(ctx context.Context, f func() error) error {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}
