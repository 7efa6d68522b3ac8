package agent

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/spec"
)

func TestOnlyTheLargestOfACacheAreTold(t *testing.T) {
	t.Parallel()
	at := time.Unix(1000, 0)
	archive := func(digits string) string { return filepath.Join("cache", "a-team", strings.Repeat(digits, 64)[:64]) }
	all := []kept{
		{folder: archive("1"), bytes: 20 << 20, used: at},
		{folder: archive("2"), bytes: 16<<20 - 1, used: at},                                               // soon fetched
		{folder: filepath.Join("cache", "a-team", "s3-1"), bytes: 99 << 20, used: at},                     // before sources were noted
		{folder: filepath.Join("cache", "a-team", "s3-2"), bytes: 50 << 20, source: 7, used: at},          // as it was
		{folder: filepath.Join("cache", "a-team", "s3-3"), bytes: 40<<20 + 1, source: 7, used: at.Add(1)}, // as it is
	}
	want := []spec.CachedData{{Key: 7, MiB: 40}, {Key: spec.ArchiveKey("a-team", berth.Address("sha256:"+strings.Repeat("1", 64))), MiB: 20}}
	if got := held(all); !slices.Equal(got, want) {
		t.Errorf("told is %v, want %v", got, want)
	}
	for i := range 3 * spec.MaxCachedData {
		all = append(all, kept{folder: filepath.Join("cache", "b", fmt.Sprint(i)), bytes: int64(1000+i) << 20, source: spec.DataKey(100 + i), used: at})
	}
	got := held(all)
	if len(got) != spec.MaxCachedData || got[0].MiB != 1000+3*spec.MaxCachedData-1 {
		t.Errorf("of many, %d are told, the first of %d MiB", len(got), got[0].MiB)
	}
	slices.Reverse(all)
	if again := held(all); !slices.Equal(again, got) {
		t.Error("in another order, other entries are told")
	}
}
