package main

import (
	"testing"

	"github.com/spf13/pflag"

	"berth/internal/lib/flags/flagsdoc"
)

// docs/reference/berth-agent.md is generated from the flags, so it cannot lag
// behind.
func TestTheReferenceIsTheFlags(t *testing.T) {
	t.Parallel()
	var s settings
	f := pflag.NewFlagSet("berth-agent", pflag.ContinueOnError)
	s.flags(f)
	flagsdoc.Hold(t, "../../docs/reference/berth-agent.md", "berth-agent",
		"`berth-agent` runs on every machine. [Install](../operate/install.md) shows how a machine joins.", f)
}
