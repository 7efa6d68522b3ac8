package floors

import (
	"fmt"
	"regexp"
	"strconv"

	"github.com/Masterminds/semver/v3"
)

// upstream matches the part of a version that its author gave: up to three numbers, and a pre-release. The rest is the
// suffix of a distribution, which says nothing about the age: 1.1.12-0ubuntu2~22.04.1 and 1.1.5+ds1-1+deb12u1. A build
// 1.3.6-dev is older than 1.3.6, and 1.3.6+dev is newer.
var upstream = regexp.MustCompile(`^v?(\d{1,9})(?:\.(\d{1,9}))?(?:\.(\d{1,9}))?` +
	`(?:[-~.]?(alpha|beta|rc|dev)[-.]?(\d{0,9}))?`)

// parse returns the version of the author of a program, without the suffix of a distribution.
func parse(text string) (*semver.Version, error) {
	m := upstream.FindStringSubmatch(text)
	if m == nil {
		return nil, fmt.Errorf("%.40q is not a version: allowed are numbers such as 1.2.8", text)
	}
	var n [3]uint64
	for i := range n {
		n[i], _ = strconv.ParseUint(m[i+1], 10, 64) // at most nine digits; an absent one is 0
	}
	pre := m[4]
	if pre != "" && m[5] != "" {
		pre += "." + m[5]
	}
	return semver.New(n[0], n[1], n[2], pre, ""), nil
}

// within reports whether the version is in the range.
func (b branch) within(v *semver.Version) bool {
	return !v.LessThan(semver.MustParse(b.from)) && v.LessThan(semver.MustParse(b.fixed))
}
