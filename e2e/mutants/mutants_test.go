package mutants

import (
	"os/exec"
	"testing"
)

// The patches follow the code that they break: a patch that no longer applies, or whose test has
// been renamed, proves nothing.
func TestPatchesApplyAndNameTheirTests(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "../../scripts/mutants.sh", "--check").CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
