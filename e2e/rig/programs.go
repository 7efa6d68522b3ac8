package rig

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"berth/e2e/commands"
)

// names are the programs a stack needs.
var names = []string{"berth-dev", "berthd", "berth-agent", "berth-check"}

// Programs is a folder with Berth's programs. It may be used concurrently.
type Programs struct {
	dir string

	mu   sync.Mutex
	help map[string]string
}

// OpenPrograms returns the programs in dir. An empty dir builds them from this
// repository into the folder built.
func OpenPrograms(dir, built string) (*Programs, error) {
	if dir == "" {
		dir = built
		if err := commands.Build(dir, commands.Shipped, names...); err != nil {
			return nil, err
		}
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return nil, fmt.Errorf("folder of programs: %w; it must hold %s", err, strings.Join(names, ", "))
		}
	}
	return &Programs{dir: dir, help: map[string]string{}}, nil
}

// Path returns the path of a program.
func (p *Programs) Path(name string) string { return filepath.Join(p.dir, name) }

// Takes reports whether a program's help lists a flag, given without its dashes, and does not
// mark the flag as ignored.
func (p *Programs) Takes(name, flag string) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	text, ok := p.help[name]
	if !ok {
		out, err := exec.Command(p.Path(name), "--help").CombinedOutput()
		if err != nil {
			return false, fmt.Errorf("%s --help: %w: %s", name, err, out)
		}
		text = string(out)
		p.help[name] = text
	}
	for line := range strings.Lines(text) {
		if strings.Contains(line, "--"+flag+" ") {
			return !strings.Contains(line, "ignored"), nil
		}
	}
	return false, nil
}
