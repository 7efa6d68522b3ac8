package agent

import (
	"io"
	"sync/atomic"
	"testing"
)

// A transfer that breaks at the same place again and again must use up the patience of a restore.
func TestOnlyBytesThatNoTryHasReachedAreProgress(t *testing.T) {
	t.Parallel()
	var progress atomic.Int64
	var furthest int64
	write := func(d *disk, bytes int) bool {
		t.Helper()
		progress.Store(0)
		if _, err := d.Write(make([]byte, bytes)); err != nil {
			t.Fatal(err)
		}
		return progress.Load() != 0
	}
	try := func() *disk { return &disk{Writer: io.Discard, progress: &progress, furthest: &furthest} }
	first := try()
	for range 2 {
		if !write(first, 10) {
			t.Error("the first try makes no progress")
		}
	}
	second := try()
	for range 2 {
		if write(second, 10) {
			t.Error("bytes that the first try has reached are progress")
		}
	}
	if !write(second, 1) {
		t.Error("the byte after them is no progress")
	}
}
