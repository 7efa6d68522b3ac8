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
