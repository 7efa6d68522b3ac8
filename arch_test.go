package berth_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// layers orders the packages: a package imports packages of lower layers only,
// so packages of one layer do not import each other. A folder of internal/ names
// the program that its packages are part of: control is berthd, machine is
// berth-agent and berth-deadman, devstack is berth-dev and the tests; lib serves
// all of them and imports the shared nouns alone, as lifecycle does.
var layers = [][]string{
	{"berth"},
	{"berth/spec"},
	{"berth/failure"},
	{"berth/wire"},
	{"berth/internal/lib", "berth/lifecycle"},
	{"berth/internal/control/cloud"},
	{"berth/placement", "berth/db"},
	{"berth/activities/control", "berth/activities/node", "berth/activities/wait"},
	{"berth/workflows"},
	{
		"berth/api/client", "berth/internal/devstack", "berth/internal/machine/diskuse",
		"berth/internal/machine/kernellog", "berth/internal/machine/unfinished",
	},
	{
		"berth/internal/control/authority",
		"berth/internal/control/blob", "berth/internal/control/calendar", "berth/internal/control/convert",
		"berth/internal/control/delivery", "berth/internal/control/floors",
		"berth/internal/control/runtimes", "berth/internal/control/saveinterval", "berth/internal/control/scaler",
		"berth/internal/control/watermark",
		"berth/internal/machine/cgroupstats", "berth/internal/machine/deadman", "berth/internal/machine/docker",
		"berth/internal/machine/fetch", "berth/internal/machine/firewall", "berth/internal/machine/gpu",
		"berth/internal/machine/identity", "berth/internal/machine/mounts", "berth/internal/machine/notice",
		"berth/internal/machine/signature", "berth/internal/machine/volumes",
	},
	{"berth/internal/machine/resolver"},
	{
		"berth/internal/control/admission", "berth/internal/control/autoscale", "berth/internal/control/backup",
		"berth/internal/control/digest", "berth/internal/control/explain", "berth/internal/control/webhook",
	},
	{"berth/internal/control/notify"},
	{
		"berth/api", "berth/web", "berth/workers", "berth/internal/check",
		"berth/internal/control/dispatch", "berth/internal/control/scheduler",
		"berth/internal/machine/agent",
	},
	{"berth/internal/control/controlplane"},
	{"berth/cmd", "berth/e2e", "berth/examples"},
}

// allowed lists imports against the layers, each with its reason.
var allowed = map[[2]string]string{
	{"berth/db/dbtest", "berth/internal/devstack/postgres"}:                     "the test database is a private cluster",
	{"berth/activities/node", "berth/activities/node"}:                          "its own fakes and suites",
	{"berth/internal/lib/flags/flagsdoc", "berth/internal/lib/golden"}:          "it is part of tests only",
	{"berth/internal/devstack/temporaldev", "berth/internal/devstack/postgres"}: "both are parts of the embedded stack",
}

type goPackage struct {
	ImportPath   string
	Doc          string
	Dir          string
	GoFiles      []string
	Imports      []string
	TestImports  []string
	XTestImports []string
	Deps         []string
}

// listOnce lists all packages of the module: each call of go list takes seconds.
var listOnce = sync.OnceValues(func() (packages []goPackage, err error) {
	cmd := exec.Command("go", "list", "-json=ImportPath,Doc,Dir,GoFiles,Imports,Deps", "./...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return packages, nil
		} else if err != nil {
			return nil, err
		}
		packages = append(packages, p)
	}
})

// listPackages returns the package of a folder of the module, or with /... at its
// end all packages below the folder.
func listPackages(t *testing.T, folder string) (found []goPackage) {
	t.Helper()
	all, err := listOnce()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	path, below := strings.CutSuffix("berth"+strings.TrimPrefix(folder, "."), "/...")
	for _, p := range all {
		if p.ImportPath == path || below && strings.HasPrefix(p.ImportPath, path+"/") {
			found = append(found, p)
		}
	}
	if len(found) == 0 {
		t.Fatalf("there is no package %s", folder)
	}
	return found
}

func layerOf(path string) int {
	best, layer := -1, -1
	for i, members := range layers {
		for _, m := range members {
			if (path == m || m != "berth" && strings.HasPrefix(path, m+"/")) && len(m) > best {
				best, layer = len(m), i
			}
		}
	}
	return layer
}

// component is the package a path belongs to as far as layers go: packages below
// it are its own affair.
func component(path string) string {
	parts := strings.Split(path, "/")
	n := 2
	switch {
	case len(parts) > 3 && parts[1] == "internal":
		n = 4
	case len(parts) > 2 && (parts[1] == "internal" || parts[1] == "activities" || parts[1] == "cmd" || path == "berth/api/client"):
		n = 3
	}
	return strings.Join(parts[:min(n, len(parts))], "/")
}

func exempt(from, to string) bool {
	for pair := range allowed {
		if (from == pair[0] || strings.HasPrefix(from, pair[0]+"/")) && (pair[1] == "*" || to == pair[1] || strings.HasPrefix(to, pair[1]+"/")) {
			return true
		}
	}
	return false
}

func TestImportsPointOneWay(t *testing.T) {
	t.Parallel()
	for _, p := range listPackages(t, "./...") {
		from := layerOf(p.ImportPath)
		if from < 0 {
			t.Errorf("%s has no layer: add it to layers", p.ImportPath)
			continue
		}
		for _, imported := range p.Imports {
			if imported != "berth" && !strings.HasPrefix(imported, "berth/") {
				continue
			}
			if component(imported) == component(p.ImportPath) || exempt(p.ImportPath, imported) {
				continue
			}
			if layerOf(imported) >= from {
				t.Errorf("%s imports %s, which is not below it", p.ImportPath, imported)
			}
		}
	}
}

// The control plane and the machine share only the lower layers: shared code belongs
// into lib, or into the protocol.
func TestDeployablesDoNotImportEachOther(t *testing.T) {
	t.Parallel()
	room := func(path string) string {
		for _, r := range []string{"berth/internal/control/", "berth/internal/machine/"} {
			if strings.HasPrefix(path, r) {
				return r
			}
		}
		return ""
	}
	for _, p := range listPackages(t, "./internal/...") {
		for _, imported := range p.Imports {
			if from, to := room(p.ImportPath), room(imported); from != "" && to != "" && from != to {
				t.Errorf("%s imports %s, which is part of another program", p.ImportPath, imported)
			}
		}
	}
}

// The shared nouns are the root package and the three that build on it. Every
// program links them, so they link nothing themselves.
func TestSharedNounsImportTheStandardLibraryOnly(t *testing.T) {
	t.Parallel()
	for _, folder := range []string{".", "./spec", "./failure", "./wire"} {
		for _, p := range listPackages(t, folder) {
			for _, imported := range p.Imports {
				first, _, _ := strings.Cut(imported, "/")
				ours := slices.Contains([]string{"berth", "berth/spec", "berth/failure"}, imported) // their order is in layers
				if strings.Contains(first, ".") || first == "berth" && !ours {
					t.Errorf("%s imports %s", p.ImportPath, imported)
				}
			}
		}
	}
}

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	t.Parallel()
	for _, p := range listPackages(t, "./...") {
		if len(strings.Fields(p.Doc)) < 5 {
			t.Errorf("%s has no package documentation", p.ImportPath)
		}
	}
}

// links fails if the program reaches any of the packages.
func links(t *testing.T, program string, never ...string) {
	t.Helper()
	for _, p := range listPackages(t, program) {
		for _, dep := range p.Deps {
			if dep == "database/sql/driver" { // interfaces only: UUID libraries implement them
				continue
			}
			for _, n := range never {
				if dep == n || strings.HasPrefix(dep, n+"/") {
					t.Errorf("%s links %s", program, dep)
				}
			}
		}
	}
}

// A stolen machine must not reach other machines' work: its agent speaks to the
// control plane's API, to no database and to no Temporal.
func TestAgentSpeaksToTheAPIAlone(t *testing.T) {
	t.Parallel()
	links(t, "./cmd/berth-agent", "github.com/jackc/pgx", "berth/db", "database/sql", "go.temporal.io", "berth/workers", "berth/workflows")
}

// The deadman must work when all other parts fail, so it depends on none of them.
func TestDeadmanLinksNothingThatMayFail(t *testing.T) {
	t.Parallel()
	links(t, "./cmd/berth-deadman", "github.com", "go.temporal.io", "google.golang.org", "database/sql", "net", "berth/db", "berth/api", "berth/activities", "berth/internal/machine/agent")
}

func TestControlPlaneLinksNoDockerAndNoNVML(t *testing.T) {
	t.Parallel()
	links(t, "./cmd/berthd", "github.com/docker/docker", "github.com/NVIDIA/go-nvml", "go.temporal.io/server")
}

// The SDK of a cloud takes minutes to compile and comes with credentials that create machines at the
// owner's expense. It stays in one package, which one program links (adr/0065,
// adr/0074).
func TestSDKsOfCloudsStayInOneProgram(t *testing.T) {
	t.Parallel()
	const program = "berth/cmd/berth-cloud"
	for sdk, wrapper := range map[string]string{
		"github.com/aws/aws-sdk-go-v2/service/ec2": "berth/internal/control/cloud/ec2",
		"cloud.google.com/go/compute/apiv1":        "berth/internal/control/cloud/gce",
	} {
		linked := false
		for _, p := range listPackages(t, "./...") {
			if slices.Contains(p.Imports, sdk) && p.ImportPath != wrapper {
				t.Errorf("%s imports %s", p.ImportPath, sdk)
			}
			if !slices.Contains(p.Deps, wrapper) && !slices.Contains(p.Deps, sdk) {
				continue
			}
			if p.ImportPath == program {
				linked = true
			} else if p.ImportPath != wrapper {
				t.Errorf("%s links %s, which belongs to %s alone", p.ImportPath, wrapper, program)
			}
		}
		if !linked {
			t.Errorf("%s does not link %s: the search is broken", program, wrapper)
		}
	}
}

func TestCommandLineSpeaksOnlyHTTP(t *testing.T) {
	t.Parallel()
	links(t, "./cmd/berth", "github.com/jackc/pgx", "github.com/docker/docker", "go.temporal.io", "google.golang.org/grpc", "berth/db")
}

func TestTemporalServerStaysInOnePlace(t *testing.T) {
	t.Parallel()
	for _, p := range listPackages(t, "./...") {
		for _, imported := range p.Imports {
			if strings.HasPrefix(imported, "go.temporal.io/server") && p.ImportPath != "berth/internal/devstack/temporaldev" {
				t.Errorf("%s imports %s", p.ImportPath, imported)
			}
			if imported == "berth/internal/devstack/temporaldev" && p.ImportPath != "berth/cmd/berth-dev" && p.ImportPath != "berth/cmd/berth-temporal" && !strings.HasPrefix(p.ImportPath, "berth/e2e") {
				t.Errorf("%s embeds the Temporal server", p.ImportPath)
			}
		}
	}
}

// Decisions about jobs are functions of the facts that db has read under locks: they
// read nothing themselves, so that a decision cannot depend on anything but its facts.
func TestDecisionsArePure(t *testing.T) {
	t.Parallel()
	mayImport := []string{
		"berth", "berth/failure", "berth/spec", "berth/wire", "cmp", "errors", "fmt", "slices", "strings", "time",
	}
	for _, p := range listPackages(t, "./lifecycle/...") {
		for _, imported := range p.Imports {
			if !slices.Contains(mayImport, imported) {
				t.Errorf("%s imports %s", p.ImportPath, imported)
			}
		}
		for _, name := range p.GoFiles {
			eachSelector(t, filepath.Join(p.Dir, name), func(selector string, pos token.Position) {
				if slices.Contains(impure, selector) {
					t.Errorf("%s: a decision calls %s", pos, selector)
				}
			})
			eachStatement(t, filepath.Join(p.Dir, name), func(n ast.Node, pos token.Position) {
				if _, ok := n.(*ast.GoStmt); ok {
					t.Errorf("%s: a decision starts a goroutine", pos)
				}
			})
		}
	}
}

// Storage never decides: db hands its evidence to lifecycle, and has no verdict of its own.
func TestVerdictsAreReachedByDecisionsAlone(t *testing.T) {
	t.Parallel()
	for _, p := range listPackages(t, "./...") {
		if p.ImportPath == "berth/lifecycle" {
			continue
		}
		for _, name := range p.GoFiles {
			eachSelector(t, filepath.Join(p.Dir, name), func(selector string, pos token.Position) {
				if selector == "failure.Classify" {
					t.Errorf("%s: call lifecycle.Settle, which decides by failure.Classify", pos)
				}
			})
		}
	}
}

// impure are calls whose results differ from one run to the next.
var impure = []string{
	"time.Now", "time.Sleep", "time.After", "time.NewTimer", "time.NewTicker", "time.Since", "time.Until", "time.Tick",
	"berth.NewJobID", "berth.NewSecret",
}

// Workflow code must be deterministic: it may import a short list of packages, and
// a few of their functions are banned.
func TestWorkflowsAreDeterministic(t *testing.T) {
	t.Parallel()
	mayImport := []string{
		"berth", "berth/failure", "berth/wire", "errors", "fmt", "slices", "strings", "time",
		"go.temporal.io/sdk/workflow", "go.temporal.io/sdk/temporal", "go.temporal.io/sdk/log",
		"go.temporal.io/api/enums/v1",
	}
	for _, p := range listPackages(t, "./workflows/...") {
		for _, imported := range p.Imports {
			if !slices.Contains(mayImport, imported) {
				t.Errorf("%s imports %s", p.ImportPath, imported)
			}
		}
		for _, name := range p.GoFiles {
			eachSelector(t, filepath.Join(p.Dir, name), func(selector string, pos token.Position) {
				if slices.Contains(impure, selector) {
					t.Errorf("%s: workflow code calls %s", pos, selector)
				}
			})
			eachStatement(t, filepath.Join(p.Dir, name), func(n ast.Node, pos token.Position) {
				if _, ok := n.(*ast.GoStmt); ok {
					t.Errorf("%s: workflow code starts a goroutine", pos)
				}
			})
		}
	}
}

// A workflow that names an activity itself could call it with another payload than the
// worker registers. So each call and each registration goes through one function that takes
// a wire.Activity.
func TestActivitiesAreCalledThroughTheirTypes(t *testing.T) {
	t.Parallel()
	helpers := map[string]string{ // calls of the SDK, with the one file that may make each
		"ExecuteActivity":             "workflows/step.go",
		"ExecuteLocalActivity":        "workflows/step.go",
		"RegisterActivity":            "",
		"RegisterActivityWithOptions": "workers/control.go",
	}
	made := map[string]int{}
	folders := []string{"./workflows/...", "./workers/...", "./activities/...", "./internal/...", "./cmd/..."}
	for _, folder := range folders {
		for _, p := range listPackages(t, folder) {
			for _, name := range p.GoFiles {
				eachSelector(t, filepath.Join(p.Dir, name), func(selector string, pos token.Position) {
					_, method, _ := strings.Cut(selector, ".")
					helper, watched := helpers[method]
					if !watched {
						return
					}
					if at := strings.TrimPrefix(p.ImportPath, "berth/") + "/" + name; at != helper {
						t.Errorf("%s: %s outside of the typed helper", pos, selector)
					}
					made[method]++
				})
			}
		}
	}
	for method, helper := range helpers {
		if helper != "" && made[method] != 1 {
			t.Errorf("%s is called %d times, want once, in %s", method, made[method], helper)
		}
	}
}

// SQL is written in db alone.
func TestNoSQLOutsideDB(t *testing.T) {
	t.Parallel()
	mayUse := []string{"berth/db", "berth/internal/devstack/postgres", "berth/internal/devstack/temporaldev", "berth/e2e"}
	for _, p := range listPackages(t, "./...") {
		if slices.ContainsFunc(mayUse, func(m string) bool { return p.ImportPath == m || strings.HasPrefix(p.ImportPath, m+"/") }) {
			continue
		}
		for _, imported := range p.Imports {
			if strings.HasPrefix(imported, "github.com/jackc/pgx") || imported == "database/sql" {
				t.Errorf("%s imports %s", p.ImportPath, imported)
			}
		}
	}
}

// The environment is read in cmd alone, so that a program's settings can be
// printed in one place.
func TestNoEnvironmentOutsideCommands(t *testing.T) {
	t.Parallel()
	mayRead := []string{"berth/cmd", "berth/db/dbtest", "berth/activities/node/runtimetest", "berth/e2e/faultcloud"} // a command, too
	for _, p := range listPackages(t, "./...") {
		if slices.ContainsFunc(mayRead, func(m string) bool { return p.ImportPath == m || strings.HasPrefix(p.ImportPath, m+"/") }) {
			continue
		}
		for _, name := range p.GoFiles {
			eachSelector(t, filepath.Join(p.Dir, name), func(selector string, pos token.Position) {
				if selector == "os.Getenv" || selector == "os.LookupEnv" {
					t.Errorf("%s: %s outside cmd", pos, selector)
				}
			})
		}
	}
}

func eachSelector(t *testing.T, path string, f func(selector string, pos token.Position)) {
	t.Helper()
	eachStatement(t, path, func(n ast.Node, pos token.Position) {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok {
				f(x.Name+"."+s.Sel.Name, pos)
			}
		}
	})
}

func eachStatement(t *testing.T, path string, f func(n ast.Node, pos token.Position)) {
	t.Helper()
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if n != nil {
			f(n, fset.Position(n.Pos()))
		}
		return true
	})
}
