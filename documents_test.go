package berth_test

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

var (
	markdownLink = regexp.MustCompile(`\[[^\]\[]*\]\(([^)\s]+)\)`)
	pageName     = regexp.MustCompile(`\bdocs/[a-zA-Z0-9_./-]+\.(?:md|svg)\b`)
)

// A link of a document leads to a file that exists, and to a heading of it.
func TestEveryLinkOfADocumentLeadsSomewhere(t *testing.T) {
	t.Parallel()
	links := 0
	eachText(t, func(name, text string) {
		if path.Ext(name) != ".md" {
			return
		}
		for _, m := range markdownLink.FindAllStringSubmatch(withoutCode(text), -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			links++
			file := name
			if target != "" {
				file = path.Join(path.Dir(name), target)
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s links to %s, which does not exist", name, m[1])
				continue
			}
			if anchor != "" && !hasHeading(t, file, anchor) {
				t.Errorf("%s links to %s, and %s has no such heading", name, m[1], file)
			}
		}
	})
	if links < 100 {
		t.Errorf("found %d links; want at least 100: the search is broken", links)
	}
}

// A page that code, scripts or documents name by its path exists. Migrations are
// left out: their text is frozen by its checksum.
func TestEveryPageThatATextNamesExists(t *testing.T) {
	t.Parallel()
	eachText(t, func(name, text string) {
		if strings.HasPrefix(name, "db/migrations/") {
			return
		}
		for _, page := range pageName.FindAllString(text, -1) {
			if _, err := os.Stat(page); err != nil {
				t.Errorf("%s names %s, which does not exist", name, page)
			}
		}
	})
}

// eachText calls f with the name and content of each source file, script and
// document of the repository.
func eachText(t *testing.T, f func(name, text string)) {
	t.Helper()
	err := filepath.WalkDir(".", func(name string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if base := d.Name(); name != "." && (strings.HasPrefix(base, ".") || base == "bin" || base == "testdata") {
				return filepath.SkipDir
			}
			return nil
		}
		switch path.Ext(name) {
		case ".md", ".go", ".sh", ".sql", ".html", ".yaml", ".service":
			text, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			f(filepath.ToSlash(name), string(text))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// withoutCode removes fenced blocks and code in lines, where brackets are no links.
func withoutCode(text string) string {
	text = regexp.MustCompile("(?ms)^ *```.*?^ *```").ReplaceAllString(text, "")
	return regexp.MustCompile("``[^\n]*?``|`[^`\n]*`").ReplaceAllString(text, "")
}

// hasHeading reports whether a page has a heading with the anchor that Markdown
// renderers derive from it: lower case, spaces as hyphens, without punctuation.
func hasHeading(t *testing.T, page, anchor string) bool {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		heading := strings.TrimLeft(line, "#")
		if heading == line {
			continue
		}
		slug := strings.Map(func(r rune) rune {
			switch {
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				return unicode.ToLower(r)
			case r == ' ':
				return '-'
			}
			return -1
		}, strings.TrimSpace(heading))
		if slug == anchor {
			return true
		}
	}
	return false
}
