package archive

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"unicode/utf8"
)

// The files with patterns of excluded entries. Both have the syntax of gitignore(5). Where both
// match a name, .berthignore decides: so a folder can upload files that its repository ignores.
const (
	gitIgnore   = ".gitignore"
	berthIgnore = ".berthignore"
	maxIgnore   = 1 << 20
)

// ignore decides which entries of a folder are excluded. The lists hold the patterns of all
// entered folders in the order of entering, so that deeper folders come later and decide.
type ignore struct {
	root       *os.Root
	git, berth []rule
}

// rule is one pattern, from one line of an ignore file.
type rule struct {
	base    string // the folder of its file, "" for the top; "../x" for the folder x in a parent of the top
	keeps   bool   // a line that begins with !
	folders bool   // a line that ends with /
	name    *regexp.Regexp
}

// openIgnore reads the .gitignore files of the folders above, up to the root of the repository. A
// folder outside of any repository has no such files.
func openIgnore(root *os.Root, folder string) (*ignore, error) {
	g := &ignore{root: root}
	abs, err := filepath.Abs(folder)
	if err != nil {
		return nil, err
	}
	if abs, err = filepath.EvalSymlinks(abs); err != nil {
		return nil, err
	}
	var above []string
	for dir := abs; ; dir = filepath.Dir(dir) {
		if dir != abs {
			above = append(above, dir)
		}
		if _, err := os.Lstat(filepath.Join(dir, ".git")); err == nil {
			break
		}
		if dir == filepath.Dir(dir) {
			return g, nil // no repository
		}
	}
	for i := len(above) - 1; i >= 0; i-- {
		text, err := os.ReadFile(filepath.Join(above[i], gitIgnore))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		below, err := filepath.Rel(above[i], abs)
		if err != nil {
			return nil, err
		}
		// Names below this folder, seen from above, begin with the path from above to this
		// folder.
		g.git = append(g.git, parseRules(text, "../"+filepath.ToSlash(below))...)
	}
	return g, nil
}

// enter reads the patterns in a folder's own files. A walk must enter a folder before it matches
// names in the folder.
func (g *ignore) enter(dir string) error {
	if dir == "." {
		dir = ""
	}
	for name, to := range map[string]*[]rule{gitIgnore: &g.git, berthIgnore: &g.berth} {
		text, err := readIgnore(g.root, path.Join(dir, name))
		if err != nil {
			return err
		}
		*to = append(*to, parseRules(text, dir)...)
	}
	return nil
}

// readIgnore returns the content of an ignore file, nil for a missing one or for an entry that is
// no regular file. The root keeps a link from leading to a file outside.
func readIgnore(root *os.Root, name string) ([]byte, error) {
	f, err := root.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxIgnore+1))
	if err == nil && len(text) > maxIgnore {
		err = refused("%q is longer than %d bytes", name, maxIgnore)
	}
	return text, err
}

// match reports whether a name is excluded. The folder of the name must have been entered. As in
// git, an excluded folder hides its content: no later pattern can include a name below it.
func (g *ignore) match(name string, folder bool) bool {
	if path.Base(name) == ".git" || name == own {
		return true
	}
	for _, list := range [][]rule{g.berth, g.git} {
		for i := len(list) - 1; i >= 0; i-- { // the last matching line decides
			if list[i].matches(name, folder) {
				return !list[i].keeps
			}
		}
	}
	return false
}

// matches reports whether the pattern matches a name relative to the packed folder. Patterns
// apply only below the folder of their file.
func (r rule) matches(name string, folder bool) bool {
	if r.folders && !folder {
		return false
	}
	// A file of a folder above: its patterns see the name with the path down to this folder.
	if down, above := strings.CutPrefix(r.base, "../"); above {
		return r.name.MatchString(down + "/" + name)
	}
	if r.base != "" {
		below, ok := strings.CutPrefix(name, r.base+"/")
		if !ok {
			return false
		}
		name = below
	}
	return r.name.MatchString(name)
}

// parseRules parses an ignore file. Lines without a valid pattern are skipped.
func parseRules(text []byte, base string) []rule {
	var all []rule
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	for line := range strings.Lines(string(text)) {
		if r, ok := parseRule(strings.TrimRight(line, "\r\n")); ok {
			r.base = base
			all = append(all, r)
		}
	}
	return all
}

// parseRule parses one line. ok is false for comments, empty lines and invalid patterns. A
// pattern with a slash applies to the path below its file's folder; any other to a name at any
// depth.
func parseRule(line string) (r rule, ok bool) {
	if strings.HasPrefix(line, "#") {
		return r, false
	}
	// Spaces at the end count only behind a backslash.
	for strings.HasSuffix(line, " ") && !strings.HasSuffix(line, `\ `) {
		line = line[:len(line)-1]
	}
	line, r.keeps = strings.CutPrefix(line, "!")
	line, r.folders = strings.CutSuffix(line, "/")
	if line == "" {
		return r, false
	}
	anywhere := !strings.Contains(line, "/")
	line = strings.TrimPrefix(line, "/")
	text, ok := translate(line)
	if !ok {
		return r, false
	}
	if anywhere {
		text = "(?:.*/)?" + text
	}
	var err error
	r.name, err = regexp.Compile("(?s)^" + text + "$")
	return r, err == nil
}

// translate translates a pattern into a regular expression. ok is false for a pattern that
// matches nothing, as one with an unclosed bracket.
func translate(p string) (text string, ok bool) {
	var b strings.Builder
	for i := 0; i < len(p); {
		switch rest := p[i:]; {
		case strings.HasPrefix(rest, "**/") && (i == 0 || p[i-1] == '/'):
			b.WriteString("(?:.*/)?")
			i += 3
		case rest == "**" && i > 0 && p[i-1] == '/':
			b.WriteString(".+")
			i += 2
		case rest[0] == '*':
			b.WriteString("[^/]*")
			i++
		case rest[0] == '?':
			b.WriteString("[^/]")
			i++
		case rest[0] == '[':
			class, n := bracket(rest)
			if n == 0 {
				return "", false
			}
			b.WriteString(class)
			i += n
		case rest[0] == '\\':
			if len(rest) == 1 {
				return "", false
			}
			_, n := utf8.DecodeRuneInString(rest[1:])
			b.WriteString(regexp.QuoteMeta(rest[1 : 1+n]))
			i += 1 + n
		default:
			_, n := utf8.DecodeRuneInString(rest)
			b.WriteString(regexp.QuoteMeta(rest[:n]))
			i += n
		}
	}
	return b.String(), true
}

// bracket translates a character class such as [a-z] or [!a-z]. A negated class never
// matches a slash. n is the length of the class in the pattern, 0 for an unclosed class.
func bracket(p string) (class string, n int) {
	var b strings.Builder
	b.WriteByte('[')
	i := 1
	if i < len(p) && (p[i] == '!' || p[i] == '^') {
		b.WriteString("^/")
		i++
	}
	for first := true; i < len(p); first = false {
		c, n := utf8.DecodeRuneInString(p[i:])
		switch {
		case c == ']' && !first:
			b.WriteByte(']')
			return b.String(), i + 1
		case strings.HasPrefix(p[i:], "[:"):
			end := strings.Index(p[i:], ":]")
			if end < 0 {
				return "", 0
			}
			b.WriteString(p[i : i+end+2])
			i += end + 2
			continue
		case c == '\\' && i+1 < len(p):
			i++
			c, n = utf8.DecodeRuneInString(p[i:])
			b.WriteString(quoteInClass(c))
		case c == '-':
			b.WriteByte('-')
		default:
			b.WriteString(quoteInClass(c))
		}
		i += n
	}
	return "", 0
}

// quoteInClass escapes a character that has a meaning inside a class of the regexp package.
func quoteInClass(c rune) string {
	if strings.ContainsRune(`[]\^-&~`, c) {
		return `\` + string(c)
	}
	return string(c)
}
