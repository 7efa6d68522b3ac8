package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

const (
	guidePages    = "../../docs/guide"
	guideExamples = "../../examples/guide"
	operatePages  = "../../docs/operate"
)

// A reader copies from the page and runs the file; both must be the same text.
// Pages under "Details" explain fields and rules, and need no file.
func TestEachGuidePageShowsItsExampleFile(t *testing.T) {
	t.Parallel()
	block := regexp.MustCompile("(?s)```yaml\n(.*?)```\n\nThis is \\[examples/guide/([a-z-]+\\.yaml)\\]")
	index := textOf(t, filepath.Join(guidePages, "README.md"))
	_, details, ok := strings.Cut(index, "\n## Details\n")
	if !ok {
		t.Fatal("docs/guide/README.md has no section Details")
	}
	shown := map[string]bool{}
	for _, page := range glob(t, guidePages, "*.md") {
		text := textOf(t, page)
		link := "(" + filepath.Base(page) + ")"
		if filepath.Base(page) == "README.md" || strings.Contains(details, link) {
			continue
		}
		found := block.FindAllStringSubmatch(text, -1)
		if len(found) != 1 {
			t.Errorf("%s shows %d example files; want one YAML block followed by \"This is [examples/guide/NAME.yaml]\"", page, len(found))
			continue
		}
		name := found[0][2]
		shown[name] = true
		if got, want := found[0][1], textOf(t, filepath.Join(guideExamples, name)); got != want {
			t.Errorf("%s shows another text than %s:\n%s\nwant:\n%s", page, name, got, want)
		}
		if !strings.Contains(index, link) {
			t.Errorf("docs/guide/README.md does not link to %s", filepath.Base(page))
		}
	}
	for _, file := range glob(t, guideExamples, "*.yaml") {
		if !shown[filepath.Base(file)] {
			t.Errorf("no page of docs/guide shows %s", file)
		}
	}
}

// The examples are submitted as a user submits them: by the program, to the
// whole API on a database of its own.
func TestEveryGuideExampleIsAccepted(t *testing.T) {
	t.Parallel()
	url := realServer(t, t.Cleanup)
	for _, file := range glob(t, guideExamples, "*.yaml") {
		args := []string{"submit", file}
		if strings.Contains(textOf(t, file), "kind: pipeline\n") {
			args = []string{"pipeline", "submit", file}
		}
		cmd := exec.Command("berth", args...) // TestMain has put it into PATH
		cmd.Env = append(os.Environ(), "BERTH_URL="+url, "BERTH_TOKEN="+adminToken, "XDG_CONFIG_HOME="+t.TempDir())
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Run(); err != nil {
			t.Errorf("berth %s: %v\n%s", strings.Join(args, " "), err, out.String())
		}
	}
}

func glob(t *testing.T, folder, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, pattern))
	if err != nil || len(files) == 0 {
		t.Fatalf("no %s in %s (%v)", pattern, folder, err)
	}
	return files
}

func textOf(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Commands on the pages for users and operators exist, with the flags that the
// pages give them. A command on a line of its own also has the right number of
// arguments; prose may name a command without them.
func TestEveryCommandOfThePagesParses(t *testing.T) {
	t.Parallel()
	ownLine := regexp.MustCompile(`^    (?:\$ )?(berth .*)$`)
	inProse := regexp.MustCompile("`(berth [a-z][^`]*)`")
	count := 0
	for _, page := range append(glob(t, guidePages, "*.md"), glob(t, operatePages, "*.md")...) {
		for i, line := range strings.Split(textOf(t, page), "\n") {
			if m := ownLine.FindStringSubmatch(line); m != nil {
				count++
				cmd, err := parsed(m[1])
				if err == nil {
					err = cmd.ValidateArgs(cmd.Flags().Args())
				}
				if err != nil {
					t.Errorf("%s:%d: %s: %v", page, i+1, m[1], err)
				}
			}
			for _, m := range inProse.FindAllStringSubmatch(line, -1) {
				count++
				if _, err := parsed(m[1]); err != nil {
					t.Errorf("%s:%d: %s: %v", page, i+1, m[1], err)
				}
			}
		}
	}
	if count < 20 {
		t.Errorf("found %d commands on the pages; want at least 20", count)
	}
}

// parsed returns the command that a line of a page names, with its flags set.
// Redirections and pipes are left out.
func parsed(line string) (*cobra.Command, error) {
	line, _, _ = strings.Cut(line, " < ")
	line, _, _ = strings.Cut(line, " | ")
	var words []string
	for _, w := range regexp.MustCompile(`'[^']*'|"[^"]*"|\S+`).FindAllString(line, -1) {
		words = append(words, strings.Trim(w, `'"`))
	}
	cmd, rest, err := newRoot(&app{}).Find(words[1:])
	if err != nil {
		return nil, err
	}
	return cmd, cmd.ParseFlags(rest)
}
