package spec_test

import (
	"strings"
	"testing"

	"berth/spec"
)

// A request must fit into a row, which holds no NUL, and into the syncs of a machine.
func TestRequestsOfSessionsAreBounded(t *testing.T) {
	t.Parallel()
	for field, n := range map[string]spec.NewSession{
		"":        {Command: []string{"sh", "-c", strings.Repeat("x", 60<<10)}, Reason: "why"},
		"reason":  {Command: []string{"sh"}, Reason: "a\x00"},
		"command": {Command: []string{"sh", strings.Repeat("x", 40<<10), strings.Repeat("x", 40<<10)}},
	} {
		faults := n.WithDefaults().Validate()
		if field == "" && len(faults) > 0 || field != "" && (len(faults) != 1 || faults[0].Field != field) {
			t.Errorf("%q: %+v", field, faults)
		}
	}
}
