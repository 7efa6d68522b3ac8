package main

import (
	"testing"

	"github.com/spf13/pflag"

	"berth/internal/control/controlplane"
	"berth/internal/lib/flags/flagsdoc"
)

// docs/reference/berthd.md is generated from the flags, so it cannot lag behind.
func TestTheReferenceIsTheFlags(t *testing.T) {
	t.Parallel()
	s := settings{Config: controlplane.Default()}
	f := pflag.NewFlagSet("berthd", pflag.ContinueOnError)
	s.flags(f)
	flagsdoc.Hold(t, "../../docs/reference/berthd.md", "berthd",
		"`berthd` is the control plane. [Configure](../operate/configure.md) explains the settings that most clusters change. "+
			"`BERTH_ADMIN_TOKEN`, which has no flag, sets the first admin token. "+
			"[`berthd check-config`](../operate/configure.md#check-an-installation) examines an installation. `berthd namespace create` prepares Temporal, `berthd ca` signs certificates, and "+
			"`berthd token reset` replaces a lost admin token ([install](../operate/install.md)); `berthd store adopt` makes another object store the cluster's ([the id of the object store](../operate/backup.md#the-id-of-the-object-store)); `berthd backup` takes and restores backups ([back up and restore](../operate/backup.md)); their flags are in `--help`.", f)
}
