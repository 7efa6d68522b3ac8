package berth_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// rooms orders the packages inside of one component, as layers orders components:
// a package imports packages of lower layers only. The last layer is the package
// that the component is named after.
var rooms = map[string][][]string{
	"berth/placement": {
		{"cluster"}, {"queue", "fit"}, {"backfill"}, {"preempt"}, {"explain"}, {"."},
	},
}

// mostMethodsInARoom is the highest number of methods on one type in the packages
// of rooms.
const mostMethodsInARoom = 30

func TestImportsInsideARoomPointOneWay(t *testing.T) {
	t.Parallel()
	for room, layers := range rooms {
		layer := func(path string) int {
			below := strings.TrimPrefix(strings.TrimPrefix(path, room), "/")
			if below == "" {
				below = "."
			}
			return slices.IndexFunc(layers, func(members []string) bool { return slices.Contains(members, below) })
		}
		for _, p := range listPackages(t, "."+strings.TrimPrefix(room, "berth")+"/...") {
			from := layer(p.ImportPath)
			if from < 0 {
				t.Errorf("%s has no layer: add it to rooms", p.ImportPath)
				continue
			}
			for _, imported := range p.Imports {
				if strings.HasPrefix(imported, room) && layer(imported) >= from {
					t.Errorf("%s imports %s, which is not below it", p.ImportPath, imported)
				}
			}
		}
	}
}

// The rooms were split because types of more than a hundred methods held all
// data; no type may grow to that again.
func TestTypesOfARoomStaySmall(t *testing.T) {
	t.Parallel()
	for room := range rooms {
		methods := map[string]int{}
		for _, p := range listPackages(t, "."+strings.TrimPrefix(room, "berth")+"/...") {
			for _, name := range p.GoFiles {
				countMethods(t, p.ImportPath, filepath.Join(p.Dir, name), methods)
			}
		}
		for name, n := range methods {
			if n > mostMethodsInARoom {
				t.Errorf("%s has %d methods, more than %d", name, n, mostMethodsInARoom)
			}
		}
	}
}

// countMethods adds the methods that a file declares, by package and type.
func countMethods(t *testing.T, path, name string, methods map[string]int) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Recv == nil {
			continue
		}
		receiver := f.Recv.List[0].Type
		if star, ok := receiver.(*ast.StarExpr); ok {
			receiver = star.X
		}
		if generic, ok := receiver.(*ast.IndexExpr); ok {
			receiver = generic.X
		}
		if ident, ok := receiver.(*ast.Ident); ok {
			methods[path+"."+ident.Name]++
		}
	}
}
