package flags

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/spf13/pflag"
)

// fileFlag is the name of the flag that File declares. It is not "config": BERTH_CONFIG names the file of the
// command line's contexts, which operators export on the hosts where they run berthd's commands, too.
const fileFlag = "settings-file"

// File declares the file of settings. The file at path is read if it exists; a file that the
// command line or the environment names must exist, and "" reads none.
func File(f *pflag.FlagSet, path string) {
	f.String(fileFlag, path,
		"YAML file with settings: the keys are the names of flags; a missing file is an error only if it is named "+
			"(\"\": no file)")
}

// Load completes the flags of a parsed command line: first from the environment (FromEnvironment), then
// from the file of --settings-file, if f has that flag. known holds all flags of the program: their names are
// the keys of the file, and f may have fewer of them. The error has every fault.
func Load(f, known *pflag.FlagSet, lookup func(string) (string, bool)) error {
	err := FromEnvironment(f, lookup)
	named := f.Lookup(fileFlag)
	if named == nil || named.Value.String() == "" {
		return err
	}
	path := named.Value.String()
	text, failed := os.ReadFile(path)
	switch {
	case !named.Changed && (errors.Is(failed, fs.ErrNotExist) || hidden(path)):
		return err
	case failed != nil:
		return errors.Join(err, fmt.Errorf("settings file: %w (--settings-file '' reads none)", failed))
	}
	settings, faults := parseFile(path, text, known)
	for _, s := range settings {
		if failed := s.apply(f); failed != nil {
			faults = append(faults, fmt.Errorf("%s:%d: %w", path, s.line, failed))
		}
	}
	return errors.Join(append([]error{err}, faults...)...)
}

// hidden reports whether this process cannot find out whether a file exists, since it may not search the folder. A
// folder of that kind is from before settings files, and the service gets its settings otherwise.
func hidden(path string) bool {
	_, err := os.Stat(path)
	return errors.Is(err, fs.ErrPermission)
}

// setting is one key of a file.
type setting struct {
	key    string
	line   int
	values []string // of a list, or one
	kind   ast.NodeType
}

// parseFile reads the settings in a file, and returns the well-formed ones with the faults of the others.
func parseFile(path string, text []byte, known *pflag.FlagSet) (settings []setting, faults []error) {
	body, err := document(text)
	if err != nil {
		return nil, []error{fmt.Errorf("%s: %w", path, err)}
	}
	for _, entry := range entries(body) {
		line := entry.Key.GetToken().Position.Line
		fault := func(format string, args ...any) {
			faults = append(faults, fmt.Errorf("%s:%d: "+format, append([]any{path, line}, args...)...))
		}
		key := scalar(entry.Key)
		switch {
		case key == nil:
			fault("a key must be the name of a flag")
			continue
		case known.Lookup(*key) == nil || slices.Contains([]string{fileFlag, "help", "version"}, *key):
			fault("%q is not a setting%s", *key, suggestion(*key, known))
			continue
		}
		s := setting{key: *key, line: line, kind: entry.Value.Type()}
		if s.values, err = values(entry.Value); err != nil {
			fault("%s: %w", s.key, err)
			continue
		}
		settings = append(settings, s)
	}
	return settings, faults
}

// document returns the only document in a text, nil for an empty one. The parser has panicked on odd
// input before; a bad file must become an error all the same.
func document(text []byte) (body ast.Node, err error) {
	defer func() {
		if r := recover(); r != nil {
			body, err = nil, fmt.Errorf("cannot be parsed as YAML: %v", r)
		}
	}()
	file, err := parser.ParseBytes(text, 0)
	if err != nil {
		// Without the lines of the file, which may hold passwords: the text goes into logs.
		return nil, fmt.Errorf("not YAML: %s", strings.TrimSpace(yaml.FormatError(err, false, false)))
	}
	for _, d := range file.Docs {
		switch {
		case d.Body == nil || d.Body.Type() == ast.CommentType:
		case body != nil:
			return nil, fmt.Errorf("line %d: a second document starts here; write one",
				d.Body.GetToken().Position.Line)
		default:
			body = d.Body
		}
	}
	switch body.(type) {
	case nil, *ast.NullNode, *ast.MappingNode, *ast.MappingValueNode:
		return body, nil
	}
	return nil, fmt.Errorf("line %d: write settings as KEY: VALUE", body.GetToken().Position.Line)
}

// entries returns the keys of a mapping with their values.
func entries(n ast.Node) []*ast.MappingValueNode {
	switch n := n.(type) {
	case *ast.MappingNode:
		return n.Values
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}
	}
	return nil
}

// values returns the texts of a value: one of a scalar, one for each item of a list, or KEY=VALUE for each entry of a
// mapping.
func values(n ast.Node) ([]string, error) {
	if s := scalar(n); s != nil {
		return []string{*s}, nil
	}
	var list []string
	switch n := n.(type) {
	case *ast.NullNode:
		return nil, errors.New(`there is no value; write one, or remove the key ("" is an empty text)`)
	case *ast.SequenceNode:
		for _, item := range n.Values {
			s := scalar(item)
			if s == nil {
				return nil, errors.New("an item of a list must be a text or a number")
			}
			list = append(list, *s)
		}
		return list, nil
	case *ast.MappingNode, *ast.MappingValueNode:
		for _, entry := range entries(n) {
			key, value := scalar(entry.Key), scalar(entry.Value)
			if key == nil || value == nil {
				return nil, errors.New("an entry of a mapping must be KEY: VALUE")
			}
			list = append(list, *key+"="+*value)
		}
		return list, nil
	}
	return nil, errors.New("write a text, a number, true, false or a list")
}

// scalar returns the text of a scalar as it is written, and nil for other nodes. A key is a scalar too.
func scalar(n ast.Node) *string {
	switch n := n.(type) {
	case *ast.StringNode:
		return &n.Value
	case *ast.LiteralNode:
		return &n.Value.Value
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return &n.GetToken().Value
	}
	return nil
}

// apply sets the flag of a setting, unless f lacks it or has it from the command line or the environment.
func (s setting) apply(f *pflag.FlagSet) error {
	flag := f.Lookup(s.key)
	if flag == nil || isSet(f, flag) {
		return nil
	}
	list, lists := flag.Value.(pflag.SliceValue)
	switch {
	case s.kind == ast.SequenceType && lists:
		flag.Changed = true
		if err := list.Replace(s.values); err != nil {
			return fmt.Errorf("%s: %w", s.key, err)
		}
		return nil
	case s.kind == ast.SequenceType:
		return fmt.Errorf("%s: a list is not allowed here; write one value", s.key)
	case flag.Value.Type() == "stringToString" && len(s.values) > 0:
		return f.Set(s.key, record(s.values))
	case s.kind == ast.MappingType || s.kind == ast.MappingValueType:
		return fmt.Errorf("%s: a mapping is not allowed here; write one value", s.key)
	}
	return f.Set(s.key, s.values[0])
}

// isSet reports whether a flag has a value other than its default, under either of its names.
func isSet(f *pflag.FlagSet, flag *pflag.Flag) bool {
	for _, other := range slices.Concat(flag.Annotations[former], flag.Annotations[present]) {
		if f.Lookup(other).Changed {
			return true
		}
	}
	return flag.Changed
}

// record joins values to one line of CSV, which pflag splits again.
func record(values []string) string {
	var b strings.Builder
	w := csv.NewWriter(&b)
	_ = w.Write(values) // to memory
	w.Flush()
	return strings.TrimSuffix(b.String(), "\n")
}

// suggestion returns the names of flags that a misspelt key may have meant, as the end of an error.
func suggestion(key string, known *pflag.FlagSet) string {
	best, names := 1+len(key)/4, []string(nil)
	known.VisitAll(func(flag *pflag.Flag) {
		if flag.Hidden || flag.Name == fileFlag {
			return
		}
		switch n := distance(strings.ReplaceAll(key, "_", "-"), flag.Name); {
		case n < best:
			best, names = n, []string{flag.Name}
		case n == best:
			names = append(names, flag.Name)
		}
	})
	if len(names) == 0 {
		return "; the settings are the names of the flags in --help"
	}
	return "; did you mean " + strings.Join(names[:min(3, len(names))], " or ") + "?"
}

// distance is the number of letters to insert, delete or replace that turns a into b (Levenshtein).
func distance(a, b string) int {
	last := make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+change)
		}
		last = row
	}
	return last[len(b)]
}
