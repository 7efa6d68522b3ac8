package db_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"berth/db"
)

// mostMethods is the number of methods that one store may have.
const mostMethods = 30

// storeTable reads the table of stores and their files from the package
// documentation.
func storeTable(t *testing.T) map[string][]string {
	t.Helper()
	doc, err := parser.ParseFile(token.NewFileSet(), "doc.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	table, store := map[string][]string{}, ""
	for line := range strings.Lines(doc.Doc.Text()) {
		row, ok := strings.CutPrefix(line, "\t")
		if !ok {
			continue
		}
		words := strings.Fields(row)
		if !strings.HasPrefix(row, " ") { // else the row above continues
			store, words = words[0], words[1:]
		}
		table[store] = append(table[store], words...)
	}
	return table
}

// storeMethods returns the files of the package by the stores whose methods they
// hold, and counts the methods of each store.
func storeMethods(t *testing.T) (files map[string][]string, count map[string]int) {
	t.Helper()
	stores := map[string]bool{}
	for field := range reflect.TypeFor[db.DB]().Fields() {
		if field.IsExported() {
			stores[field.Name] = true
		}
	}
	files, count = map[string][]string{}, map[string]int{}
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		source, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, source, 0)
		if err != nil {
			t.Fatal(err)
		}
		base := strings.TrimSuffix(name, ".go")
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv == nil {
				continue
			}
			star, ok := f.Recv.List[0].Type.(*ast.StarExpr)
			if !ok {
				continue
			}
			store, ok := star.X.(*ast.Ident) // stores have no type parameters
			if !ok || !stores[store.Name] {
				continue
			}
			count[store.Name]++
			if !slices.Contains(files[store.Name], base) {
				files[store.Name] = append(files[store.Name], base)
			}
		}
	}
	return files, count
}

func TestEachFileBelongsToTheStoreThatTheDocumentationNames(t *testing.T) {
	t.Parallel()
	table := storeTable(t)
	files, count := storeMethods(t)
	owner := map[string]string{}
	for store, list := range files {
		if !slices.Equal(list, table[store]) {
			t.Errorf("%s has methods in %v; doc.go names %v", store, list, table[store])
		}
		for _, file := range list {
			if other := owner[file]; other != "" {
				t.Errorf("%s.go has methods of %s and of %s", file, other, store)
			}
			owner[file] = store
		}
		if count[store] > mostMethods {
			t.Errorf("%s has %d methods, and may have %d: divide the aggregate", store, count[store], mostMethods)
		}
	}
	for store := range table {
		if files[store] == nil {
			t.Errorf("doc.go names the store %s, which has no methods", store)
		}
	}
}
