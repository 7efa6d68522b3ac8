package berth_test

import (
	"bufio"
	"fmt"
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

// The measures below describe how hard the code is to read. Each has a limit
// that only falls: a change that improves a figure also lowers its limit, and a
// change that raises one fails here. `make measures` prints them.
//
// A word list cannot make good prose. It only stops a slide.

// limit is the highest value that a measure may have today, and the goal.
type limit struct {
	name  string
	most  float64
	goal  float64
	value func(*codebase) float64
	// worst names the place that decides the value, for the reader of a failure.
	worst func(*codebase) string
}

// wordsPer is the unit of the measures of language: occurrences per this many
// words of comments or of documents.
const wordsPer = 10_000

func limits() []limit {
	list := []limit{
		{name: "methods on one type", most: 0, goal: 30,
			value: func(c *codebase) float64 { return float64(c.mostMethods.n) }, worst: func(c *codebase) string { return c.mostMethods.what }},
		{name: "exported names of the root package", most: 0, goal: 200,
			value: func(c *codebase) float64 { return float64(c.rootNames) }},
		{name: "lines of the longest function", most: 0, goal: 80,
			value: func(c *codebase) float64 { return float64(c.longest.n) }, worst: func(c *codebase) string { return c.longest.what }},
		{name: "lines of a function, 99th percentile", most: 0, goal: 50,
			value: func(c *codebase) float64 { return float64(percentile(c.functions, 0.99)) }},
		{name: "lines of product code wider than 120 columns", most: 0, goal: 0,
			value: func(c *codebase) float64 { return float64(c.wide) }},
		{name: "percent of lines that are no comment, product code", most: 0, goal: 85,
			value: func(c *codebase) float64 {
				return 100 - 100*float64(c.commentLines)/float64(c.commentLines+c.codeLines)
			}},
		{name: "percent of doc comments that begin with what, who, whom, those, it, them, there", most: 0, goal: 13,
			value: func(c *codebase) float64 { return 100 * float64(c.leaning) / float64(c.docs) }},
	}
	for i, w := range watched {
		list = append(list,
			limit{name: "comments: " + w.name, goal: w.goal, value: func(c *codebase) float64 { return c.comments.share(i) }},
			limit{name: "documents: " + w.name, goal: w.goal, value: func(c *codebase) float64 { return c.documents.share(i) }})
	}
	for i := range list {
		list[i].most = measured[list[i].name]
	}
	return list
}

// watched are constructions that slow a reader down, with the goal for each.
var watched = []struct {
	name    string
	pattern *regexp.Regexp
	goal    float64
}{
	{"what, whatever, whoever", regexp.MustCompile(`(?i)\b(what|whatever|whoever)\b`), 3},
	{"tell, tells, told", regexp.MustCompile(`(?i)\b(tell|tells|told)\b`), 3},
	{"those that, those of", regexp.MustCompile(`(?i)\bthose (that|of|who)\b`), 1},
	{"anew", regexp.MustCompile(`(?i)\banew\b`), 1},
	{"any more", regexp.MustCompile(`(?i)\bany more\b`), 1},
	{"for ever", regexp.MustCompile(`(?i)\bfor ever\b`), 1},
	{"beside", regexp.MustCompile(`(?i)\bbeside\b`), 1},
	{"nobody", regexp.MustCompile(`(?i)\bnobody\b`), 1},
	{"whom", regexp.MustCompile(`(?i)\bwhom\b`), 1},
}

var leaningDoc = regexp.MustCompile(`(?i)\b(what|who|whom|those|it|them|there)\b`)

// flatTypes are the types that the measure of methods leaves out, each with its exact
// number of methods and the reason.
var flatTypes = map[string]struct {
	methods int
	reason  string
}{
	"api/client.Client": {115, "users of a client expect one flat set of methods: one for each call of the API"},
}

// place is a figure with the place where it was found.
type place struct {
	n    int
	what string
}

// words counts watched constructions in a body of text.
type words struct {
	total int
	found []int
}

func (w *words) add(text string) {
	if w.found == nil {
		w.found = make([]int, len(watched))
	}
	w.total += len(strings.Fields(text))
	for i := range watched {
		w.found[i] += len(watched[i].pattern.FindAllString(text, -1))
	}
}

func (w *words) share(i int) float64 {
	return float64(w.found[i]) * wordsPer / float64(max(w.total, 1))
}

// codebase holds the counts of one walk over the repository.
type codebase struct {
	mostMethods, longest    place
	rootNames, wide         int
	functions               []int
	commentLines, codeLines int
	docs, leaning, examples int
	comments, documents     words
}

// TestMeasuresOnlyImprove holds each measure at its limit.
func TestMeasuresOnlyImprove(t *testing.T) {
	t.Parallel()
	c := survey(t)
	for _, l := range limits() {
		value := l.value(c)
		where := ""
		if l.worst != nil {
			where = " (" + l.worst(c) + ")"
		}
		t.Logf("%-88s %8.1f  limit %8.1f  goal %6.1f%s", l.name, value, l.most, l.goal, where)
		if value > l.most+0.05 {
			t.Errorf("%s: %.1f%s; the limit is %.1f and may only fall (goal %.1f)", l.name, value, where, l.most, l.goal)
		}
	}
	t.Logf("%-88s %8d  goal at least 20", "runnable Example functions", c.examples)
	if c.examples < leastExamples {
		t.Errorf("%d Example functions; at least %d must stay", c.examples, leastExamples)
	}
}

func survey(t *testing.T) *codebase {
	t.Helper()
	c := &codebase{}
	methods := map[string]int{}
	err := filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); path != "." && (strings.HasPrefix(name, ".") || name == "bin" || name == "testdata") {
				return filepath.SkipDir
			}
			return nil
		}
		switch filepath.Ext(path) {
		case ".go":
			c.goFile(t, path, methods)
		case ".md":
			c.document(t, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, flat := range flatTypes {
		if n := methods[name]; n != flat.methods {
			t.Errorf("%s has %d methods; flatTypes allows %d, because %s", name, n, flat.methods, flat.reason)
		}
		delete(methods, name)
	}
	for name, n := range methods {
		if n > c.mostMethods.n || n == c.mostMethods.n && name < c.mostMethods.what {
			c.mostMethods = place{n, name}
		}
	}
	return c
}

func (c *codebase) goFile(t *testing.T, path string, methods map[string]int) {
	t.Helper()
	source, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, source, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	if ast.IsGenerated(file) {
		return
	}
	lines := strings.Split(string(source), "\n")
	isTest := strings.HasSuffix(path, "_test.go")
	for _, line := range lines {
		if !isTest && len([]rune(strings.ReplaceAll(line, "\t", "    "))) > 120 {
			c.wide++
		}
	}
	for _, group := range file.Comments {
		c.comments.add(group.Text())
		if !isTest {
			c.commentLines += set.Position(group.End()).Line - set.Position(group.Pos()).Line + 1
		}
	}
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if ok && isTest && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Example") {
			c.examples++
		}
		if isTest {
			continue
		}
		switch d := d.(type) {
		case *ast.FuncDecl:
			c.function(set, path, d, methods)
			c.doc(d.Doc)
		case *ast.GenDecl:
			c.general(path, d)
		}
	}
	if !isTest {
		for _, line := range lines {
			if s := strings.TrimSpace(line); s != "" && !strings.HasPrefix(s, "//") {
				c.codeLines++
			}
		}
	}
}

func (c *codebase) function(set *token.FileSet, path string, f *ast.FuncDecl, methods map[string]int) {
	n := set.Position(f.End()).Line - set.Position(f.Pos()).Line + 1
	c.functions = append(c.functions, n)
	if n > c.longest.n {
		c.longest = place{n, path + " " + f.Name.Name}
	}
	if f.Recv == nil {
		if filepath.Dir(path) == "." && f.Name.IsExported() {
			c.rootNames++
		}
		return
	}
	receiver := f.Recv.List[0].Type
	if star, ok := receiver.(*ast.StarExpr); ok {
		receiver = star.X
	}
	if name, ok := receiver.(*ast.Ident); ok {
		methods[filepath.Dir(path)+"."+name.Name]++
	}
}

func (c *codebase) general(path string, d *ast.GenDecl) {
	c.doc(d.Doc)
	for _, s := range d.Specs {
		switch s := s.(type) {
		case *ast.TypeSpec:
			c.doc(s.Doc)
			if filepath.Dir(path) == "." && s.Name.IsExported() {
				c.rootNames++
			}
		case *ast.ValueSpec:
			c.doc(s.Doc)
			for _, name := range s.Names {
				if filepath.Dir(path) == "." && name.IsExported() {
					c.rootNames++
				}
			}
		}
	}
}

// doc looks at the first sentence of a declaration's comment.
func (c *codebase) doc(group *ast.CommentGroup) {
	if group == nil {
		return
	}
	c.docs++
	text := group.Text()
	first, _, _ := strings.Cut(text, ". ")
	if leaningDoc.MatchString(first) {
		c.leaning++
	}
}

// document reads a page without its code blocks. Generated pages are made of
// text that is counted elsewhere.
func (c *codebase) document(t *testing.T, path string) {
	t.Helper()
	if strings.HasPrefix(path, "docs/reference/") {
		return
	}
	switch path {
	case "docs/glossary.md", "docs/design/states.md", "CHANGELOG.md":
		return
	case "docs/design/reading.md": // quotes the sentences that it replaces
		return
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var text strings.Builder
	fenced := false
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
			continue
		}
		if !fenced && !strings.HasPrefix(line, "    ") {
			fmt.Fprintln(&text, line)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	c.documents.add(text.String())
}

func percentile(of []int, share float64) int {
	sorted := slices.Clone(of)
	slices.Sort(sorted)
	return sorted[int(share*float64(len(sorted)-1))]
}
