package backup

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"berth/db"
)

// programFolders are the folders in which distributions keep each installed version of PostgreSQL.
var programFolders = []string{"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin"}

// program is an installed program of PostgreSQL.
type program struct {
	path  string
	major int
}

// versionLine is the output of a program's --version.
var versionLine = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// findProgram returns the oldest installed program of a name with at least the given major version, from
// folder if it is not empty, else from the folders of distributions and the PATH. A program older than the
// server, or older than the program that wrote a dump, may lose objects that are unknown to it.
func findProgram(ctx context.Context, name, folder string, least int) (program, error) {
	var found []program
	for _, path := range candidates(name, folder) {
		out, err := exec.CommandContext(ctx, path, "--version").Output()
		m := versionLine.FindSubmatch(out)
		if err != nil || m == nil {
			continue
		}
		major, err := strconv.Atoi(string(m[1]))
		if err == nil {
			found = append(found, program{path, major})
		}
	}
	slices.SortStableFunc(found, func(a, b program) int { return cmp.Compare(a.major, b.major) })
	for _, p := range found {
		if p.major >= least {
			return p, nil
		}
	}
	place := cmp.Or(folder, "the PATH, "+strings.Join(programFolders, " and "))
	const remedy = "install the client programs of PostgreSQL %d or newer (postgresql-client-%d), or name their " +
		"folder with --pg-bin"
	if len(found) == 0 {
		return program{}, fmt.Errorf("there is no %s in %s: "+remedy, name, place, least, least)
	}
	newest := found[len(found)-1]
	return program{}, fmt.Errorf("%s has version %d and the database needs %d: "+remedy, newest.path, newest.major,
		least, least, least)
}

// timeoutSince is the first major version of PostgreSQL with the parameter transaction_timeout, which its
// pg_dump and pg_restore set in every restore.
const timeoutSince = 17

// checkServer refuses programs whose restore a server refuses, because it does not know a parameter that they
// set. server is the major version of the server.
func (p program) checkServer(server int) error {
	if p.major < timeoutSince || server >= timeoutSince {
		return nil
	}
	return fmt.Errorf("%s has version %d, and a server of version %d cannot restore its dumps: install the client "+
		"programs of PostgreSQL %d (postgresql-client-%d), or name their folder with --pg-bin", p.path, p.major, server,
		server, server)
}

// candidates lists the paths at which a program may be.
func candidates(name, folder string) []string {
	if folder != "" {
		return []string{filepath.Join(folder, name)}
	}
	var paths []string
	for _, pattern := range programFolders {
		dirs, _ := filepath.Glob(pattern) // the patterns are constant and well-formed
		for _, dir := range dirs {
			paths = append(paths, filepath.Join(dir, name))
		}
	}
	if path, err := exec.LookPath(name); err == nil {
		paths = append(paths, path)
	}
	return paths
}

// run runs a program on the database, in a process group that ends with ctx. Its output goes to out, and the
// last lines of its errors into the error.
func (p program) run(ctx context.Context, database string, out *os.File, args ...string) error {
	env, err := db.LibpqEnv(database)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, p.path, args...)
	cmd.Env = append(cmd.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	var faults bytes.Buffer
	cmd.Stderr = &faults
	if out != nil {
		cmd.Stdout = out
	}
	if err := cmd.Run(); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		if _, ok := errors.AsType[*exec.ExitError](err); !ok {
			return fmt.Errorf("run %s: %w", p.path, err)
		}
		const most = 2000
		text := strings.TrimSpace(faults.String())
		return fmt.Errorf("%s: %w: %s", p.path, err, text[max(0, len(text)-most):])
	}
	return nil
}
