package main

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
)

// yamlDocument converts a JSON document to YAML, with the same names, values and order. Texts with characters that may
// steer a terminal are written with escapes; the document keeps its meaning. YAML allows few of them as they are, so a
// pipe gets the escapes as well.
func yamlDocument(document []byte) ([]byte, error) {
	plain, err := yaml.JSONToYAML(document)
	if err != nil || !bytes.ContainsFunc(plain, steersYAML) {
		return plain, err
	}
	var body any
	if err := yaml.UnmarshalWithOptions(document, &body, yaml.UseOrderedMap()); err != nil {
		return nil, err
	}
	node, err := yaml.ValueToNode(body)
	if err != nil {
		return nil, err
	}
	ast.Walk(escaper{}, node)
	return []byte(node.String() + "\n"), nil
}

// escaper writes texts of a YAML document with escapes where they may steer a terminal.
type escaper struct{}

// Visit escapes the text of one node. The encoder has quoted no text that still has such a character.
func (e escaper) Visit(node ast.Node) ast.Visitor {
	if text, ok := node.(*ast.StringNode); ok && strings.ContainsFunc(text.Value, steersYAML) {
		text.Value = strconv.Quote(text.Value)
	}
	return e
}

// steersYAML is unsafeRune for YAML, in which line feeds stand between the values and in texts of several lines.
func steersYAML(r rune) bool { return r != '\n' && unsafeRune(r) }
