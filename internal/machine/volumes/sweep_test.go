package volumes_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"berth"
)

func TestAVolumeBeyondItsSizeEndsItsJobsAndIsEmptied(t *testing.T) {
	s := open(t, t.TempDir())
	folder := acquire(t, s, 1, "hf", mib)
	acquire(t, s, 2, "hf", mib)
	put(t, filepath.Join(folder, "half"), mib/2)
	if over := s.Measure(t.Context()); len(over) > 0 {
		t.Errorf("within its size: %+v", over)
	}
	put(t, filepath.Join(folder, "more"), mib)
	over := s.Measure(t.Context())
	for len(over) == 0 { // it rests after a measurement
		over = s.Measure(t.Context())
	}
	slices.Sort(over[0].Members)
	if !slices.Equal(over[0].Members, []berth.AllocationID{1, 2}) || !strings.Contains(over[0].Says, "volume hf") {
		t.Errorf("beyond its size: %+v", over)
	}
	if _, err := s.Acquire(3, "red", red, wants("hf", mib)); err == nil {
		t.Error("a job starts on a volume whose jobs end")
	}
	s.Release(1)
	s.Release(2)
	if has(filepath.Join(acquire(t, s, 3, "hf", mib), "more")) {
		t.Error("the next job ends for the same files")
	}
}

func TestEmptyFilesCountToo(t *testing.T) {
	s := open(t, t.TempDir())
	folder := acquire(t, s, 1, "many", mib)
	for i := range 10_100 {
		put(t, filepath.Join(folder, fmt.Sprint(i)), 0)
	}
	over := s.Measure(t.Context())
	if len(over) != 1 || !strings.Contains(over[0].Says, "10064 files") {
		t.Errorf("10,100 empty files in a volume of 1 MiB: %+v", over)
	}
}

// A removal and a measurement follow no link.
func TestLinksOfATenantLeadNowhere(t *testing.T) {
	s := open(t, t.TempDir())
	folder, host := acquire(t, s, 1, "hf", mib), t.TempDir()
	put(t, filepath.Join(host, "host"), 5*mib)
	for _, link := range []string{host, filepath.Join(host, "host"), "../../..", "/"} {
		if err := os.Symlink(link, filepath.Join(folder, strings.ReplaceAll("to"+link, "/", "_"))); err != nil {
			t.Fatal(err)
		}
	}
	if over := s.Measure(t.Context()); len(over) > 0 {
		t.Errorf("files of the host count: %+v", over)
	}
	s.Release(1)
	sweep(t, s, true)
	if has(folder) || !has(filepath.Join(host, "host")) {
		t.Errorf("there is the volume %v, the host's file %v", has(folder), has(filepath.Join(host, "host")))
	}
}

// The data folder itself was replaced by a link, as by an operator's mistake.
func TestALinkIsNoVolume(t *testing.T) {
	s := open(t, t.TempDir())
	folder, host := acquire(t, s, 1, "hf", mib), t.TempDir()
	s.Release(1)
	if err := os.Remove(folder); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(host, folder); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(acquire(t, s, 2, "hf", mib)); err != nil || !info.IsDir() {
		t.Errorf("a container would mount a link: %v %v", info, err)
	}
}

// Each start finds its volume in place, also while a sweep takes the volume out.
func TestASweepDuringAStart(t *testing.T) {
	s := open(t, t.TempDir())
	var all sync.WaitGroup
	for member := range berth.AllocationID(4) {
		all.Go(func() {
			for range 50 {
				folders, err := s.Acquire(member, "red", red, wants("hf", mib))
				if err != nil || !has(folders[0]) || !has(filepath.Join(filepath.Dir(folders[0]), "volume.json")) {
					t.Errorf("member %d: %v %v", member, folders, err)
				}
				s.Release(member)
			}
		})
	}
	for range 100 {
		sweep(t, s, true)
	}
	all.Wait()
}
