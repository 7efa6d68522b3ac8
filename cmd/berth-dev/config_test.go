package main

import (
	"testing"

	"github.com/spf13/pflag"

	"berth/spec"
)

// A folder of an upgraded stack warns until its user has chosen the user of containers, so the choice has a flag.
func TestTheUserOfContainersCanBeSet(t *testing.T) {
	t.Parallel()
	for value, allowed := range map[string]bool{"": true, spec.UserTenant: true, spec.UserImage: true, "root": false} {
		cfg := &config{}
		f := pflag.NewFlagSet("berth-dev", pflag.ContinueOnError)
		cfg.flags(f)
		if err := f.Parse([]string{"--container-user", value, "--dir", t.TempDir()}); err != nil {
			t.Fatal(err)
		}
		if err := cfg.validate(); (err == nil) != allowed {
			t.Errorf("%q: %v", value, err)
		}
		c, err := (&stack{cfg: cfg, layout: layout{cfg.Dir}, ports: openPorts(layout{cfg.Dir}, t.Output())}).controlConfig()
		if err != nil || c.ContainerUser != value {
			t.Errorf("%q: the control plane has %q, %v", value, c.ContainerUser, err)
		}
	}
}
