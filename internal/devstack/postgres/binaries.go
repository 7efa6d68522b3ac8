package postgres

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// distributionDirs is the folder in which Debian and its derivatives keep every installed version.
const distributionDirs = "/usr/lib/postgresql/*/bin"

// binaries are one installed version of the server.
type binaries struct {
	initdb   string
	postgres string
	major    string // "15"
}

// findBinaries returns the first of binDir, PATH and the distribution's folders
// (newest first) that holds a server. Where major is not empty, only that
// version will do, because a data folder is readable by one version only.
func findBinaries(ctx context.Context, binDir, major string) (binaries, error) {
	dirs := candidateDirs(binDir)
	var others []string
	for _, dir := range dirs {
		b, err := binariesIn(ctx, dir)
		if err != nil {
			return binaries{}, err
		}
		switch {
		case b.major == "":
			continue
		case major == "" || b.major == major:
			return b, nil
		}
		others = append(others, fmt.Sprintf("%s in %s", b.major, dir))
	}
	if len(others) > 0 {
		return binaries{}, fmt.Errorf("the data was made by PostgreSQL %s, which is not installed (found %s): "+
			"install postgresql-%s or choose another data folder",
			major, strings.Join(others, ", "), major)
	}
	places := binDir
	if places == "" {
		places = "PATH or " + distributionDirs
	}
	return binaries{}, fmt.Errorf("find PostgreSQL: no initdb and postgres in %s: apt-get install postgresql, or "+
		"point PG_BINDIR at them", places)
}

// candidateDirs lists the folders to look in. A folder named by the user is the
// only one: a silent fallback to another version would surprise the user.
func candidateDirs(binDir string) []string {
	if binDir != "" {
		return []string{binDir}
	}
	var dirs []string
	if path, err := exec.LookPath("postgres"); err == nil {
		if program, err := filepath.EvalSymlinks(path); err == nil {
			dirs = append(dirs, filepath.Dir(program))
		}
	}
	installed, _ := filepath.Glob(distributionDirs) // the pattern is constant and well-formed
	slices.SortFunc(installed, func(a, b string) int { return versionOf(b) - versionOf(a) })
	return append(dirs, installed...)
}

// versionOf returns the major version in the name of a folder, 0 for a name without a version.
func versionOf(dir string) int {
	v, _ := strconv.Atoi(filepath.Base(filepath.Dir(dir)))
	return v
}

var versionLine = regexp.MustCompile(`^postgres \(PostgreSQL\) (\d+)`)

// binariesIn returns the zero value where dir holds no server.
func binariesIn(ctx context.Context, dir string) (binaries, error) {
	b := binaries{initdb: filepath.Join(dir, "initdb"), postgres: filepath.Join(dir, "postgres")}
	for _, path := range []string{b.initdb, b.postgres} {
		if _, err := os.Stat(path); err != nil {
			return binaries{}, nil
		}
	}
	out, err := exec.CommandContext(ctx, b.postgres, "-V").CombinedOutput()
	if err != nil {
		return binaries{}, fmt.Errorf("ask %s for its version: %w: %s", b.postgres, err, strings.TrimSpace(string(out)))
	}
	m := versionLine.FindSubmatch(out)
	if m == nil {
		return binaries{}, fmt.Errorf("ask %s for its version: got %q", b.postgres, strings.TrimSpace(string(out)))
	}
	b.major = string(m[1])
	return b, nil
}
