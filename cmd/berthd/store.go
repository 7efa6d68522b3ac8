package main

import (
	"cmp"
	"fmt"

	"github.com/spf13/cobra"

	"berth/internal/control/controlplane"
	"berth/internal/lib/flags"
)

// newStore builds "berthd store", which works on the object store without the API.
func newStore(lookup func(string) (string, bool)) *cobra.Command {
	cmd := &cobra.Command{Use: "store", Short: "Change the object store of a cluster"}
	cmd.AddCommand(newStoreAdopt(lookup))
	return cmd
}

// newStoreAdopt builds "berthd store adopt". No process can find out whether an operator has copied the objects, so
// only an operator makes another store the cluster's.
func newStoreAdopt(lookup func(string) (string, bool)) *cobra.Command {
	var database, store string
	cmd := &cobra.Command{
		Use:   "adopt",
		Short: "Use another object store from now on",
		Long: "Adopt records the id of the object store at --blob-url as the one of the cluster. berthd refuses to " +
			"start with a store that has another id, or none. Stop every berthd first, and copy all objects to the " +
			"new store: jobs lose checkpoints, logs and outputs that it lacks. A copy with the object @berth-store " +
			"needs no adoption.",
		Example: "  berthd store adopt --blob-url 's3://berth-new?region=eu-central-1'",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := load(cmd.Flags(), lookup); err != nil {
				return err
			}
			id, before, err := controlplane.AdoptStore(cmd.Context(), database, store)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(),
				"adopted: the object store has the id %s, and the database named %s before\n", id,
				cmp.Or(before, "none"))
			return err
		},
	}
	flags.File(cmd.Flags(), settingsPath)
	cmd.Flags().StringVar(&database, "database-url", "",
		"PostgreSQL connection string, such as postgres://user@host/berth")
	cmd.Flags().StringVar(&store, "blob-url", "",
		"object store: file:///FOLDER, s3://BUCKET?region=… or gs://BUCKET/PREFIX")
	return cmd
}
