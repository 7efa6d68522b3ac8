package jobfile

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"berth"
	"berth/spec"
)

// maxSteps bounds the decoded values, counting the values behind each alias again: a few
// nested aliases could otherwise expand a short file into millions of values.
const maxSteps = 200_000

// decoder decodes a tree into a Go value by its JSON tags, and records every fault and
// every place on the way. It goes on after a fault, so that one run shows all faults.
type decoder struct {
	faults []Fault
	places map[string]place // by path: of a scalar, or of the key of a mapping or list
	steps  int
}

// fault records a fault of the field at path.
func (d *decoder) fault(at place, path, detail, allowed string) {
	d.faults = append(d.faults, Fault{Line: at.line, Column: at.column, Width: at.width,
		FieldError: berth.FieldError{Field: path, Detail: detail, Allowed: allowed}})
}

// wrongKind records a value of the wrong kind. A scalar is quoted, so that the user sees
// the text as it was parsed.
func (d *decoder) wrongKind(n *node, path, want string) {
	got := n.kind.String()
	if n.kind == text || n.kind == number || n.kind == boolean {
		got = strconv.Quote(shorten(n.text))
	}
	d.fault(n.at, path, "expected "+want+", got "+got, "")
}

// value decodes n into v. A null leaves v unset, as a missing field does.
func (d *decoder) value(n *node, v reflect.Value, path string) {
	if d.steps++; d.steps > maxSteps {
		if d.steps == maxSteps+1 {
			d.fault(n.at, path, fmt.Sprintf("the file has more than %d values with its aliases", maxSteps), "")
		}
		return
	}
	// Remember the place even of a null: a missing required value is shown there.
	d.places[path] = n.at
	if n.kind == null {
		return
	}
	if u, ok := v.Addr().Interface().(json.Unmarshaler); ok {
		d.custom(n, u, v, path)
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.value(n, v.Elem(), path)
	case reflect.Struct:
		d.structure(n, v, path)
	case reflect.Map:
		d.mapping(n, v, path)
	case reflect.Slice:
		d.list(n, v, path)
	case reflect.String:
		d.text(n, v, path)
	case reflect.Bool:
		d.boolean(n, v, path)
	case reflect.Int:
		d.integer(n, v, path)
	case reflect.Float64:
		d.decimal(n, v, path)
	default:
		panic(fmt.Sprintf("a job spec has a %s at %s, which job files cannot hold", v.Kind(), path))
	}
}

// present is value for the entries of maps and lists: `- ~` and `KEY:` are slips, not a
// wish for the default.
func (d *decoder) present(n *node, v reflect.Value, path string) {
	if n.kind == null {
		d.fault(n.at, path, "has no value", `write "" for an empty text`)
		return
	}
	d.value(n, v, path)
}

// structure decodes a mapping into a struct. A written zero is a fault for a field whose
// zero stands for the default; see spec.ExplicitZero.
func (d *decoder) structure(n *node, v reflect.Value, path string) {
	if n.kind == list && v.Type() == reflect.TypeFor[spec.Resources]() { // as some other schedulers write it
		d.fault(n.at, path, "expected a mapping, got a list",
			"one mapping, and the other hardware in alternatives: [{after: 10m, gpu_type: A100}]")
		return
	}
	if n.kind != mapping {
		d.wrongKind(n, path, "a mapping with "+andList(fieldNames(v.Type())))
		return
	}
	d.eachEntry(n, path, func(e entry, at string) {
		i, ok := fieldIndex(v.Type(), e.key)
		if !ok {
			d.unknown(e, v.Type(), path)
			return
		}
		before := len(d.faults)
		d.value(e.value, v.Field(i), at)
		if e.value.kind == null || len(d.faults) > before {
			return
		}
		if f, ok := spec.ExplicitZero(v.Type().Field(i), v.Field(i)); ok {
			d.fault(e.value.at, at, f.Detail, f.Allowed)
		}
	})
}

// mapping decodes a mapping into a map; its keys are free text.
func (d *decoder) mapping(n *node, v reflect.Value, path string) {
	if n.kind != mapping {
		d.wrongKind(n, path, "a mapping such as {KEY: value}")
		return
	}
	v.Set(reflect.MakeMapWithSize(v.Type(), len(n.entries)))
	d.eachEntry(n, path, func(e entry, at string) {
		value := reflect.New(v.Type().Elem()).Elem()
		d.present(e.value, value, at)
		v.SetMapIndex(reflect.ValueOf(e.key).Convert(v.Type().Key()), value)
	})
}

// eachEntry visits the entries of a mapping and refuses keys that repeat. The place of a
// list, a mapping or a null becomes the place of its key, where a reader looks for the
// field.
func (d *decoder) eachEntry(n *node, path string, visit func(e entry, at string)) {
	first := make(map[string]int, len(n.entries))
	for _, e := range n.entries {
		at := join(path, e.key)
		if line, repeated := first[e.key]; repeated {
			d.fault(e.at, at, fmt.Sprintf("is set twice, first on line %d", line), "keep one")
			continue
		}
		first[e.key] = e.at.line
		visit(e, at)
		if e.value.kind == list || e.value.kind == mapping || e.value.kind == null {
			d.places[at] = e.at
		}
	}
}

// list decodes a list. For text where a list of texts is wanted, the fault shows the
// words of the text as a list, since that is the usual mistake with commands.
func (d *decoder) list(n *node, v reflect.Value, path string) {
	if n.kind != list {
		want := "a list such as [a, b]"
		if n.kind == text && v.Type().Elem().Kind() == reflect.String {
			want = "a list such as [" + strings.Join(strings.Fields(shorten(n.text)), ", ") + "]"
		}
		d.wrongKind(n, path, want)
		return
	}
	out := reflect.MakeSlice(v.Type(), len(n.items), len(n.items))
	for i, item := range n.items {
		d.present(item, out.Index(i), fmt.Sprintf("%s[%d]", path, i))
	}
	v.Set(out)
}

// text decodes any scalar in the user's spelling: 20 and yes are texts here.
func (d *decoder) text(n *node, v reflect.Value, path string) {
	if line, ok := unquoted(n); ok {
		d.fault(n.at, path, strconv.Quote(line)+" is read as a mapping", "quote it: "+quoted(line))
		return
	}
	if n.kind == list || n.kind == mapping {
		d.wrongKind(n, path, "text")
		return
	}
	v.SetString(n.text)
}

// unquoted returns the text of a mapping with one scalar, which YAML reads from an unquoted
// text with a colon; ok is false for any other value.
func unquoted(n *node) (line string, ok bool) {
	if n.kind != mapping || len(n.entries) != 1 {
		return "", false
	}
	e := n.entries[0]
	if k := e.value.kind; k == list || k == mapping || k == null {
		return "", false
	}
	return e.key + ": " + e.value.text, true
}

// quoted writes a text as a quoted YAML scalar.
func quoted(s string) string {
	if strings.ContainsAny(s, "'\n") {
		return strconv.Quote(s)
	}
	return "'" + s + "'"
}

func (d *decoder) boolean(n *node, v reflect.Value, path string) {
	if n.kind != boolean {
		d.wrongKind(n, path, "true or false")
		return
	}
	v.SetBool(strings.EqualFold(n.text, "true"))
}

func (d *decoder) integer(n *node, v reflect.Value, path string) {
	i, err := strconv.Atoi(n.text)
	if n.kind != number || err != nil {
		d.wrongKind(n, path, "a whole number")
		return
	}
	v.SetInt(int64(i))
}

func (d *decoder) decimal(n *node, v reflect.Value, path string) {
	f, err := strconv.ParseFloat(n.text, 64)
	if n.kind != number || err != nil {
		d.wrongKind(n, path, "a number")
		return
	}
	v.SetFloat(f)
}

// custom passes the value to a type that reads its own JSON. The type's error describes
// the fault; custom adds the place.
func (d *decoder) custom(n *node, u json.Unmarshaler, v reflect.Value, path string) {
	if n.kind == mapping || n.kind == list && v.Kind() != reflect.Slice {
		d.wrongKind(n, path, "one value")
		return
	}
	raw, err := rawJSON(n)
	if err == nil {
		err = u.UnmarshalJSON(raw)
	}
	if err != nil {
		name := path[strings.LastIndexByte(path, '.')+1:]
		d.fault(n.at, path, strings.TrimPrefix(err.Error(), name+" "), "")
		return
	}
	for i, item := range n.items {
		d.places[fmt.Sprintf("%s[%d]", path, i)] = item.at
	}
}

// rawJSON writes a scalar, or a list of scalars, as JSON. A number keeps its spelling, so
// that a type can distinguish 90 and "90". YAML numbers that JSON lacks, such as 0x10,
// become text.
func rawJSON(n *node) ([]byte, error) {
	switch n.kind {
	case number, boolean:
		if json.Valid([]byte(n.text)) {
			return []byte(n.text), nil
		}
		return json.Marshal(n.text)
	case null, text:
		return json.Marshal(n.text)
	case list:
		texts := make([]string, len(n.items))
		for i, item := range n.items {
			if item.kind == list || item.kind == mapping || item.kind == null {
				return nil, fmt.Errorf("entry %d is %s, but must be text", i+1, item.kind)
			}
			texts[i] = item.text
		}
		return json.Marshal(texts)
	case mapping:
		return nil, fmt.Errorf("expected one value, got a mapping")
	default:
		panic(fmt.Sprintf("unknown kind %d", int(n.kind)))
	}
}

// join appends a key to the path of a field, such as resources.gpus.
func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// shorten cuts a text for a fault to 60 characters.
func shorten(s string) string {
	const most = 60
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}
