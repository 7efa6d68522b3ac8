package api_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"berth/internal/lib/golden"
)

// description is the part of an OpenAPI document that the reference shows.
type description struct {
	Paths      map[string]map[string]operation
	Components struct{ Schemas map[string]schema }
}

type operation struct {
	Summary    string
	Tags       []string
	Parameters []struct {
		Name, In, Description string
		Required              bool
		Schema                schema
	}
	RequestBody struct {
		Required bool
		Content  map[string]struct{ Schema schema }
	}
	Responses map[string]struct {
		Description string
		Content     map[string]struct{ Schema schema }
	}
}

type schema struct {
	Ref         string `json:"$ref"`
	Type        any
	Format      string
	Description string
	Enum        []any
	Items       *schema
	OneOf       []schema
	Properties  map[string]schema
	Required    []string
	Additional  any `json:"additionalProperties"`
}

// docs/reference/http-api.md is generated from the OpenAPI description that the
// server publishes, so it cannot lag behind.
func TestTheReferenceIsTheDescription(t *testing.T) {
	t.Parallel()
	const path = "../docs/reference/http-api.md"
	a := newSite(t, nil).call("", "GET", "/openapi.json", "")
	var d description
	if err := json.Unmarshal([]byte(a.body), &d); err != nil {
		t.Fatal(err)
	}
	want := d.document()
	golden.Check(t, path, want)
}

func (d description) document() string {
	var b strings.Builder
	b.WriteString("# HTTP API\n" +
		"Generated from the OpenAPI description by `make generate`. A server publishes the same description at `/openapi.json`,\n" +
		"and a page to try calls at `/docs/`.\n\n" +
		"- A call carries its token in `Authorization: Bearer TOKEN`.\n" +
		"- Bodies are JSON. An unknown field is an error.\n" +
		"- Errors are `application/problem+json` ([Problem](#problem)) with a stable `code`.\n" +
		"- Answers 429 and 503 carry `Retry-After` in seconds. [Limits for callers](../operate/limits.md) lists the limits.\n")
	type call struct {
		method, path string
		operation
	}
	byTag := map[string][]call{}
	for path, methods := range d.Paths {
		for method, o := range methods {
			byTag[o.Tags[0]] = append(byTag[o.Tags[0]], call{strings.ToUpper(method), path, o})
		}
	}
	for _, tag := range slices.Sorted(maps.Keys(byTag)) {
		fmt.Fprintf(&b, "\n## Calls: %s\n", tag)
		slices.SortFunc(byTag[tag], func(x, y call) int {
			return cmp.Or(cmp.Compare(x.path, y.path), cmp.Compare(x.method, y.method))
		})
		for _, c := range byTag[tag] {
			fmt.Fprintf(&b, "\n### %s %s\n%s.\n", c.method, c.path, strings.TrimSuffix(c.Summary, "."))
			c.write(&b)
		}
	}
	b.WriteString("\n## Documents\nBodies and answers, by name.\n")
	for _, name := range slices.Sorted(maps.Keys(d.Components.Schemas)) {
		s := d.Components.Schemas[name]
		fmt.Fprintf(&b, "\n### %s\n", name)
		if len(s.Properties) == 0 {
			fmt.Fprintf(&b, "%s\n", s.name())
			continue
		}
		b.WriteString("| field | type | meaning |\n| --- | --- | --- |\n")
		for _, field := range slices.Sorted(maps.Keys(s.Properties)) {
			if field == "$schema" {
				continue
			}
			f, needed := s.Properties[field], ""
			if slices.Contains(s.Required, field) {
				needed = ", always"
			}
			fmt.Fprintf(&b, "| `%s` | %s%s | %s |\n", field, f.name(), needed, cell(f.Description))
		}
	}
	return b.String()
}

// write adds the parameters, the body and the answers of a call.
func (o operation) write(b *strings.Builder) {
	if len(o.Parameters) > 0 {
		b.WriteString("\n| parameter | in | type | meaning |\n| --- | --- | --- | --- |\n")
	}
	for _, p := range o.Parameters {
		needed := ""
		if p.Required {
			needed = ", required"
		}
		fmt.Fprintf(b, "| `%s` | %s%s | %s | %s |\n", p.Name, p.In, needed, p.Schema.name(), cell(p.Description))
	}
	b.WriteString("\n")
	for _, kind := range slices.Sorted(maps.Keys(o.RequestBody.Content)) {
		optional := ""
		if !o.RequestBody.Required {
			optional = ", may be left out"
		}
		fmt.Fprintf(b, "- Body (%s): %s%s.\n", kind, o.RequestBody.Content[kind].Schema.name(), optional)
	}
	for _, status := range slices.Sorted(maps.Keys(o.Responses)) {
		r := o.Responses[status]
		if status == "default" || status == "429" || status == "503" {
			continue
		}
		fmt.Fprintf(b, "- Answer %s: %s", status, strings.TrimSuffix(r.Description, "."))
		for _, kind := range slices.Sorted(maps.Keys(r.Content)) {
			fmt.Fprintf(b, ", %s (%s)", r.Content[kind].Schema.name(), kind)
		}
		b.WriteString(".\n")
	}
}

// name describes the type of a value: a link to a document, or JSON's own types.
func (s schema) name() string {
	if s.Ref != "" {
		name := s.Ref[strings.LastIndexByte(s.Ref, '/')+1:]
		return fmt.Sprintf("[%s](#%s)", name, strings.ToLower(name))
	}
	if len(s.OneOf) > 0 {
		var list []string
		for _, o := range s.OneOf {
			list = append(list, o.name())
		}
		return strings.Join(slices.Compact(list), " or ")
	}
	switch t := s.Type.(type) {
	case string:
		return s.named(t)
	case []any: // a type and null
		for _, one := range t {
			if text, ok := one.(string); ok && text != "null" {
				return s.named(text) + " or null"
			}
		}
	}
	return "any"
}

func (s schema) named(kind string) string {
	switch {
	case kind == "array" && s.Items != nil:
		return "list of " + s.Items.name()
	case len(s.Enum) > 0:
		var list []string
		for _, v := range s.Enum {
			list = append(list, fmt.Sprintf("`%v`", v))
		}
		return strings.Join(list, ", ")
	case s.Format != "":
		return kind + " (" + s.Format + ")"
	}
	return kind
}

// cell makes a text fit for a cell of a table.
func cell(text string) string {
	return strings.ReplaceAll(strings.ReplaceAll(text, "|", `\|`), "\n", " ")
}
