package fetch_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"berth/internal/lib/archive"
	"berth/internal/machine/fetch"
	"berth/spec"
)

// The files are sparse: 2 TiB by their sizes, and no byte on the disk.
func TestTheOperatorDecidesHowLargeAnInputMayBe(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range 64 {
		f, err := os.Create(fmt.Sprintf("%s/%d", dir, i))
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Truncate(32 << 30); err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
	}
	for says, limits := range map[string]archive.Limits{
		"": {Bytes: 2 << 40, Files: 64},
		"has at least 5 objects of 160.0 GiB; the limits of this machine are 200000 objects and 128.0 GiB": {},
		"has at least 64 objects of 2.0 TiB; the limits of this machine are 64 objects and 2.0 TiB":        {Bytes: 2<<40 - 1, Files: 64},
		"has at least 64 objects of 2.0 TiB; the limits of this machine are 63 objects and 2.0 TiB":        {Bytes: 2 << 40, Files: 63},
	} {
		s := fetch.Open(fetch.Options{Limits: limits, Volumes: fetch.Volumes{"datasets": dir}})
		_, err := s.Find(t.Context(), spec.Input{From: "file:///datasets/", To: "/data"}, "")
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("limits %+v: %v, want %q", limits, err, says)
		}
		s.Close()
	}
}
