package glossary_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"berth/internal/lib/glossary"
)

const root = "../../.."

// identifiersLeft is the number of different names with a retired word that product
// code declares, by room. A number here may only fall; a room that is not listed
// has none.
var identifiersLeft = map[string]int{
	"cmd/berth":        1,
	"internal/check":   1,
	"internal/control": 6,
	"internal/lib":     1,
	"internal/machine": 2,
}

func TestRetiredWordsNameNothingNew(t *testing.T) {
	t.Parallel()
	found := map[string]map[string]bool{}
	eachFile(t, ".go", func(path string) {
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		in := room(path)
		if found[in] == nil {
			found[in] = map[string]bool{}
		}
		eachName(t, path, func(name string, isType bool) {
			for _, r := range glossary.RetiredWords {
				if nameHas(r, name, isType) {
					found[in][name] = true
				}
			}
		})
	})
	for in, names := range found {
		list := slices.Sorted(maps.Keys(names))
		if len(list) > 0 {
			t.Logf("%s: %d identifiers with a retired word: %s", in, len(list), strings.Join(list, ", "))
		}
		if len(list) > identifiersLeft[in] {
			t.Errorf("%s has %d identifiers with a retired word, the limit is %d: %s\n"+
				"docs/glossary.md names the words to use", in, len(list), identifiersLeft[in], strings.Join(list, ", "))
		}
	}
}

// Code and links are left out: tables, flags and files keep a former name for a while.
func TestDocumentsUseNoRetiredWord(t *testing.T) {
	t.Parallel()
	eachFile(t, ".md", func(path string) {
		switch path {
		case "docs/glossary.md", "docs/design/reading.md", "CHANGELOG.md": // name the words, or quote old texts
			return
		}
		text, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range glossary.RetiredWords {
			if r.Scope != glossary.Everywhere {
				continue
			}
			for _, w := range r.Words {
				word := regexp.MustCompile(`(?i)\b` + regexp.QuoteMeta(w) + `(?:s|ed|ing)?\b`)
				if n := len(word.FindAllString(prose(string(text)), -1)); n > 0 {
					t.Errorf("%s uses the retired word %q (%d times); use: %s", path, w, n, r.Use)
				}
			}
		}
	})
}

// The backfill and the migrations themselves name both.
func TestStatementsUseNoRetiredName(t *testing.T) {
	t.Parallel()
	eachFile(t, ".go", func(path string) {
		if room(path) != "db" || strings.HasSuffix(path, "_test.go") || path == "db/backfill.go" {
			return
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, path), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			text, ok := n.(*ast.BasicLit)
			if !ok || text.Kind != token.STRING {
				return true
			}
			for _, r := range glossary.RetiredInSQL {
				for _, w := range r.Words {
					if regexp.MustCompile(`\b` + w + `\b`).MatchString(text.Value) {
						t.Errorf("%s: a statement uses the retired name %q; use: %s\n%s", path, w, r.Use, text.Value)
					}
				}
			}
			return true
		})
	})
}

func TestASearchFindsWordsWhereTheyCount(t *testing.T) {
	t.Parallel()
	wide := glossary.Retired{Words: []string{"lure", "mem_mb"}}
	narrow := glossary.Retired{Words: []string{"keeper"}, Scope: glossary.InTypes}
	for _, c := range []struct {
		of     glossary.Retired
		name   string
		isType bool
		want   bool
	}{
		{wide, "lure", false, true},
		{wide, "bestLures", false, true},
		{wide, "LureOf", true, true},
		{wide, "failure", false, false},
		{wide, "allured", false, false},
		{wide, "MemMB", false, true},
		{wide, "memoryMiB", false, false},
		{narrow, "keeper", true, true},
		{narrow, "keeper", false, false},
		{narrow, "goalkeeper", true, false},
	} {
		if got := nameHas(c.of, c.name, c.isType); got != c.want {
			t.Errorf("nameHas(%v, %s, %v) = %v", c.of.Words, c.name, c.isType, got)
		}
	}
	if got := strings.TrimSpace(prose("see `lure` and [text](lure.md)\n```\nlure\n```\n    lure\n")); got != "see  and [text]" {
		t.Errorf("prose = %q", got)
	}
}

// nameHas reports whether an identifier uses a retired word: as one of its parts
// in camel case, or as the whole name of a type or package.
func nameHas(r glossary.Retired, name string, isType bool) bool {
	for _, w := range r.Words {
		w = strings.ReplaceAll(strings.ReplaceAll(w, "_", ""), " ", "")
		if r.Scope == glossary.InTypes {
			if isType && strings.EqualFold(name, w) {
				return true
			}
			continue
		}
		parts := camelParts(name)
		for i := range parts {
			joined := ""
			for _, p := range parts[i:] {
				joined += p
				if joined == w || joined == w+"s" {
					return true
				}
			}
		}
	}
	return false
}

// camelParts splits an identifier into its words, in lower case: MemMB is mem, mb.
func camelParts(name string) (parts []string) {
	runes, start := []rune(name), 0
	cut := func(end int) {
		if end > start {
			parts = append(parts, strings.ToLower(string(runes[start:end])))
		}
		start = end
	}
	for i := 1; i < len(runes); i++ {
		upper := unicode.IsUpper(runes[i])
		switch {
		case runes[i] == '_':
			cut(i)
			start = i + 1
		case upper && !unicode.IsUpper(runes[i-1]),
			upper && i+1 < len(runes) && unicode.IsLower(runes[i+1]):
			cut(i)
		}
	}
	cut(len(runes))
	return parts
}

// prose is the text of a page without code and without the targets of links.
func prose(text string) string {
	for _, code := range []string{"(?ms)^ *```.*?^ *```", "(?m)^    .*$", "`[^`\n]*`", `\]\([^)]*\)`} {
		with := ""
		if strings.HasPrefix(code, `\]`) {
			with = "]"
		}
		text = regexp.MustCompile(code).ReplaceAllString(text, with)
	}
	return text
}

// room is the part of the repository whose owner answers for a file.
func room(path string) string {
	parts := strings.Split(path, "/")
	switch {
	case len(parts) == 1:
		return "."
	case len(parts) > 2 && (parts[0] == "internal" || parts[0] == "docs" || parts[0] == "cmd"):
		return parts[0] + "/" + parts[1]
	}
	return parts[0]
}

// eachFile calls f with the path of each file of the repository with an extension.
func eachFile(t *testing.T, extension string, f func(path string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		if d.IsDir() {
			base := d.Name()
			if name != "." && (strings.HasPrefix(base, ".") || base == "bin" || base == "testdata" || name == "e2e") {
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(path) == extension {
			f(name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// eachName calls f with each name that a file declares, and whether it names a type
// or the package. Uses of names of other packages do not count.
func eachName(t *testing.T, path string, f func(name string, isType bool)) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, path), nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	f(file.Name.Name, true)
	names := func(list ...ast.Expr) {
		for _, e := range list {
			if name, ok := e.(*ast.Ident); ok {
				f(name.Name, false)
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.TypeSpec:
			f(n.Name.Name, true)
		case *ast.FuncDecl:
			names(n.Name)
		case *ast.Field:
			for _, name := range n.Names {
				names(name)
			}
		case *ast.ValueSpec:
			for _, name := range n.Names {
				names(name)
			}
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				names(n.Lhs...)
			}
		case *ast.RangeStmt:
			if n.Tok == token.DEFINE {
				names(n.Key, n.Value)
			}
		}
		return true
	})
}
