package rig

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	if os.Getenv(HelperName) == ProbeHelper {
		os.Exit(RunHelper(RunProbe))
	}
	os.Exit(m.Run())
}
