package main

import (
	"fmt"
	"os/user"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"berth/internal/control/authority"
)

// newCA builds "berthd ca", a certificate authority for clusters without one. Its commands work on
// files alone. They need neither the database nor a running berthd, so the key can be kept on a host
// outside of the cluster.
func newCA() *cobra.Command {
	cmd := &cobra.Command{Use: "ca", Short: "Create a certificate authority and sign certificates"}
	cmd.AddCommand(newCAInit(), newCAIssue())
	return cmd
}

// authorityFolder is the default folder of an authority.
const authorityFolder = "/etc/berth"

// newCAInit builds "berthd ca init". It refuses a folder that has an authority: a new key would end
// the trust in every certificate that the old key has signed.
func newCAInit() *cobra.Command {
	var folder, name string
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Create a certificate authority: ca.crt and ca.key",
		Long: "Init creates an authority in a folder, once. Machines and users get ca.crt. ca.key is needed only to " +
			"sign certificates; keep it elsewhere.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := authority.Init(folder, name, time.Now()); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "created %s and %s\n",
				filepath.Join(folder, authority.CertFile), filepath.Join(folder, authority.KeyFile))
			return err
		},
	}
	cmd.Flags().StringVar(&folder, "dir", authorityFolder, "folder of the authority")
	cmd.Flags().StringVar(&name, "name", "Berth authority", "name of the authority in its certificate")
	return cmd
}

// newCAIssue builds "berthd ca issue". A repeated call with the same NAME renews the certificate.
func newCAIssue() *cobra.Command {
	var folder, group string
	var days int
	cmd := &cobra.Command{
		Use:   "issue NAME HOST...",
		Short: "Sign a certificate: NAME.crt and NAME.key",
		Long: "Issue signs a certificate for DNS names and IP addresses, for servers and clients, and replaces " +
			"files of that name. A running berthd reads renewed files by itself.",
		Example: "  berthd ca issue berthd berth.internal 10.0.0.5 --group berth",
		Args:    cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			access, err := groupAccess(group)
			if err != nil {
				return err
			}
			if err := authority.Issue(folder, args[0], args[1:], days, access, time.Now()); err != nil {
				return err
			}
			base := filepath.Join(folder, args[0])
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "wrote %s.crt and %s.key\n", base, base)
			return err
		},
	}
	cmd.Flags().StringVar(&folder, "dir", authorityFolder, "folder of the authority")
	cmd.Flags().StringVar(&group, "group", "", "group that may read the key (default: its owner alone)")
	usage := fmt.Sprintf("lifetime in days, at most %d", authority.MaxDays)
	cmd.Flags().IntVar(&days, "days", authority.DefaultDays, usage)
	return cmd
}

// groupAccess returns access for a group of this host, by its name; "" is the owner alone. A group that
// does not exist is an error, before any file is written.
func groupAccess(name string) (a authority.Access, err error) {
	if name == "" {
		return a, nil
	}
	group, err := user.LookupGroup(name)
	if err != nil {
		return a, fmt.Errorf("--group %s: %w", name, err)
	}
	a.Group, err = strconv.Atoi(group.Gid)
	return a, err
}
