package agent_test

import (
	"os"
	"testing"

	"berth/internal/machine/unfinished"
)

// TestMain lets the test program be its own reader of unfinished lines, as berth-agent is.
func TestMain(m *testing.M) {
	unfinished.Main()
	os.Exit(m.Run())
}
