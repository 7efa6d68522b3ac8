// Package buildinfo names the version of the running program.
package buildinfo

import "runtime/debug"

// Number is the version by semver.org. The value here is the version of this source tree:
// CHANGELOG.md has a section for it, and a test compares the two. scripts/release.sh sets the
// version of a release with the linker, which is why Number is a variable; nothing else writes it.
var Number = "0.1.0"

// Version returns Number and the commit if the build has recorded one: for example "0.1.0
// (1234567890ab)". "modified" in it marks a build of a changed checkout.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return Number
	}
	return describe(info.Settings)
}

// describe formats the version from the settings that the Go toolchain records.
func describe(settings []debug.BuildSetting) string {
	var commit, modified string
	for _, s := range settings {
		switch {
		case s.Key == "vcs.revision" && len(s.Value) >= 12:
			commit = s.Value[:12]
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = ", modified"
		}
	}
	if commit == "" {
		return Number
	}
	return Number + " (" + commit + modified + ")"
}
