package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"reflect"
	"slices"
	"strings"

	"berth"
	"berth/spec"
)

// maxFaults bounds the list of faults in an error, so that an answer stays short.
const maxFaults = 100

// decode reads a JSON body into v and returns all its faults at once: unknown fields,
// values of the wrong kind, repeated keys. A text that is not JSON, or another media
// type, is an error instead.
func decode(contentType string, body []byte, v any) ([]berth.FieldError, error) {
	if contentType != "" {
		kind, _, err := mime.ParseMediaType(contentType)
		if err != nil || kind != "application/json" {
			return nil, &berth.Error{Code: berth.CodeInvalid, Slug: slugMediaType,
				Message: fmt.Sprintf("the body is %.60q: send application/json", contentType)}
		}
	}
	var raw json.RawMessage
	if err := json.Unmarshal(body, &raw); err != nil {
		return nil, berth.Errorf(berth.CodeInvalid, "the body is not JSON: %s", jsonFault(body, err))
	}
	d := &decoder{text: raw}
	d.decode(v)
	return d.faults, nil
}

// validated is a body that can list its own faults.
type validated interface{ Validate() []berth.FieldError }

// readValid reads a body and reports all its faults at once. defaults fills in missing
// fields; nil: none.
func readValid[T validated](in Request, defaults func(*T)) (T, error) {
	var v T
	faults, err := decode(in.ContentType, in.RawBody, &v)
	if err != nil {
		return v, err
	}
	if defaults != nil {
		defaults(&v)
	}
	return v, invalid(berth.SlugInvalidSpec, faults, v.Validate())
}

// jsonFault names the line and column, from 1, at which the text stops being JSON.
func jsonFault(body []byte, err error) string {
	s, ok := errors.AsType[*json.SyntaxError](err)
	if !ok {
		return "it is broken"
	}
	before := body[:min(int(s.Offset), len(body))]
	line := bytes.Count(before, []byte("\n")) + 1
	column := len(before) - bytes.LastIndexByte(before, '\n') - 1
	return fmt.Sprintf("line %d, column %d: %s", line, max(column, 1), s.Error())
}

// maxDepth bounds the nesting of values. Pipelines nest: too deep a pipeline must be read
// before it can be refused.
const maxDepth = 64

// decoder reads JSON into a Go value by reflection and collects the faults. It goes on
// after a fault, so that one answer lists them all, and stops once the list is full.
//
// Its time is linear in the length of the text, however deep values are nested: the ends of
// objects and lists are found once, and a level skips the levels below it.
type decoder struct {
	text   []byte // one valid JSON value without space around it
	opens  []int  // offsets of all { and [ outside of texts, ascending
	ends   []int  // by the same index: the offset after the matching } or ]
	passed int    // bytes of texts that were read to find their ends; it does not depend on the depth
	faults []berth.FieldError
	depth  int
}

// part is a value in the text of a decoder, from its first byte to the one after its last.
type part struct{ from, to int }

// of returns the bytes of a part. Readers cannot extend them into the text.
func (d *decoder) of(p part) json.RawMessage { return d.text[p.from:p.to:p.to] }

// full reports whether further faults would be left out: the body is refused in any case.
func (d *decoder) full() bool { return len(d.faults) >= maxFaults }

// fault records a fault, up to maxFaults.
func (d *decoder) fault(path, detail, allowed string) {
	if len(d.faults) < maxFaults {
		d.faults = append(d.faults, berth.FieldError{Field: path, Detail: detail, Allowed: allowed})
	}
}

// decode decodes the text into the variable that v points to.
func (d *decoder) decode(v any) {
	d.index()
	d.value(part{0, len(d.text)}, reflect.ValueOf(v).Elem(), "")
}

// value decodes a part into v. A null leaves a field unset, as its absence does.
func (d *decoder) value(p part, v reflect.Value, path string) {
	raw := d.of(p)
	if string(raw) == "null" {
		return
	}
	if d.depth++; d.depth > maxDepth {
		d.depth--
		d.fault(clip(path), "is nested too deep", fmt.Sprintf("%d levels", maxDepth))
		return
	}
	defer func() { d.depth-- }()
	// Types with a notation of their own, such as sizes and durations, read themselves.
	if u, ok := v.Addr().Interface().(json.Unmarshaler); ok {
		if err := u.UnmarshalJSON(raw); err != nil {
			d.fault(path, clip(err.Error()), "")
		}
		d.textual(v, path)
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.value(p, v.Elem(), path)
	case reflect.Struct:
		d.structure(p, v, path)
	case reflect.Map:
		d.mapping(p, v, path)
	case reflect.Slice:
		d.list(p, v, path)
	default:
		d.scalar(raw, v, path)
	}
}

// structure decodes an object into a struct by its JSON tags. A key without a field is a
// fault that lists the fields.
func (d *decoder) structure(p part, v reflect.Value, path string) {
	d.members(p, path, func(key string, value part) {
		for i := range v.NumField() {
			if jsonName(v.Type().Field(i)) == key {
				d.field(value, v.Type().Field(i), v.Field(i), join(path, key))
				return
			}
		}
		d.fault(join(path, clip(key)), "is not a field", fieldNames(v.Type()))
	})
}

// field is value for a field of a structure, where an explicit zero may be a fault: some
// fields use zero for "not set", so a written zero would silently become the default.
func (d *decoder) field(p part, f reflect.StructField, v reflect.Value, path string) {
	before := len(d.faults)
	d.value(p, v, path)
	if string(d.of(p)) == "null" || len(d.faults) > before {
		return
	}
	if fault, ok := spec.ExplicitZero(f, v); ok {
		d.fault(path, fault.Detail, fault.Allowed)
	}
}

// mapping decodes an object into a map. Keys with a NUL are faults: the database cannot
// store such text.
func (d *decoder) mapping(p part, v reflect.Value, path string) {
	v.Set(reflect.MakeMap(v.Type()))
	d.members(p, path, func(key string, value part) {
		item := reflect.New(v.Type().Elem()).Elem()
		d.present(value, item, join(path, key))
		if strings.ContainsRune(key, 0) {
			d.fault(join(path, clip(key)), "has a NUL", "text without NUL")
			return
		}
		v.SetMapIndex(reflect.ValueOf(key).Convert(v.Type().Key()), item)
	})
}

// members visits an object's members in order and refuses keys that repeat: of two values
// for one field, one would be ignored in silence.
func (d *decoder) members(p part, path string, visit func(key string, value part)) {
	if d.text[p.from] != '{' {
		d.fault(path, "is "+kindOf(d.of(p)), "an object")
		return
	}
	seen := map[string]bool{}
	for at := d.skipSpace(p.from + 1); d.text[at] != '}' && !d.full(); {
		name := part{at, d.end(at)}
		at = d.skipSpace(d.skipSpace(name.to) + 1) // the colon
		value := part{at, d.end(at)}
		at = d.next(value.to)
		var key string
		_ = json.Unmarshal(d.of(name), &key) // a valid text
		if seen[key] {
			d.fault(join(path, clip(key)), "is given twice", "once")
			continue
		}
		seen[key] = true
		visit(key, value)
	}
}

// list decodes an array into a slice.
func (d *decoder) list(p part, v reflect.Value, path string) {
	if d.text[p.from] != '[' {
		d.fault(path, "is "+kindOf(d.of(p)), "a list")
		return
	}
	var items []part
	for at := d.skipSpace(p.from + 1); d.text[at] != ']'; {
		item := part{at, d.end(at)}
		items = append(items, item)
		at = d.next(item.to)
	}
	v.Set(reflect.MakeSlice(v.Type(), len(items), len(items)))
	for i, item := range items {
		if d.full() {
			return
		}
		d.present(item, v.Index(i), fmt.Sprintf("%s[%d]", path, i))
	}
}

// present is value for entries of a list or a map: null is a mistake in these, unless the
// type defines its meaning.
func (d *decoder) present(p part, v reflect.Value, path string) {
	if string(d.of(p)) == "null" && v.Kind() != reflect.Pointer {
		d.fault(path, "is null", "a value")
		return
	}
	d.value(p, v, path)
}

// scalar decodes text, a number or a boolean. The fault names the expected kind instead
// of a Go type.
func (d *decoder) scalar(raw json.RawMessage, v reflect.Value, path string) {
	if err := json.Unmarshal(raw, v.Addr().Interface()); err != nil {
		want := map[reflect.Kind]string{
			reflect.String: "text", reflect.Bool: "true or false", reflect.Float64: "a number",
			reflect.Int: "a whole number", reflect.Int64: "a whole number",
		}[v.Kind()]
		d.fault(path, "is "+clip(kindOf(raw)), want)
	}
	d.textual(v, path)
}

// textual rejects strings that the database cannot store as text.
func (d *decoder) textual(v reflect.Value, path string) {
	switch {
	case v.Kind() == reflect.String && strings.ContainsRune(v.String(), 0):
		d.fault(path, "has a NUL", "text without NUL")
		v.SetString("")
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.String:
		for i := range v.Len() {
			d.textual(v.Index(i), fmt.Sprintf("%s[%d]", path, i))
		}
	}
}

// kindOf describes a JSON value in words for a fault.
func kindOf(raw json.RawMessage) string {
	switch {
	case len(raw) == 0:
		return "empty"
	case raw[0] == '{':
		return "an object"
	case raw[0] == '[':
		return "a list"
	case raw[0] == '"':
		return "text"
	case raw[0] == 't' || raw[0] == 'f':
		return "true or false"
	default:
		return "the number " + string(raw)
	}
}

// fieldNames lists the JSON names of a struct's fields, sorted.
func fieldNames(t reflect.Type) string {
	names := make([]string, 0, t.NumField())
	for i := range t.NumField() {
		names = append(names, jsonName(t.Field(i)))
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// clip shortens a client's text, so that a long one cannot fill an answer or a log.
func clip(s string) string {
	const most = 200
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// invalid combines faults into one error; nil without faults. Faults of unreadable fields
// come first; faults that follow from these are left out.
func invalid(slug string, read, checked []berth.FieldError) error {
	faults := slices.Clone(read)
	for _, c := range checked {
		if !slices.ContainsFunc(read, func(r berth.FieldError) bool { return covers(r.Field, c.Field) }) {
			faults = append(faults, c)
		}
	}
	if len(faults) == 0 {
		return nil
	}
	e := &berth.Error{Code: berth.CodeInvalid, Slug: slug, Fields: faults}
	first := faults[0]
	e.Message = strings.TrimSpace(first.Field + " " + first.Detail)
	if first.Allowed != "" && len(first.Allowed) < 300 {
		e.Message += " (allowed: " + first.Allowed + ")"
	}
	if len(faults) > 1 {
		e.Message += fmt.Sprintf(" (and %d more)", len(faults)-1)
	}
	return e
}

// covers reports whether field is outer or a part of outer.
func covers(outer, field string) bool {
	rest, ok := strings.CutPrefix(field, outer)
	return ok && (rest == "" || outer == "" || rest[0] == '.' || rest[0] == '[')
}
