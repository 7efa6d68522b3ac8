package agent

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestTheTimeOfASaveIsMeasured writes a step as a job does, and checks the time from its folder to DONE. Times of DONE
// that the job has set itself count as not measured.
func TestTheTimeOfASaveIsMeasured(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, dir, 0, unix.STATX_BTIME, &st); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if got := writeTime(root, 7); got != nil {
		t.Errorf("a missing step took %s", *got)
	}
	began := time.Now()
	if err := os.Mkdir(filepath.Join(dir, "writing"), 0o777); err != nil {
		t.Fatal(err)
	}
	const least = 100 * time.Millisecond
	done := filepath.Join(dir, "writing", doneFile)
	for time.Since(began) < 2*least { // the job writes
		if err := os.WriteFile(done, nil, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(filepath.Join(dir, "writing"), filepath.Join(dir, "step-7")); err != nil {
		t.Fatal(err)
	}
	got := writeTime(root, 7)
	switch {
	case st.Mask&unix.STATX_BTIME == 0:
		if got != nil {
			t.Errorf("the file system records no creation, and the step took %s", *got)
		}
	case got == nil:
		t.Error("not measured")
	case *got < least || *got > time.Since(began)+least: // the clock of file systems lags by a tick of the kernel
		t.Errorf("the step took %s, of %s", *got, time.Since(began))
	}
	for _, shift := range []time.Duration{-time.Hour, time.Hour} {
		at := time.Now().Add(shift)
		if err := os.Chtimes(filepath.Join(dir, "step-7", doneFile), at, at); err != nil {
			t.Fatal(err)
		}
		if got := writeTime(root, 7); got != nil {
			t.Errorf("DONE of %s from now: the step took %s", shift, *got)
		}
	}
}
