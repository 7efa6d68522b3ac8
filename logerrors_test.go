package berth_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Every message that Berth logs at level Error has an entry with instructions for
// operators, and every entry belongs to a message.
func TestEveryErrorMessageOfTheLogHasAnEntry(t *testing.T) {
	t.Parallel()
	const page = "docs/operate/log-errors.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	entries := map[string]bool{}
	for _, section := range strings.Split(string(text), "\n### ")[1:] {
		title, body, _ := strings.Cut(section, "\n")
		entries[title] = true
		for _, part := range []string{"Meaning", "Impact", "Diagnosis", "Mitigation", "Verification"} {
			if !strings.Contains(body, "- **"+part+"**: ") {
				t.Errorf("%s: entry %q has no line %s", page, title, part)
			}
		}
	}
	logged := errorMessages(t)
	if len(logged) < 40 {
		t.Fatalf("found %d messages at level Error; want at least 40: the search is broken", len(logged))
	}
	for message, where := range logged {
		if !entries[message] {
			t.Errorf("%s: message %q has no entry in %s", where, message, page)
		}
	}
	for title := range entries {
		if _, ok := logged[title]; !ok {
			t.Errorf("%s: entry %q belongs to no message of the code", page, title)
		}
	}
}

// errorMessages finds the constant first argument of each call of a logger's
// method Error, and of the deadman's note, which logs at that level.
func errorMessages(t *testing.T) map[string]string {
	t.Helper()
	const deadman = "internal/machine/deadman"
	found := map[string]string{}
	err := filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			switch name := d.Name(); {
			case path == ".":
			case strings.HasPrefix(name, "."), name == "testdata", name == "e2e", name == "bin", name == "runtimetest":
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) < 2 && !isLogger(call) {
				return true
			}
			method, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			note := method.Sel.Name == "note" && filepath.Dir(path) == deadman
			if !note && (method.Sel.Name != "Error" || !isLogger(call)) {
				return true
			}
			message, ok := call.Args[0].(*ast.BasicLit)
			if !ok || message.Kind != token.STRING {
				// The body of the deadman's note logs the constant messages of its callers.
				if note || filepath.Dir(path) != deadman {
					t.Errorf("%s: the message at level Error is not constant", set.Position(call.Pos()))
				}
				return true
			}
			value, err := strconv.Unquote(message.Value)
			if err != nil {
				t.Fatal(err)
			}
			found[value] = set.Position(call.Pos()).String()
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// isLogger reports whether a method is called on something named as loggers
// are here: log, l.log, s.Logger, or on the package slog.
func isLogger(call *ast.CallExpr) bool {
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || len(call.Args) == 0 {
		return false
	}
	name := ""
	switch on := method.X.(type) {
	case *ast.Ident:
		name = on.Name
	case *ast.SelectorExpr:
		name = on.Sel.Name
	}
	return strings.EqualFold(name, "log") || strings.EqualFold(name, "logger") || name == "slog"
}
