package buildinfo

import (
	"os"
	"regexp"
	"runtime/debug"
	"strings"
	"testing"
)

func TestDescribeNamesTheCommit(t *testing.T) {
	t.Parallel()
	commit := debug.BuildSetting{Key: "vcs.revision", Value: strings.Repeat("0123456789", 4)}
	for want, settings := range map[string][]debug.BuildSetting{
		Number:                               nil,
		Number + " (012345678901)":           {commit, {Key: "vcs.modified", Value: "false"}},
		Number + " (012345678901, modified)": {commit, {Key: "vcs.modified", Value: "true"}},
	} {
		if got := describe(settings); got != want {
			t.Errorf("settings %v: version is %q, want %q", settings, got, want)
		}
	}
}

// The newest section of the changelog is about this version.
func TestChangelogBeginsWithThisVersion(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	newest := regexp.MustCompile(`(?m)^## (\S+)`).FindSubmatch(text)
	if newest == nil || string(newest[1]) != Number {
		t.Errorf("the newest section of CHANGELOG.md is %q, want %q", newest, Number)
	}
}
