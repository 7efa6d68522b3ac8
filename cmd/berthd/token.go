package main

import (
	"cmp"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"berth/internal/control/controlplane"
	"berth/internal/lib/flags"
)

// tokenFileFlag declares the file of the first admin token, which berthd and its reset of the
// token share.
func tokenFileFlag(f *pflag.FlagSet, file *string) {
	f.StringVar(file, "admin-token-file", *file,
		"file of the first admin token: its token is used, and a missing file is created with a new token "+
			"(default: a new token is printed once)")
}

// newToken builds "berthd token", which works on tokens without the API.
func newToken(lookup func(string) (string, bool)) *cobra.Command {
	cmd := &cobra.Command{Use: "token", Short: "Replace a lost admin token"}
	cmd.AddCommand(newTokenReset(lookup))
	return cmd
}

// newTokenReset builds "berthd token reset". It needs the credential of the database instead
// of a token, and no running berthd.
func newTokenReset(lookup func(string) (string, bool)) *cobra.Command {
	var o controlplane.TokenReset
	cmd := &cobra.Command{
		Use:   "reset",
		Short: "Revoke the admin tokens of one name and create a new one",
		Long: "Reset revokes every valid admin token of one name in tenant default, and creates a new one. It needs " +
			"the database alone. Running replicas refuse the old tokens after a second, and end their open streams " +
			"within 5 s. Tokens of other names stay valid. The new token goes to standard output, or to the file of " +
			"--admin-token-file, whose owner it keeps.",
		Example: "  berthd token reset --admin-token-file ''",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := load(cmd.Flags(), lookup); err != nil {
				return err
			}
			// berthd runs in another folder, where a relative path would name another file.
			if o.File != "" && !filepath.IsAbs(o.File) {
				return fmt.Errorf("--admin-token-file %q: must be an absolute path", o.File)
			}
			// No token authenticates the caller, so the events of the tokens name the person and
			// the host.
			o.Actor = "reset:" + actorName()
			return resetToken(cmd, o)
		},
	}
	flags.File(cmd.Flags(), settingsPath)
	cmd.Flags().StringVar(&o.DatabaseURL, "database-url", "",
		"PostgreSQL connection string, such as postgres://user@host/berth")
	cmd.Flags().StringVar(&o.Name, "token-name", "admin", "name of the tokens")
	tokenFileFlag(cmd.Flags(), &o.File)
	cmd.Flags().Lookup("admin-token-file").Usage = "file that gets the new token (default: standard output)"
	return cmd
}

// resetToken resets the tokens and prints the new one alone on standard output, for pipes. All other
// lines go to standard error.
func resetToken(cmd *cobra.Command, o controlplane.TokenReset) error {
	r, err := controlplane.ResetToken(cmd.Context(), o)
	if err != nil {
		return err
	}
	says := cmd.ErrOrStderr()
	if len(r.Revoked) == 0 {
		fmt.Fprintf(says, "no valid admin token %q was found; created token %s\n", o.Name, r.ID)
	} else {
		fmt.Fprintf(says, "revoked %s, created token %s\n", strings.Join(r.Revoked, ", "), r.ID)
	}
	if r.Others > 0 {
		fmt.Fprintf(says, "%d admin tokens of other names stay valid: berth token list\n", r.Others)
	}
	if o.File != "" {
		fmt.Fprintf(says, "the token is in %s\n", o.File)
		return nil
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), r.Text)
	return err
}

// actorName names the person who runs this program, as far as the system knows: USER@HOST.
func actorName() string {
	name := fmt.Sprintf("uid %d", os.Getuid())
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	host, _ := os.Hostname()
	return name + "@" + cmp.Or(host, "unknown")
}
