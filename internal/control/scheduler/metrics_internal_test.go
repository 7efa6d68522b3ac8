package scheduler

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Every kind of repair in the source is shown as 0 from the start.
func TestRepairKindsAreComplete(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	did := regexp.MustCompile(`\.did\("([a-z_]+)"`)
	nudge := regexp.MustCompile(`\.nudge\(ctx, "([a-z_]+)"`)
	var want []string
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range did.FindAllSubmatch(b, -1) {
			want = append(want, string(m[1]))
		}
		for _, m := range nudge.FindAllSubmatch(b, -1) {
			want = append(want, string(m[1])+"_settled", string(m[1])+"_poked")
		}
	}
	slices.Sort(want)
	if diff := cmp.Diff(slices.Compact(want), slices.Sorted(slices.Values(repairKinds))); diff != "" {
		t.Errorf("repairKinds (-source +list):\n%s", diff)
	}
}
