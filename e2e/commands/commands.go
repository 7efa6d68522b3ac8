// Package commands builds the commands that tests run as processes of their own.
//
// The results stay below the repository's bin folder, where the next build finds them up to date:
// linking a command takes longer than most tests. scripts/test.sh --compile builds the same
// commands there, with the same flags.
//
// The one rule to know: a test runs copies, so that another build meanwhile changes nothing under
// it.
package commands

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Kind is a way to build a command.
type Kind string

// The kinds of commands.
const (
	Shipped    Kind = "programs"   // as it is shipped
	Failpoints Kind = "failpoints" // with failpoints, at which a test can make the process die
)

func (k Kind) flags() []string {
	switch k {
	case Shipped:
		return nil
	case Failpoints:
		return []string{"-tags", "failpoints"}
	}
	panic("unknown kind of command " + string(k))
}

// Build builds commands of this repository and copies the results into dir, which it creates. A name
// with a slash is a folder of the repository; others are in its folder cmd. It must run in a folder of
// the repository.
func Build(dir string, kind Kind, names ...string) error {
	module, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return fmt.Errorf("find the repository: %w", err)
	}
	kept := filepath.Join(filepath.Dir(strings.TrimSpace(string(module))), "bin", "tests", string(kind))
	// The table of symbols stays: govulncheck reads it.
	args := append([]string{"build", "-ldflags=-w", "-o", kept + "/"}, kind.flags()...)
	for _, c := range names {
		if !strings.Contains(c, "/") {
			c = "cmd/" + c
		}
		args = append(args, "berth/"+c)
	}
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", names, err, out)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	// By another process: one of ours that is just being started would hold the
	// copy open for writing, and a file that is written to cannot be run.
	copies := []string{"-t", dir}
	for _, c := range names {
		copies = append(copies, filepath.Join(kept, filepath.Base(c)))
	}
	if out, err := exec.Command("cp", copies...).CombinedOutput(); err != nil {
		return fmt.Errorf("copy %s: %w: %s", names, err, out)
	}
	return nil
}
