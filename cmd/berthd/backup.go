package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"berth/internal/control/backup"
	"berth/internal/lib/buildinfo"
	"berth/internal/lib/flags"
	"berth/internal/lib/sealer"
)

// newBackup builds "berthd backup", which takes and restores backups. It needs the database and the object
// store, and no running berthd.
func newBackup(lookup func(string) (string, bool)) *cobra.Command {
	cmd := &cobra.Command{Use: "backup", Short: "Take, verify and restore backups"}
	cmd.AddCommand(newBackupCreate(lookup), newBackupVerify(), newBackupRestore(lookup), newBackupAdopt(lookup))
	return cmd
}

// installation holds the flags that name the parts of an installation. They have the names, the
// variables and the settings file of berthd, so that a backup needs no settings of its own.
type installation struct {
	database, blobs, keyFile, bin string
}

// flags registers the flags.
func (s *installation) flags(f *pflag.FlagSet) {
	flags.File(f, settingsPath)
	f.StringVar(&s.database, "database-url", "", "PostgreSQL connection string, such as postgres://user@host/berth")
	f.StringVar(&s.blobs, "blob-url", "",
		"object store URL: file:///FOLDER, s3://BUCKET?region=… or gs://BUCKET/PREFIX")
	f.StringVar(&s.keyFile, "secret-key-file", "",
		"file with the keys of berthd; a backup records their fingerprints, never the keys")
	f.StringVar(&s.bin, "pg-bin", "",
		"folder of pg_dump and pg_restore (default: search PATH and the folders of the distribution)")
}

// check returns an error without a database, and reads the key file, if one is named. The keys are nil
// without a key file: the manifest then names only the keys under which the database has values.
func (s *installation) check() (*sealer.Keys, error) {
	if s.database == "" {
		return nil, errors.New("no database: set --database-url or BERTH_DATABASE_URL to postgres://user@host/berth")
	}
	if s.keyFile == "" {
		return nil, nil
	}
	return sealer.Load(s.keyFile)
}

// newBackupCreate builds "berthd backup create". The row of the backup records the caller, and the
// manifest the version of this program, which a restore needs.
func newBackupCreate(lookup func(string) (string, bool)) *cobra.Command {
	var s installation
	var noObjects bool
	cmd := &cobra.Command{
		Use:   "create FOLDER",
		Short: "Back up the database and the objects",
		Long: "Create a backup in a new folder: the database by pg_dump, then the objects of a store in a folder. " +
			"Objects of a bucket are listed only: keep their bytes by versioning of the bucket. The key file is " +
			"never part of a backup: keep it elsewhere. Control planes continue to work; only the deletion of " +
			"objects and of old rows waits for the end of the backup. Until the backup is complete, the " +
			"folder's name contains .partial-.",
		Example: "  berthd backup create /var/backups/berth/$(date +%F)",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := load(cmd.Flags(), lookup); err != nil {
				return err
			}
			keys, err := s.check()
			if err != nil {
				return err
			}
			m, err := backup.Create(cmd.Context(), backup.Options{Dir: args[0], DatabaseURL: s.database,
				BlobURL: s.blobs, NoObjects: noObjects, Keys: keys, PgBin: s.bin,
				Actor: actorName(), Version: buildinfo.Version()})
			if err != nil {
				return err
			}
			return printBackup(cmd.OutOrStdout(), "backed up to", args[0], m)
		},
	}
	s.flags(cmd.Flags())
	cmd.Flags().BoolVar(&noObjects, "no-objects", false,
		"the installation has no object store; without it, --blob-url must be set")
	return cmd
}

// newBackupVerify builds "berthd backup verify". It reads no settings: a backup can be verified on
// a host that has only the backup.
func newBackupVerify() *cobra.Command {
	return &cobra.Command{
		Use:   "verify FOLDER",
		Short: "Compare every file of a backup with its manifest",
		Long: "Verify reads the dump, the listing and every copied object of a backup, and compares their lengths " +
			"and SHA-256 with the manifest. It needs no database. The exit status is 1 for a damaged or " +
			"incomplete backup.",
		Example: "  berthd backup verify /var/backups/berth/2026-11-28",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := backup.Verify(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return printBackup(cmd.OutOrStdout(), "verified", args[0], m)
		},
	}
}

// printBackup describes a backup. did is the act in the past tense. Sizes are in bytes, times in RFC
// 3339.
func printBackup(w io.Writer, did, dir string, m backup.Manifest) error {
	objects := "no object store"
	switch m.Objects.Kind {
	case backup.ObjectsCopied:
		objects = fmt.Sprintf("%d objects with %d bytes, copied from "+
			"%s", m.Objects.Count, m.Objects.Bytes, m.Objects.Store)
	case backup.ObjectsListed:
		objects = fmt.Sprintf("%d objects with %d bytes in %s, listed only: versioning of the bucket must keep "+
			"their bytes",
			m.Objects.Count, m.Objects.Bytes, m.Objects.Store)
	}
	keys := "none"
	if len(m.Keys) > 0 {
		keys = strings.Join(m.Keys, ", ") + ": the key file is not part of the backup"
	}
	_, err := fmt.Fprintf(w, "%s %s\ncluster   %s, Berth %s, schema version %d\ntaken     %s to %s\ndatabase  %d "+
		"bytes\n"+
		"objects   %s\nkeys      %s\n", did, dir, m.Cluster, m.Berth, m.Schema, m.StartedAt.Format(time.RFC3339),
		m.EndedAt.Format(time.RFC3339), m.Database.Bytes, objects, keys)
	return err
}
