package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"berth/db"
	"berth/internal/control/backup"
	"berth/internal/lib/flags"
)

// newBackupRestore builds "berthd backup restore". It takes the settings of berthd, so it fills
// the database and the object store that the next start of berthd uses. A refused restore has
// changed nothing. A failed one can be repeated, and finds the objects that it has copied; if it
// left tables, create the database again first.
func newBackupRestore(lookup func(string) (string, bool)) *cobra.Command {
	var s installation
	cmd := &cobra.Command{
		Use:   "restore FOLDER",
		Short: "Restore a backup into an empty database, quarantined",
		Long: "Restore verifies a backup, copies its objects into the object store, and restores its database into " +
			"an empty one. The restored cluster is quarantined: it starts no work, gives no orders to machines, " +
			"sends no webhooks, fires no schedules, deletes nothing, and launches and terminates no machines, until " +
			"berthd backup adopt. Machines renew their leases and report. Stop all of berthd before, and start it " +
			"after.",
		Example: "  createdb berth\n  berthd backup restore /var/backups/berth/2026-11-28\n  berthd backup adopt",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := load(cmd.Flags(), lookup); err != nil {
				return err
			}
			// Without its keys the restored cluster could not open its secrets, so backup.Restore
			// compares them with the manifest before it writes.
			keys, err := s.check()
			if err != nil {
				return err
			}
			r, err := backup.Restore(cmd.Context(), backup.RestoreOptions{Dir: args[0], DatabaseURL: s.database,
				BlobURL: s.blobs, Keys: keys, PgBin: s.bin})
			if err != nil {
				return err
			}
			return printRestored(cmd.OutOrStdout(), args[0], r)
		},
	}
	s.flags(cmd.Flags())
	return cmd
}

// printRestored describes the result of a restore and the next steps.
func printRestored(w io.Writer, dir string, r backup.Restored) error {
	if err := printBackup(w, "restored", dir, r.Manifest); err != nil {
		return err
	}
	// A store that has survived holds most of the objects already: this is no fault, so it is only
	// counted.
	if r.Objects.Kind != backup.ObjectsNone {
		if _, err := fmt.Fprintf(w, "store     %d objects copied, %d were there", r.Copied, r.Present); err != nil {
			return err
		}
		if r.Replaced > 0 {
			fmt.Fprintf(w, ", %d had another content and were replaced", r.Replaced)
		}
		if r.Changed > 0 {
			fmt.Fprintf(w, ", %d have another size since later uploads and were kept", r.Changed)
		}
		if r.Missing > 0 {
			fmt.Fprintf(w, ", %d are missing: restore their versions in the bucket", r.Missing)
		}
		fmt.Fprintln(w)
	}
	_, err := fmt.Fprintln(w, "The cluster is quarantined. Start berthd, wait until the machines have "+
		"registered, and end the "+
		"quarantine: berthd backup adopt")
	return err
}

// newBackupAdopt builds "berthd backup adopt". It needs the database alone. No process can find out
// whether another control plane gives orders to the same machines, so only an operator ends a
// quarantine.
func newBackupAdopt(lookup func(string) (string, bool)) *cobra.Command {
	var database string
	cmd := &cobra.Command{
		Use:   "adopt",
		Short: "End the quarantine of a restored cluster",
		Long: "Adopt ends the quarantine of a restored cluster, and lists what the quarantine has shown: containers " +
			"that machines reported and that no row knows, machines that have not registered, and at_most_one jobs " +
			"that are held. Make sure before that no other control plane works with the same machines. Work that was " +
			"started after the backup is listed only as far as its machines have registered.",
		Example: "  berthd backup adopt",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := load(cmd.Flags(), lookup); err != nil {
				return err
			}
			// Without a key file, check only demands a database.
			if _, err := (&installation{database: database}).check(); err != nil {
				return err
			}
			a, err := backup.Adopt(cmd.Context(), database)
			if err != nil {
				return err
			}
			return printAdoption(cmd.OutOrStdout(), a)
		},
	}
	flags.File(cmd.Flags(), settingsPath)
	cmd.Flags().StringVar(&database, "database-url", "",
		"PostgreSQL connection string, such as postgres://user@host/berth")
	return cmd
}

// printAdoption lists the findings of a quarantine. None of them is an error: the quarantine has ended
// before the first line is printed, and the lines are work for the operator.
func printAdoption(w io.Writer, a db.Adoption) error {
	_, err := fmt.Fprintf(w, "adopted: quarantined since %s, backup of %s\n%d machines have registered, %d have not\n",
		a.Since.UTC().Format(time.RFC3339), a.Taken.UTC().Format(time.RFC3339), a.Machines, len(a.Silent))
	if err != nil {
		return err
	}
	for _, m := range a.Silent {
		fmt.Fprintf(w, "  machine %s has not registered\n", m)
	}
	fmt.Fprintf(w, "%d containers were started after the backup\n", len(a.Unknown))
	for _, c := range a.Unknown {
		// The rows do not count the devices of such a container, so its machine gets no work while
		// it runs.
		state := "runs on, and its machine gets no work before it ends"
		if !c.Running {
			state = "has ended"
		}
		fmt.Fprintf(w, "  job %s, attempt %d, member %d on machine %s: "+
			"%s\n", c.Job, c.Attempt, c.Rank, c.Machine, state)
	}
	fmt.Fprintf(w, "%d at_most_one jobs are held: run 'berth release JOB' once no container of that job runs\n",
		len(a.Held))
	for _, j := range a.Held {
		fmt.Fprintf(w, "  job %s\n", j)
	}
	return nil
}
