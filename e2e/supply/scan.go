package main

import (
	"bytes"
	"cmp"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// finding is one entry of the database in one module, over all programs.
type finding struct {
	id, module, version, fixed, summary string

	programs []string  // that reach affected code
	packages []reached // affected packages with reached symbols; empty: none is reached
	calls    []string  // with -source: up to three calls that reach the module
}

// reached is a package with the number of its affected symbols that a program contains.
type reached struct {
	path    string
	symbols int
}

// mostPackages is the number of packages that a report names for one finding.
const mostPackages = 6

// reached lists the packages with the most reached symbols.
func (f finding) reached() string {
	list := slices.SortedFunc(slices.Values(f.packages), func(a, b reached) int {
		return cmp.Or(cmp.Compare(b.symbols, a.symbols), cmp.Compare(a.path, b.path))
	})
	var texts []string
	for _, p := range list[:min(len(list), mostPackages)] {
		texts = append(texts, fmt.Sprintf("%s (%d symbols)", strings.TrimPrefix(p.path, f.module+"/"), p.symbols))
	}
	if more := len(list) - mostPackages; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more packages", more))
	}
	return strings.Join(texts, ", ")
}

// findings collects the findings by entry and module.
type findings map[[2]string]*collected

type collected struct {
	finding
	symbols map[string]map[string]bool // by package
}

// message is one document of govulncheck's JSON stream.
type message struct {
	OSV *struct {
		ID      string `json:"id"`
		Summary string `json:"summary"`
	} `json:"osv"`
	Finding *struct {
		OSV          string  `json:"osv"`
		FixedVersion string  `json:"fixed_version"`
		Trace        []frame `json:"trace"`
	} `json:"finding"`
}

// frame is one call of a trace. The first frame is the affected symbol.
type frame struct {
	Module   string `json:"module"`
	Version  string `json:"version"`
	Package  string `json:"package"`
	Function string `json:"function"`
	Receiver string `json:"receiver"`
	Position *struct {
		Filename string `json:"filename"`
		Line     int    `json:"line"`
	} `json:"position"`
}

// scan runs govulncheck once and adds its findings. program names the scanned program; with ""
// the entry of each trace does.
func (all findings) scan(ctx context.Context, program, scanner string, args ...string) error {
	cmd := exec.CommandContext(ctx, scanner, args...)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run govulncheck on %s: %w: %s", args[len(args)-1], err, stderr.Bytes())
	}
	return all.read(&out, program)
}

func (all findings) read(stream io.Reader, program string) error {
	summaries := map[string]string{}
	for d := json.NewDecoder(stream); ; {
		var m message
		if err := d.Decode(&m); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read the result of govulncheck: %w", err)
		}
		if m.OSV != nil {
			summaries[m.OSV.ID] = m.OSV.Summary
		}
		if m.Finding == nil || len(m.Finding.Trace) == 0 {
			continue
		}
		at := m.Finding.Trace[0]
		key := [2]string{m.Finding.OSV, at.Module}
		c := all[key]
		if c == nil {
			c = &collected{symbols: map[string]map[string]bool{}, finding: finding{
				id: m.Finding.OSV, module: at.Module, version: at.Version, fixed: m.Finding.FixedVersion,
				summary: summaries[m.Finding.OSV]}}
			all[key] = c
		}
		if at.Function != "" {
			c.add(m.Finding.Trace, program)
		}
	}
}

// add records one reached symbol.
func (c *collected) add(trace []frame, program string) {
	at, entry := trace[0], trace[len(trace)-1]
	if c.symbols[at.Package] == nil {
		c.symbols[at.Package] = map[string]bool{}
	}
	c.symbols[at.Package][at.Receiver+"."+at.Function] = true
	if program == "" {
		program = entry.Package
	}
	if !slices.Contains(c.programs, program) {
		c.programs = append(c.programs, program)
	}
	// Initialization of packages reaches each imported package; calls say more.
	if entry.Position != nil && at.Function != "init" && len(c.calls) < 3 {
		c.calls = append(c.calls, fmt.Sprintf("%s:%d %s.%s reaches %s.%s", entry.Position.Filename, entry.Position.Line,
			entry.Package, entry.Function, at.Package, at.Function))
	}
}

// sorted returns the findings by entry and module.
func (all findings) sorted() []finding {
	var list []finding
	for _, c := range all {
		f := c.finding
		for path, symbols := range c.symbols {
			f.packages = append(f.packages, reached{path, len(symbols)})
		}
		slices.SortFunc(f.packages, func(a, b reached) int { return cmp.Compare(a.path, b.path) })
		slices.Sort(f.programs)
		list = append(list, f)
	}
	slices.SortFunc(list, func(a, b finding) int {
		return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(a.module, b.module))
	})
	return list
}

// hasSymbols fails for a program without a symbol table, of which govulncheck would report each
// affected symbol of each module as reached.
func hasSymbols(program string) error {
	f, err := elf.Open(program)
	if err != nil {
		return fmt.Errorf("open the program %s: %w", program, err)
	}
	defer f.Close()
	if _, err := f.Symbols(); err != nil {
		return fmt.Errorf("%s has no symbol table (%w): build it without -ldflags=-s", program, err)
	}
	return nil
}

// databaseDate returns the date of a database: the one in index/db.json of the published layout, or
// for a flat folder of entries the modification time of its newest file, which tar keeps.
func databaseDate(folder string) (time.Time, error) {
	raw, err := os.ReadFile(filepath.Join(folder, "index", "db.json"))
	if err == nil {
		var index struct {
			Modified time.Time `json:"modified"`
		}
		if err := json.Unmarshal(raw, &index); err != nil || index.Modified.IsZero() {
			return time.Time{}, fmt.Errorf("%s has an index without a date: %w", folder, err)
		}
		return index.Modified, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return time.Time{}, fmt.Errorf("read the database: %w", err)
	}
	names, err := filepath.Glob(filepath.Join(folder, "GO-*.json"))
	if err != nil || len(names) == 0 {
		return time.Time{}, fmt.Errorf("%s holds no entries GO-*.json of the Go vulnerability database", folder)
	}
	var newest time.Time
	for _, name := range names {
		info, err := os.Stat(name)
		if err != nil {
			return time.Time{}, fmt.Errorf("read the database: %w", err)
		}
		if info.ModTime().After(newest) {
			newest = info.ModTime()
		}
	}
	return newest.UTC(), nil
}
