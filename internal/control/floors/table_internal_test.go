package floors

import (
	"slices"
	"testing"

	"github.com/Masterminds/semver/v3"
)

// Versions between two ranges of a hole count as repaired, so no range may begin late: a range begins before the first
// pre-release of the branch that follows the branch of the last fix.
func TestNoVersionIsBetweenTheRangesByMistake(t *testing.T) {
	t.Parallel()
	// The exceptions: a hole that came with a version inside a branch, and numbers that an author left out.
	introduced := []string{"CVE-2026-46680 1.7.27", "CVE-2026-46680 2.0.4", "CVE-2026-47262 1.7.0-0",
		"CVE-2024-41110 19.0.0-0", "CVE-2024-41110 22.0.0-0"}
	for _, h := range holes {
		var last *semver.Version
		for _, b := range h.branches {
			from, fixed := semver.MustParse(b.from), semver.MustParse(b.fixed)
			follows := last == nil && from.Major() == 0 && from.Minor() == 0 ||
				last != nil && from.Major() == last.Major() && from.Minor() == last.Minor()+1 ||
				last != nil && from.Major() == last.Major()+1 && from.Minor() == 0
			lowest := from.Patch() == 0 && from.Prerelease() == "0"
			if !(follows && lowest) && !slices.Contains(introduced, h.advisory+" "+b.from) {
				t.Errorf("%s: the range from %s leaves versions out", h.advisory, b.from)
			}
			if !from.LessThan(fixed) || last != nil && from.LessThan(last) {
				t.Errorf("%s: the range from %s to %s is not in order", h.advisory, b.from, b.fixed)
			}
			last = fixed
		}
	}
}
