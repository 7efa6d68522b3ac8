package agent

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"
)

// drawing renders the table of phases as doc.go shows it.
func drawing() string {
	var b strings.Builder
	line := func(cells ...any) {
		text := fmt.Sprintf("%-11s %-11s %-9s %-54s %s", cells...)
		fmt.Fprintln(&b, "//\t"+strings.TrimRight(text, " "))
	}
	line("phase", "ends with", "stage", "does", "next")
	line(strings.Repeat("-", 11), strings.Repeat("-", 11), strings.Repeat("-", 9), strings.Repeat("-", 54),
		strings.Repeat("-", 25))
	for _, r := range phases {
		var next []string
		for _, p := range r.next {
			next = append(next, string(p))
		}
		line(r.phase, r.scope, r.stage, r.does, strings.Join(next, ", "))
	}
	return b.String()
}

func TestThePackageDocumentDrawsTheTableOfPhases(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	if want := drawing(); !strings.Contains(string(doc), want) {
		t.Errorf("doc.go does not draw the table of phases; it must contain\n%s", want)
	}
}

// Every phase is reached from the claim, and from each of them the member ends.
// Interruptions lead to remove; see doc.go.
func TestEveryPhaseIsReachedAndEnds(t *testing.T) {
	t.Parallel()
	reach := func(from phase) map[phase]bool {
		seen := map[phase]bool{}
		var visit func(phase)
		visit = func(p phase) {
			if seen[p] {
				return
			}
			seen[p] = true
			next := p.row().next
			if p == phaseForget {
				next = []phase{phaseRemove}
			}
			for _, n := range next {
				visit(n)
			}
		}
		visit(from)
		return seen
	}
	fromClaim := reach(phaseClaim)
	rows := map[phase]bool{}
	for _, r := range phases {
		if rows[r.phase] {
			t.Errorf("%s has two rows", r.phase)
		}
		rows[r.phase] = true
		if !fromClaim[r.phase] {
			t.Errorf("%s cannot be reached", r.phase)
		}
		if !reach(r.phase)[phaseGone] {
			t.Errorf("%s does not lead to an end", r.phase)
		}
	}
	for p := range fromClaim {
		if !rows[p] && !p.ends() {
			t.Errorf("%s is a next phase without a row", p)
		}
	}
}

// The preparation opens and closes once, so its phases follow each other. It opens after locate
// alone: at pull, or at give for a container that an earlier agent process has created.
func TestThePreparationIsEnteredAndLeftOnce(t *testing.T) {
	t.Parallel()
	var entered, left []phase
	for _, r := range phases {
		for _, n := range r.next {
			switch inside := n.row().scope == underPreparation; {
			case inside && r.scope != underPreparation:
				entered = append(entered, n)
			case !inside && r.scope == underPreparation && n != phaseFence:
				left = append(left, r.phase)
			}
		}
	}
	if diff := cmp.Diff([][]phase{{phasePull, phaseGive}, {phaseCheck}}, [][]phase{entered, left}); diff != "" {
		t.Errorf("entered by and left from (-want +got):\n%s", diff)
	}
}

// Each phase has a type and a file of its own, which return the phases that the table
// lists, and no others.
func TestWorkersReturnThePhasesOfTheTable(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	constants := map[string]phase{}
	returned := map[string]map[phase]bool{} // by receiver
	file := map[string]string{}             // of the method Do, by receiver
	set := token.NewFileSet()
	var parsed []*ast.File
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(set, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		parsed = append(parsed, f)
		for _, d := range f.Decls {
			noteConstants(d, constants)
		}
	}
	for _, f := range parsed {
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv == nil {
				continue
			}
			receiver := receiverOf(fn)
			if returned[receiver] == nil {
				returned[receiver] = map[phase]bool{}
			}
			notePhases(fn.Body, constants, returned[receiver])
			if fn.Name.Name == "Do" {
				file[receiver] = set.Position(fn.Pos()).Filename
			}
		}
	}
	// workdir and inputs end a member through the helper that they share.
	for _, p := range []string{"workdirPhase", "inputsPhase"} {
		maps.Copy(returned[p], returned["placer"])
	}
	for _, r := range phases {
		worker := string(r.phase) + "Phase"
		if got, want := file[worker], "phase_"+string(r.phase)+".go"; got != want {
			t.Errorf("the worker of %s is in %q, want %s", r.phase, got, want)
		}
		got := slices.Sorted(maps.Keys(returned[worker]))
		want := slices.Sorted(slices.Values(r.next))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s returns other phases than the table lists (-table +code):\n%s", worker, diff)
		}
	}
}

// noteConstants collects the constants of phases by their names.
func noteConstants(d ast.Decl, into map[string]phase) {
	g, ok := d.(*ast.GenDecl)
	if !ok || g.Tok != token.CONST {
		return
	}
	for _, s := range g.Specs {
		v := s.(*ast.ValueSpec)
		if kind, ok := v.Type.(*ast.Ident); ok && kind.Name == "phase" {
			into[v.Names[0].Name] = phase(strings.Trim(v.Values[0].(*ast.BasicLit).Value, `"`))
		}
	}
}

func receiverOf(f *ast.FuncDecl) string {
	kind := f.Recv.List[0].Type
	if star, ok := kind.(*ast.StarExpr); ok {
		kind = star.X
	}
	return kind.(*ast.Ident).Name
}

// notePhases collects the phases that return statements name. A result that is
// determined leads to the fence.
func notePhases(body *ast.BlockStmt, constants map[string]phase, into map[phase]bool) {
	ast.Inspect(body, func(n ast.Node) bool {
		back, ok := n.(*ast.ReturnStmt)
		if !ok || len(back.Results) == 0 {
			return true
		}
		switch x := back.Results[0].(type) {
		case *ast.Ident:
			if p, ok := constants[x.Name]; ok {
				into[p] = true
			}
		case *ast.CallExpr:
			call, ok := x.Fun.(*ast.SelectorExpr)
			if !ok {
				break
			}
			if of, ok := call.X.(*ast.SelectorExpr); ok && of.Sel.Name == "result" {
				into[phaseFence] = true
			}
		}
		return true
	})
}

// A phase's name is one word, as its file and its type are named after it.
func TestPhasesAreNamedByOneWord(t *testing.T) {
	t.Parallel()
	for _, r := range phases {
		if strings.ContainsFunc(string(r.phase), func(c rune) bool { return !unicode.IsLower(c) }) {
			t.Errorf("%q is not one word in lower case", r.phase)
		}
	}
}
