package failpoint_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"berth/internal/lib/failpoint"
)

// root is the module's, seen from here.
const root = "../../.."

func TestEveryNameStandsOnceInTheSource(t *testing.T) {
	t.Parallel()
	places := map[string][]string{}
	fset := token.NewFileSet()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && path != root):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(fset, path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if name, ok := hitOf(n); ok {
				places[name] = append(places[name], fset.Position(n.Pos()).String())
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range slices.Concat(failpoint.Points, failpoint.CloudPoints, failpoint.ScalerPoints) {
		if at := places[p.Name]; len(at) != 1 {
			t.Errorf("%s stands at %d places, want one: %v", p.Name, len(at), at)
		}
		delete(places, p.Name)
	}
	for name, at := range places {
		t.Errorf("%s at %v is not in Points", name, at)
	}
}

// hitOf returns the name in a call of failpoint.Hit. A name that is no literal
// counts as one that is nowhere in the list.
func hitOf(n ast.Node) (string, bool) {
	call, ok := n.(*ast.CallExpr)
	if !ok || len(call.Args) != 1 {
		return "", false
	}
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || f.Sel.Name != "Hit" {
		return "", false
	}
	if x, ok := f.X.(*ast.Ident); !ok || x.Name != "failpoint" {
		return "", false
	}
	literal, ok := call.Args[0].(*ast.BasicLit)
	if !ok {
		return "(no literal)", true
	}
	name, err := strconv.Unquote(literal.Value)
	return name, err == nil
}

func TestPointsAreWellFormed(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	steps := map[string]bool{}
	for _, p := range slices.Concat(failpoint.Points, failpoint.CloudPoints, failpoint.ScalerPoints) {
		if seen[p.Name] {
			t.Errorf("%s is listed twice", p.Name)
		}
		seen[p.Name] = true
		steps[p.Step] = true
		switch p.Process {
		case failpoint.API, failpoint.Leader, failpoint.Worker, failpoint.Agent:
		default:
			t.Errorf("%s: process %q", p.Name, p.Process)
		}
		if !strings.HasPrefix(p.Stands, "before ") && !strings.HasPrefix(p.Stands, "after ") {
			t.Errorf("%s stands %q, want before or after something", p.Name, p.Stands)
		}
	}
	for _, step := range []string{"L1", "L2", "L3", "L4", "L5", "L6", "L7", "L8", "L9"} {
		if !steps[step] {
			t.Errorf("no failpoint at %s", step)
		}
	}
}
