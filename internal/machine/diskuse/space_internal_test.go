package diskuse

import "testing"

// The figures come from ext4, of btrfs, and of CephFS, which reports 2^64-1 free ones.
func TestInodesThatAreCreatedAsNeededAreNone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		files, free       uint64
		wantAll, wantFree int64
	}{
		{6_553_600, 6_100_000, 6_553_600, 6_100_000},
		{1000, 1000, 1000, 1000},
		{0, 0, 0, 0},
		{31_337, 1<<64 - 1, 0, 0},
	} {
		if all, free := inodes(c.files, c.free); all != c.wantAll || free != c.wantFree {
			t.Errorf("%d of %d are free: %d of %d, want %d of %d", c.free, c.files, free, all, c.wantFree, c.wantAll)
		}
	}
}

func TestFreeShareIsTheScarcerOfBytesAndInodes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		space Space
		want  float64
	}{
		"bytes":           {Space{Total: 1000, Free: 100, Inodes: 10, FreeInodes: 5}, 0.1},
		"inodes":          {Space{Total: 1000, Free: 100, Inodes: 100, FreeInodes: 1}, 0.01},
		"without inodes":  {Space{Total: 1000, Free: 250}, 0.25},
		"full":            {Space{Total: 1000}, 0},
		"nothing is said": {Space{}, 1},
	} {
		if got := c.space.FreeShare(); got != c.want {
			t.Errorf("%s: %g; want %g", name, got, c.want)
		}
	}
}
