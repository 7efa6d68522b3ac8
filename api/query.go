package api

import (
	"encoding/json"
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"berth"
)

// queryFields lists the query parameters of an input struct, embedded structs included;
// the value reports whether a parameter may be repeated.
func queryFields(t reflect.Type) map[string]bool {
	fields := map[string]bool{}
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous && f.Type.Kind() == reflect.Struct {
			maps.Copy(fields, queryFields(f.Type))
			continue
		}
		if tag, ok := f.Tag.Lookup("query"); ok {
			name, _, _ := strings.Cut(tag, ",")
			fields[name] = f.Type.Kind() == reflect.Slice
		}
	}
	return fields
}

// strictQuery refuses unknown, repeated and unreadable parameters. Go drops unreadable
// ones, and other servers ignore unknown ones: a filter with a misspelt name would then
// match everything.
func strictQuery(fields map[string]bool) func(huma.Context, func(huma.Context)) {
	return func(ctx huma.Context, next func(huma.Context)) {
		u := ctx.URL()
		if err := checkQuery(u.RawQuery, fields); err != nil {
			p := problemOf(err)
			ctx.SetHeader("Content-Type", problemType)
			ctx.SetStatus(p.Status)
			_ = json.NewEncoder(ctx.BodyWriter()).Encode(p)
			return
		}
		next(ctx)
	}
}

// checkQuery reports the faults of a query, up to maxFaults. Names are visited in order,
// so that equal requests get equal answers.
func checkQuery(raw string, fields map[string]bool) error {
	values, err := url.ParseQuery(raw)
	if err != nil {
		return berth.Errorf(berth.CodeInvalid,
			"the query cannot be read: write parameters as name=value, joined by &, with %%XX for other characters")
	}
	allowed := "no parameters"
	if len(fields) > 0 {
		allowed = strings.Join(slices.Sorted(maps.Keys(fields)), ", ")
	}
	var faults []berth.FieldError
	for _, name := range slices.Sorted(maps.Keys(values)) {
		many, known := fields[name]
		switch {
		case len(faults) == maxFaults:
			return invalid("", faults, nil)
		case !known:
			faults = append(faults, berth.FieldError{Field: clip(name), Detail: "is not a parameter of this call",
				Allowed: allowed})
		case !many && len(values[name]) > 1:
			faults = append(faults, berth.FieldError{Field: name, Detail: "is given more than once", Allowed: "once"})
		}
	}
	return invalid("", faults, nil)
}
