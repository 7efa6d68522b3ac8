package agent

import (
	"log/slog"
	"path/filepath"
	"testing"

	"berth/wire"
)

// A report has the free share of the fuller file system, and none if the share is unknown.
func TestTheUseOfAMachineHasItsFreeDisk(t *testing.T) {
	t.Parallel()
	w, _ := watching(t, &layered{})
	b := newUseBoard(newGPUHealth(nil, slog.New(slog.DiscardHandler)), w, slog.New(slog.DiscardHandler))
	use := b.present(t.Context())
	if use.DiskFree == nil || *use.DiskFree <= 0 || *use.DiskFree > 1 || use.Valid() != nil {
		t.Errorf("the use is %+v: %v", use, use.Valid())
	}
	w.state = filepath.Join(w.state, "gone")
	if use := b.present(t.Context()); use.DiskFree != nil {
		t.Errorf("the free share of a folder that is gone is %g", *use.DiskFree)
	}
}

// A change of a hundredth of the disk is reported before the next report is due.
func TestChangesOfTheFreeDiskAreNoticed(t *testing.T) {
	t.Parallel()
	of := func(share float64) wire.Use { return wire.Use{DiskFree: &share} }
	for name, c := range map[string]struct {
		before, now wire.Use
		want        bool
	}{
		"unknown": {wire.Use{}, wire.Use{}, false}, "known": {wire.Use{}, of(0.5), true},
		"gone": {of(0.5), wire.Use{}, true}, "a little": {of(0.5), of(0.505), false}, "full": {of(0.06), of(0.04), true},
	} {
		if got := noticeable(c.now, c.before); got != c.want {
			t.Errorf("%s: noticed %v", name, got)
		}
	}
}
