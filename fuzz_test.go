package berth_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fuzzed are the parsers of bytes from outside that must have a fuzz target, by package.
var fuzzed = map[string][]string{
	"api":                              {"FuzzAgentMessages", "FuzzBody", "FuzzGrep", "FuzzLogLine"},
	"cmd/berth":                        {"FuzzLogsCannotSteerTheTerminal", "FuzzPorts"},
	"db":                               {"FuzzCursor", "FuzzHandle", "FuzzToken"},
	"internal/control/calendar":        {"FuzzReading"},
	"internal/control/cloud/cloudexec": {"FuzzAnswer"},
	"internal/control/cloud/offers":    {"FuzzOffers"},
	"internal/lib/archive":             {"FuzzArchive", "FuzzRepack"},
	"internal/lib/framed":              {"FuzzFrames", "FuzzPortHead"},
	"internal/lib/jobfile":             {"FuzzParse"},
	"internal/machine/agent":           {"FuzzManifest"},
	"internal/machine/gpu":             {"FuzzKernelRecord"},
	"spec":                             {"FuzzAmounts", "FuzzDuration", "FuzzIndexes", "FuzzInstant"},
}

// make test runs the seeds of a target alone, so a target without seeds would test nothing there.
func TestParsersOfForeignBytesHaveFuzzTargetsWithSeeds(t *testing.T) {
	t.Parallel()
	for folder, targets := range fuzzed {
		seeds := seedsOfTargets(t, folder)
		for _, name := range targets {
			if n, ok := seeds[name]; !ok {
				t.Errorf("%s has no fuzz target %s", folder, name)
			} else if n == 0 {
				t.Errorf("%s of %s adds no seed", name, folder)
			}
		}
	}
}

// seedsOfTargets returns the fuzz targets in a folder with their number of calls of f.Add.
func seedsOfTargets(t *testing.T, folder string) map[string]int {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), "*testing.F") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && strings.HasPrefix(f.Name.Name, "Fuzz") {
				found[f.Name.Name] = 0
				ast.Inspect(f, func(n ast.Node) bool {
					if s, ok := n.(*ast.SelectorExpr); ok && s.Sel.Name == "Add" {
						found[f.Name.Name]++
					}
					return true
				})
			}
		}
	}
	return found
}
