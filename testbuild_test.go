package berth_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The race detector needs a build of its own of everything that a test links. The embedded Temporal server and the SDKs
// of clouds are half of all packages, so one program that links them and is built with the race detector adds minutes
// to the first `make test`.
func TestHeavyPackagesAreBuiltOnce(t *testing.T) {
	t.Parallel()
	plain := testScriptPattern(t, "plain")
	heavy := []string{
		"go.temporal.io/server/temporal",
		"github.com/aws/aws-sdk-go-v2/service/ec2",
		"cloud.google.com/go/compute/apiv1",
	}
	found := map[string]bool{}
	for _, p := range listPackages(t, "./...") {
		for _, h := range heavy {
			if !slices.Contains(p.Deps, h) {
				continue
			}
			found[h] = true
			if !plain.MatchString(p.ImportPath) {
				t.Errorf("%s links %s, and scripts/test.sh builds it with the race detector: add it to `plain`",
					p.ImportPath, h)
			}
		}
	}
	for _, h := range heavy {
		if !found[h] {
			t.Errorf("no package links %s: the search is broken, or the list here is old (%s)",
				h, strings.Join(heavy, ", "))
		}
	}
}

// testScriptPattern returns the value of a variable of scripts/test.sh that holds a regular expression.
func testScriptPattern(t *testing.T, name string) *regexp.Regexp {
	t.Helper()
	script, err := os.ReadFile("scripts/test.sh")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^` + name + `='(.+)'$`).FindSubmatch(script)
	if line == nil {
		t.Fatalf("scripts/test.sh does not set %s: the list of packages has another name now", name)
	}
	pattern, err := regexp.Compile(string(line[1]))
	if err != nil {
		t.Fatal(err)
	}
	return pattern
}

// scripts/test.sh tests the packages of `pure` without the race detector, which would watch for races that they cannot
// have. A race needs a second goroutine and a variable that both reach. These packages start no goroutine, and keep no
// variable that a function writes, so only a caller can share a value. The callers are tested with the race detector.
func TestPackagesWithoutTheRaceDetectorHaveNoRaces(t *testing.T) {
	t.Parallel()
	pure := testScriptPattern(t, "pure")
	n := 0
	for _, p := range listPackages(t, "./...") {
		if !pure.MatchString(p.ImportPath) {
			continue
		}
		n++
		for _, dep := range p.Deps {
			if (dep == "berth" || strings.HasPrefix(dep, "berth/")) && !pure.MatchString(dep) {
				t.Errorf("%s imports %s, which scripts/test.sh tests with the race detector: take the importer out of `pure`",
					p.ImportPath, dep)
			}
		}
		for _, fault := range concurrency(t, p.Dir) {
			t.Errorf("%s: take the package out of `pure` in scripts/test.sh", fault)
		}
	}
	if n < 20 {
		t.Errorf("%d packages are in `pure`, want at least 20: the pattern is broken", n)
	}
}

// concurrency returns a line for each place in a package, its tests included, that could make a race possible.
func concurrency(t *testing.T, dir string) (faults []string) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	positions := token.NewFileSet()
	files := map[string]*ast.File{}
	variables := map[string]*ast.ValueSpec{} // of the package
	for _, name := range names {
		file, err := parser.ParseFile(positions, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = file
		for _, d := range file.Decls {
			if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.VAR {
				for _, s := range g.Specs {
					for _, id := range s.(*ast.ValueSpec).Names {
						variables[id.Name] = s.(*ast.ValueSpec)
					}
				}
			}
		}
	}
	for _, name := range names {
		test := strings.HasSuffix(name, "_test.go")
		ast.Inspect(files[name], func(n ast.Node) bool {
			if what := concurrent(n, variables, test); what != "" {
				faults = append(faults, positions.Position(n.Pos()).String()+" "+what)
			}
			return true
		})
	}
	return faults
}

// concurrent describes how a node could make a race possible, and returns "" for all others. Tests may write
// variables of their own, such as flags.
func concurrent(n ast.Node, variables map[string]*ast.ValueSpec, test bool) string {
	var written []ast.Expr
	switch n := n.(type) {
	case *ast.GoStmt:
		return "starts a goroutine"
	case *ast.ImportSpec:
		path := strings.Trim(n.Path.Value, `"`)
		if slices.Contains([]string{"sync/atomic", "golang.org/x/sync/errgroup", "net/http/httptest",
			"testing/synctest"}, path) {
			return "imports " + path
		}
	case *ast.SelectorExpr:
		if id, ok := n.X.(*ast.Ident); ok && id.Name == "sync" && !strings.HasPrefix(n.Sel.Name, "Once") {
			return "uses sync." + n.Sel.Name
		}
	case *ast.AssignStmt:
		if n.Tok != token.DEFINE {
			written = n.Lhs
		}
	case *ast.IncDecStmt:
		written = []ast.Expr{n.X}
	}
	for _, w := range written {
		id := root(w)
		if id == nil || test || variables[id.Name] == nil {
			continue
		}
		// The parser binds an identifier to its declaration in the same file, a local one before one of the package.
		if id.Obj == nil || id.Obj.Decl == variables[id.Name] {
			return "writes the package's variable " + id.Name
		}
	}
	return ""
}

// root returns the variable at the root of an expression such as x.y[z], nil if there is none.
func root(e ast.Expr) *ast.Ident {
	for {
		switch x := e.(type) {
		case *ast.Ident:
			return x
		case *ast.SelectorExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		default:
			return nil
		}
	}
}
