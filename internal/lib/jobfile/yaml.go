package jobfile

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// maxDepth bounds nesting. A job file needs five levels; without a bound, a file of
// brackets costs the parser a stack as deep as the file is long.
const maxDepth = 64

// maxLines bounds the parser's input: its work grows with the square of the lines of a
// mapping (10,000 take a second). JSON has no such bound.
const maxLines = 10_000

// maxMerged bounds the copies of `<<`, so that a short file cannot cause much work.
const maxMerged = 100_000

// parseYAML returns the tree of the only document in src, nil for an empty text.
func parseYAML(src string) (root *node, err error) {
	if at, deep := tooDeep(src); deep {
		return nil, &syntaxError{at: at, detail: fmt.Sprintf("nested deeper than %d levels", maxDepth)}
	}
	if lines := strings.Count(src, "\n"); lines > maxLines {
		return nil, &syntaxError{at: place{line: maxLines + 1, column: 1},
			detail: fmt.Sprintf("the file has %d lines; a YAML file has at most %d, JSON any number", lines, maxLines)}
	}
	// The parser is a dependency that has panicked on odd input before; a bad file must
	// become an error message all the same.
	defer func() {
		if r := recover(); r != nil {
			root, err = nil, &syntaxError{detail: fmt.Sprintf("cannot be parsed as YAML: %v", r)}
		}
	}()
	file, err := parser.ParseBytes([]byte(src), 0, parser.AllowDuplicateMapKey())
	if err != nil {
		return nil, yamlSyntax(err)
	}
	var body ast.Node
	for _, doc := range file.Docs {
		switch {
		case doc.Body == nil:
		case body == nil:
			body = doc.Body
		default:
			return nil, &syntaxError{at: placeOf(firstToken(doc.Body)),
				detail: "a second document starts here, but a job file contains one job; put each job into its " +
					"own file"}
		}
	}
	if body == nil {
		return nil, nil
	}
	t := yamlTree{anchors: map[string]*node{}}
	return t.convert(body)
}

// tooDeep finds nesting that would make the parser recurse too deep: open brackets, and
// list dashes in a row. It must run before the parser, since a Go stack that overflows
// ends the process. Nesting by indentation bounds itself.
func tooDeep(src string) (place, bool) {
	const most = 8 * maxDepth // a script in a text may hold some brackets
	depth, number := 0, 0
	for line := range strings.SplitSeq(src, "\n") {
		number++
		dashes := strings.TrimLeft(line, "-?: \t")
		for _, c := range []byte(line) {
			switch c {
			case '[', '{':
				depth++
			case ']', '}':
				depth = max(0, depth-1)
			}
			if depth > most {
				return place{line: number, column: 1}, true
			}
		}
		if marks := line[:len(line)-len(dashes)]; strings.Count(marks, "-")+strings.Count(marks, "?") > most {
			return place{line: number, column: 1}, true
		}
	}
	return place{}, false
}

// yamlSyntax converts an error of the parser, with its place.
func yamlSyntax(err error) error {
	var e yaml.Error
	if !errors.As(err, &e) {
		return &syntaxError{detail: "not YAML: " + err.Error()}
	}
	return &syntaxError{at: placeOf(e.GetToken()), detail: "not YAML: " + e.GetMessage()}
}

// placeOf is the place of a token; the mark covers the first line of the token only.
func placeOf(t *token.Token) place {
	if t == nil || t.Position == nil {
		return place{}
	}
	return place{line: t.Position.Line, column: t.Position.Column,
		width: utf8.RuneCountInString(firstLine(strings.TrimSpace(t.Origin)))}
}

// firstToken is the token at which a node begins: the parser's token of a mapping is the
// colon after its first key.
func firstToken(n ast.Node) *token.Token {
	switch n := n.(type) {
	case *ast.MappingNode:
		if !n.IsFlowStyle && len(n.Values) > 0 {
			return firstToken(n.Values[0].Key)
		}
	case *ast.MappingValueNode:
		return firstToken(n.Key)
	}
	return n.GetToken()
}

// firstLine is the text up to the first line feed.
func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// yamlTree converts the parser's tree into nodes. An alias shares the node of its anchor;
// the decoder bounds how often an alias is followed.
type yamlTree struct {
	anchors map[string]*node
	depth   int
	merged  int
}

// convert converts one node of the parser's tree. Numbers and booleans keep the text that
// the user wrote, since the field's type decides on the meaning.
func (t *yamlTree) convert(n ast.Node) (*node, error) {
	if t.depth++; t.depth > maxDepth {
		return nil, &syntaxError{at: placeOf(n.GetToken()),
			detail: fmt.Sprintf("nested deeper than %d levels", maxDepth)}
	}
	defer func() { t.depth-- }()
	at := placeOf(firstToken(n))
	switch n := n.(type) {
	case *ast.NullNode:
		return &node{kind: null, text: n.Token.Value, at: at}, nil
	case *ast.BoolNode:
		return &node{kind: boolean, text: n.Token.Value, at: at}, nil
	case *ast.IntegerNode:
		return &node{kind: number, text: n.Token.Value, at: at}, nil
	case *ast.FloatNode:
		return &node{kind: number, text: n.Token.Value, at: at}, nil
	case *ast.InfinityNode:
		return &node{kind: number, text: n.Token.Value, at: at}, nil
	case *ast.NanNode:
		return &node{kind: number, text: n.Token.Value, at: at}, nil
	case *ast.StringNode:
		return &node{kind: text, text: n.Value, at: at}, nil
	case *ast.LiteralNode:
		return &node{kind: text, text: n.Value.Value, at: at}, nil
	case *ast.SequenceNode:
		return t.list(n, at)
	case *ast.MappingNode:
		return t.mapping(n.Values, at)
	case *ast.MappingValueNode:
		return t.mapping([]*ast.MappingValueNode{n}, at)
	case *ast.AnchorNode:
		return t.anchor(n, at)
	case *ast.AliasNode:
		return t.alias(n, at)
	case *ast.TagNode:
		return t.tagged(n, at)
	default:
		return nil, &syntaxError{at: at, detail: fmt.Sprintf("a %s has no meaning here", n.Type().YAMLName())}
	}
}

// list converts a sequence.
func (t *yamlTree) list(n *ast.SequenceNode, at place) (*node, error) {
	out := &node{kind: list, at: at}
	for _, v := range n.Values {
		item, err := t.convert(v)
		if err != nil {
			return nil, err
		}
		out.items = append(out.items, item)
	}
	return out, nil
}

// mapping converts a mapping. Merge keys are applied after the mapping's own keys, which
// take precedence.
func (t *yamlTree) mapping(values []*ast.MappingValueNode, at place) (*node, error) {
	out := &node{kind: mapping, at: at}
	var merged []*node
	for _, v := range values {
		value, err := t.convert(v.Value)
		if err != nil {
			return nil, err
		}
		if v.Key.IsMergeKey() {
			merged = append(merged, value)
			continue
		}
		key, err := t.key(v.Key)
		if err != nil {
			return nil, err
		}
		out.entries = append(out.entries, entry{key: key.text, at: key.at, value: value})
	}
	if err := t.merge(out, merged); err != nil {
		return nil, err
	}
	return out, nil
}

// key reads a mapping key, which must be a plain value.
func (t *yamlTree) key(k ast.MapKeyNode) (*node, error) {
	var inner ast.Node = k
	if explicit, ok := k.(*ast.MappingKeyNode); ok {
		inner = explicit.Value
	}
	key, err := t.convert(inner)
	if err != nil {
		return nil, err
	}
	if key.kind == list || key.kind == mapping {
		return nil, &syntaxError{at: key.at, detail: key.kind.String() + " cannot be a key"}
	}
	return key, nil
}

// merge adds the entries of `<<` values that the mapping itself lacks (YAML merge key,
// https://yaml.org/type/merge.html).
func (t *yamlTree) merge(into *node, from []*node) error {
	if len(from) == 0 {
		return nil
	}
	have := map[string]bool{}
	for _, e := range into.entries {
		have[e.key] = true
	}
	for _, m := range flatten(from) {
		if m.kind != mapping {
			return &syntaxError{at: m.at, detail: "<< takes a mapping or a list of mappings"}
		}
		if t.merged += len(m.entries); t.merged > maxMerged {
			return &syntaxError{at: m.at, detail: fmt.Sprintf("<< brings in more than %d entries", maxMerged)}
		}
		for _, e := range m.entries {
			if !have[e.key] {
				have[e.key] = true
				into.entries = append(into.entries, e)
			}
		}
	}
	return nil
}

// flatten opens the lists among the values of `<<`.
func flatten(from []*node) []*node {
	var out []*node
	for _, m := range from {
		if m.kind == list {
			out = append(out, m.items...)
		} else {
			out = append(out, m)
		}
	}
	return out
}

// anchor stores the node of an anchor. The name is stored after the value is converted,
// so an anchor cannot contain an alias of itself, and the tree has no cycles.
func (t *yamlTree) anchor(n *ast.AnchorNode, at place) (*node, error) {
	value, err := t.convert(n.Value)
	if err != nil {
		return nil, err
	}
	if n.Name == nil {
		return nil, &syntaxError{at: at, detail: "an anchor has no name"}
	}
	t.anchors[n.Name.GetToken().Value] = value
	return value, nil
}

// alias returns the node of the anchor, which must stand before its alias.
func (t *yamlTree) alias(n *ast.AliasNode, at place) (*node, error) {
	if n.Value == nil {
		return nil, &syntaxError{at: at, detail: "an alias has no name"}
	}
	name := n.Value.GetToken().Value
	value, ok := t.anchors[name]
	if !ok {
		return nil, &syntaxError{at: at, detail: fmt.Sprintf("alias *%s has no anchor &%s before it", name, name)}
	}
	return value, nil
}

// tagged reads the few tags that only repeat the type of a value.
func (t *yamlTree) tagged(n *ast.TagNode, at place) (*node, error) {
	if n.Value == nil {
		return nil, &syntaxError{at: at, detail: "a tag stands before nothing"}
	}
	value, err := t.convert(n.Value)
	if err != nil {
		return nil, err
	}
	switch tag := n.Start.Value; tag {
	case "!!str":
		if value.kind == list || value.kind == mapping {
			return nil, &syntaxError{at: at, detail: "!!str stands before " + value.kind.String()}
		}
		out := *value
		out.kind = text
		return &out, nil
	case "!!int", "!!float", "!!bool", "!!null", "!!map", "!!seq":
		return value, nil
	default:
		return nil, &syntaxError{at: at,
			detail: fmt.Sprintf("tag %s is not known (allowed: !!str and the other plain YAML tags)", tag)}
	}
}
