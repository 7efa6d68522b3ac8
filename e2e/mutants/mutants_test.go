package mutants

import (
	"os/exec"
	"testing"
)

// The patches follow the code they break: one that does not apply any more, or
// whose test has another name now, proves nothing.
func TestPatchesApplyAndNameTheirTests(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "../../scripts/mutants.sh", "--check").CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
