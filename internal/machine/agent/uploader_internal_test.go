package agent

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"berth"
)

// A job that starts from a checkpoint of another job may count its own steps from 0.
func TestStepsBelowThatOfAnotherJobAreStored(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, step := range []string{"step-5", "step-7", "step-1000"} {
		if err := os.MkdirAll(filepath.Join(dir, step), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, step, doneFile), nil, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	restored := int64(1000)
	for source, want := range map[berth.JobID][]int64{"": nil, "another": {5, 7}} {
		u := &checkpointUploader{core: &core{claim: &claim{}}, scratch: &scratch{checkpoint: root}}
		u.resume()
		u.skip(&restored, source)
		if got, err := u.complete(); err != nil || !slices.Equal(got, want) {
			t.Errorf("restored from %q: steps %v are stored, want %v, %v", source, got, want, err)
		}
		if want := max(int64(7), restored); source != "" && u.newest() != 7 || source == "" && u.newest() != want {
			t.Errorf("restored from %q: the newest step is %d", source, u.newest())
		}
	}
}
