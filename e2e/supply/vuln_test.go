package main

import (
	"archive/zip"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// planted is a module with a vulnerability in one of its functions.
const planted = "example.org/planted"

// today is the time of all checks of these tests.
var today = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

// tool returns the path of a program that scripts/tool.sh provides.
func tool(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.Command("../../scripts/tool.sh", name).Output()
	if err != nil {
		t.Fatalf("get %s: %v", name, err)
	}
	return strings.TrimSpace(string(out))
}

// write creates a file with its folders.
func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// proxy writes a module proxy in a folder, with versions 0.3.5 and 0.3.8 of the planted module.
func proxy(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	at := filepath.Join(folder, planted, "@v")
	write(t, filepath.Join(at, "list"), "v0.3.5\nv0.3.8\n")
	for _, version := range []string{"v0.3.5", "v0.3.8"} {
		mod := "module " + planted + "\n\ngo 1.26\n"
		write(t, filepath.Join(at, version+".info"), fmt.Sprintf(`{"Version": %q}`, version))
		write(t, filepath.Join(at, version+".mod"), mod)
		var b bytes.Buffer
		z := zip.NewWriter(&b)
		for name, text := range map[string]string{
			"go.mod": mod,
			"parse/all.go": "package parse\n\n//go:noinline\nfunc Bad(s string) int { return len(s) }\n\n" +
				"//go:noinline\nfunc Good(s string) int { return 0 }\n",
			"server/all.go": "package server\n\n//go:noinline\nfunc Serve(s string) int { return len(s) }\n",
		} {
			w, err := z.Create(planted + "@" + version + "/" + name)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write([]byte(text)); err != nil {
				t.Fatal(err)
			}
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(at, version+".zip"), b.String())
	}
	return folder
}

// program writes and builds a program that requires a version of the planted module and evaluates
// an expression with it. It returns the folder of its source and the program.
func program(t *testing.T, version, expression string) (source, built string) {
	t.Helper()
	source = t.TempDir()
	write(t, filepath.Join(source, "go.mod"), "module toy\n\ngo 1.26\n\nrequire "+planted+" "+version+"\n")
	pkg, _, _ := strings.Cut(expression, ".")
	write(t, filepath.Join(source, "main.go"), fmt.Sprintf(
		"package main\n\nimport (\n\t\"os\"\n\n\t%q\n)\n\nfunc main() { os.Exit(%s) }\n", planted+"/"+pkg, expression))
	built = filepath.Join(source, "toy")
	cmd := exec.Command("go", "build", "-ldflags=-w", "-o", built, ".")
	cmd.Dir = source
	cmd.Env = append(os.Environ(), "GOPROXY=file://"+proxy(t), "GOMODCACHE="+t.TempDir(), "GONOSUMDB=*",
		"GOFLAGS=-mod=mod -modcacherw", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the toy program: %v\n%s", err, out)
	}
	return source, built
}

// entries writes a database with the entry of the planted function, and one without any package.
func entries(t *testing.T, age time.Duration) string {
	t.Helper()
	folder := t.TempDir()
	for id, specific := range map[string]string{
		"GO-2026-0001": `{"imports": [{"path": "example.org/planted/parse", "symbols": ["Bad"]}]}`,
		"GO-2026-0002": `{}`,
	} {
		name := filepath.Join(folder, id+".json")
		write(t, name, fmt.Sprintf(`{"schema_version": "1.3.1", "id": %q, "summary": "planted", "affected": [{
			"package": {"name": %q, "ecosystem": "Go"}, "ecosystem_specific": %s,
			"ranges": [{"type": "SEMVER", "events": [{"introduced": "0"}, {"fixed": "0.3.8"}]}]}]}`,
			id, planted, specific))
		if err := os.Chtimes(name, time.Time{}, today.Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

// accept is an exception for an entry of the planted module.
func accept(id, until string, notReached ...string) string {
	return fmt.Sprintf("- {id: %s, module: %s, until: %s, reason: test, not_reached: [%s]}\n",
		id, planted, until, strings.Join(notReached, ", "))
}

// judged is one run of the command.
type judged struct {
	database   string
	exceptions string // text of the file
	flags      []string
	targets    []string
}

// status runs the command and returns its exit status and output.
func (j judged) status(t *testing.T) (int, string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "exceptions.yaml")
	write(t, file, j.exceptions+"\n")
	args := []string{"-db", j.database, "-exceptions", file, "-govulncheck", tool(t, "govulncheck")}
	var out bytes.Buffer
	status := run(t.Context(), slices.Concat(args, j.flags, j.targets), &out, today)
	return status, out.String()
}

// expect runs the command and compares status and parts of the output.
func (j judged) expect(t *testing.T, want int, parts ...string) {
	t.Helper()
	status, out := j.status(t)
	if status != want {
		t.Errorf("exit status %d; want %d\n%s", status, want, out)
	}
	for _, part := range parts {
		if !strings.Contains(out, part) {
			t.Errorf("the output lacks %q:\n%s", part, out)
		}
	}
}

func TestAPlantedOldModuleIsRedUntilAnExceptionCoversIt(t *testing.T) {
	t.Parallel()
	db := entries(t, 24*time.Hour)
	_, bad := program(t, "v0.3.5", `parse.Bad("x")`)
	both := accept("GO-2026-0001", "2026-06-01") + accept("GO-2026-0002", "2026-12-31", planted+"/server")
	type row struct {
		exceptions string
		status     int
		parts      []string
	}
	const id, module = "{id: GO-2026-0001", "module: m" // of entries that are not valid
	for name, c := range map[string]row{
		"no exception": {"", 1, []string{"RED GO-2026-0001 in example.org/planted v0.3.5 (planted), reached by toy",
			"fixed in v0.3.8", "parse (1 symbols)"}},
		"one of two": {accept("GO-2026-0001", "2026-12-31"), 1,
			[]string{"accepted GO-2026-0001", "RED GO-2026-0002"}},
		"both": {both, 0, []string{"accepted until 2026-06-01: test", "ends in 0 days", "ok"}},
		"expired": {strings.Replace(both, "2026-06-01", "2026-05-31", 1), 1,
			[]string{"the exception ended on 2026-05-31"}},
		"other module": {strings.ReplaceAll(both, planted+",", planted+"2,"), 1,
			[]string{"RED GO-2026-0001", "covers no finding"}},
		"matches none": {both + accept("GO-2026-0003", "2026-12-31"), 1,
			[]string{"GO-2026-0003", "covers no finding: remove it"}},
		"package": {strings.Replace(both, planted+"/server", planted+"/parse", 1), 1,
			[]string{"holds only while example.org/planted/parse is not"}},
		"without reason": {"- " + id + ", " + module + ", until: 2026-12-31}", 2,
			[]string{"lacks an id, a module or a reason"}},
		"without end": {"- " + id + ", " + module + ", reason: r}", 2, []string{`until "" is not a date`}},
		"twice":       {both + both, 2, []string{"repeats GO-2026-0001"}},
		"unknown field": {"- " + id + ", " + module + ", reason: r, until: 2026-12-31, because: x}", 2,
			[]string{"because"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			judged{database: db, exceptions: c.exceptions, targets: []string{bad}}.expect(t, c.status, c.parts...)
		})
	}
}

func TestOnlyReachedCodeIsRed(t *testing.T) {
	t.Parallel()
	db := entries(t, 24*time.Hour)
	_, fixed := program(t, "v0.3.8", `parse.Bad("x")`)
	judged{database: db, targets: []string{fixed}}.expect(t, 0, "ok")

	other := accept("GO-2026-0002", "2026-12-31")
	_, good := program(t, "v0.3.5", `parse.Good("x")`)
	judged{database: db, exceptions: other, targets: []string{good, fixed}}.
		expect(t, 0, "not reached: GO-2026-0001", "ok")
}

// A program without symbols would count as one that reaches everything.
func TestAStrippedProgramIsRefused(t *testing.T) {
	t.Parallel()
	source, _ := program(t, "v0.3.8", `parse.Good("x")`)
	write(t, filepath.Join(source, "plain.go"), "package main\n")
	write(t, filepath.Join(source, "main.go"), "package main\n\nfunc main() {}\n")
	cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", "stripped", ".")
	cmd.Dir = source
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	judged{database: entries(t, 0), targets: []string{filepath.Join(source, "stripped")}}.
		expect(t, 2, "has no symbol table", "-ldflags=-s")
}

func TestAMissingOrOldDatabaseIsAWarningAndRedWhenStrict(t *testing.T) {
	t.Parallel()
	_, good := program(t, "v0.3.8", `parse.Good("x")`)
	strict := []string{"-strict"}
	day := 24 * time.Hour
	judged{targets: []string{good}}.expect(t, 0, "WARNING no database")
	judged{targets: []string{good}, flags: strict}.expect(t, 1, "RED no database")
	ended := accept("GO-2026-0001", "2026-05-31")
	judged{exceptions: ended, targets: []string{good}}.
		expect(t, 0, "WARNING the exception for GO-2026-0001 ended on 2026-05-31")
	judged{exceptions: ended, targets: []string{good}, flags: strict}.
		expect(t, 1, "RED the exception for GO-2026-0001 ended")
	judged{database: entries(t, 120*day), targets: []string{good}, flags: strict}.expect(t, 0, "(120 days old)", "ok")
	judged{database: entries(t, 121*day), targets: []string{good}}.expect(t, 0, "WARNING the database is 121 days old")
	judged{database: entries(t, 121*day), targets: []string{good}, flags: strict}.
		expect(t, 1, "RED the database is 121 days old")
	judged{database: t.TempDir(), targets: []string{good}}.expect(t, 2, "holds no entries")

	published := entries(t, 0) // the published layout has its date in the index
	write(t, filepath.Join(published, "index", "db.json"), `{"modified": "2026-01-01T00:00:00Z"}`)
	if date, err := databaseDate(published); err != nil || date.Format(time.DateOnly) != "2026-01-01" {
		t.Errorf("the date of a published database is %v, %v; want 2026-01-01", date, err)
	}
}

// From source the report names calls, which make vuln-calls prints.
func TestASourceScanNamesTheCalls(t *testing.T) {
	t.Parallel()
	stream := `{"osv": {"id": "GO-1", "summary": "s"}}
		{"finding": {"osv": "GO-1", "trace": [{"module": "m", "version": "v1"}]}}
		{"finding": {"osv": "GO-1", "trace": [
			{"module": "m", "version": "v1", "package": "m/p", "function": "F"},
			{"module": "toy", "package": "toy/cmd", "function": "main",
				"position": {"filename": "main.go", "line": 7}}]}}`
	all := findings{}
	if err := all.read(strings.NewReader(stream), ""); err != nil {
		t.Fatal(err)
	}
	list := all.sorted()
	if len(list) != 1 || list[0].programs[0] != "toy/cmd" ||
		strings.Join(list[0].calls, "") != "main.go:7 toy/cmd.main reaches m/p.F" {
		t.Errorf("got %+v; want one finding with the call in main.go", list)
	}
}
