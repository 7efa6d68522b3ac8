package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"berth"
	"berth/spec"
)

// overrides are changes of a file on the command line. They are applied to the file as it
// is written, before defaults are filled in and folders are uploaded.
type overrides struct {
	env     map[string]string // of every job of the file
	set     []string          // PATH=VALUE, in this order
	secrets []string          // names, added to every job of the file
}

// register adds the flags.
func (o *overrides) register(cmd *cobra.Command) {
	f := cmd.Flags()
	pairsVar(f, &o.env, "env", "e", "environment variables, in addition to the file's: KEY=VALUE")
	f.StringArrayVar(&o.set, "set", nil,
		"field of the file to override: PATH=VALUE, such as resources.gpus=2 or jobs.train.env.LR=0.1")
	f.StringSliceVar(&o.secrets, "secret", nil, "secrets for the containers, in addition to the file's")
}

// none reports whether the file stays as it is.
func (o overrides) none() bool { return len(o.env)+len(o.set)+len(o.secrets) == 0 }

// apply changes a job, a pipeline or a schedule; file points to one of them. A wrong path or
// value is a usage error that names the flag. The result is not validated.
func (o overrides) apply(file any) error {
	var errs []error
	for _, s := range o.set {
		path, value, ok := strings.Cut(s, "=")
		if !ok || path == "" {
			errs = append(errs, usagef("--set %q: write PATH=VALUE, such as resources.gpus=2", s))
			continue
		}
		if err := setField(reflect.ValueOf(file).Elem(), strings.Split(path, "."), value); err != nil {
			errs = append(errs, usagef("--set %s: %v", path, err))
		}
	}
	switch x := file.(type) {
	case *spec.Job:
		o.add(x)
	case *spec.Pipeline:
		o.addSteps(x)
	case *spec.Schedule:
		if x.Job != nil {
			o.add(x.Job)
		}
		if x.Pipeline != nil {
			o.addSteps(x.Pipeline)
		}
	}
	return errors.Join(errs...)
}

// add adds variables and secrets to one job. The maps and lists of the file are not changed.
func (o overrides) add(j *spec.Job) {
	if len(o.env) > 0 {
		env := maps.Clone(j.Env)
		if env == nil {
			env = map[string]string{}
		}
		maps.Copy(env, o.env)
		j.Env = env
		o.addToGroups(j)
	}
	for _, s := range o.secrets {
		if !slices.Contains(j.Secrets, s) {
			j.Secrets = append(slices.Clone(j.Secrets), s)
		}
	}
}

// addToGroups sets the variables in the groups that have them, which else would replace the job's.
func (o overrides) addToGroups(j *spec.Job) {
	j.Groups = slices.Clone(j.Groups)
	for i := range j.Groups {
		g := &j.Groups[i]
		g.Env = maps.Clone(g.Env)
		for name, value := range o.env {
			if _, own := g.Env[name]; own {
				g.Env[name] = value
			}
		}
	}
}

// addSteps adds variables and secrets to every job of a pipeline. A nested pipeline shares
// its map of jobs with its step.
func (o overrides) addSteps(p *spec.Pipeline) {
	for name, step := range p.Jobs {
		if step.Nests() {
			nested := p.Nested(name)
			o.addSteps(&nested)
			continue
		}
		o.add(&step)
		p.Jobs[name] = step
	}
}

// setField sets the field at a path of JSON names below v. The value is text where the field
// is text or a quantity with a unit, and YAML elsewhere, so that lists and mappings can be
// given too.
func setField(v reflect.Value, path []string, value string) error {
	if len(path) == 0 {
		return setValue(v, value)
	}
	switch v.Kind() {
	case reflect.Pointer:
		// A new value, lest another struct with this pointer changes as well.
		next := reflect.New(v.Type().Elem())
		if !v.IsNil() {
			next.Elem().Set(v.Elem())
		}
		if err := setField(next.Elem(), path, value); err != nil {
			return err
		}
		v.Set(next)
		return nil
	case reflect.Struct:
		field, names := fieldNamed(v, path[0])
		if !field.IsValid() {
			return fmt.Errorf("%q is not a field here; allowed: %s", path[0], strings.Join(names, ", "))
		}
		return setField(field, path[1:], value)
	case reflect.Map:
		return setEntry(v, path, value)
	case reflect.Slice:
		i, err := strconv.Atoi(path[0])
		if err != nil || i < 0 || i >= v.Len() {
			return fmt.Errorf("%q is not an index of the list, which has %s; to set the list, give all of it: [A, B]",
				path[0], plural(v.Len(), "entry", "entries"))
		}
		list := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		reflect.Copy(list, v)
		if err := setField(list.Index(i), path[1:], value); err != nil {
			return err
		}
		v.Set(list)
		return nil
	default:
		return fmt.Errorf("%q is below a field that holds one value", path[0])
	}
}

// setEntry sets an entry of a mapping, or a field below it. An entry with fields, such as a
// step, must exist.
func setEntry(v reflect.Value, path []string, value string) error {
	key := reflect.ValueOf(path[0]).Convert(v.Type().Key())
	entry := reflect.New(v.Type().Elem()).Elem()
	old := v.MapIndex(key)
	if old.IsValid() {
		entry.Set(old)
	}
	rest := path[1:]
	switch {
	case entry.Kind() == reflect.String && len(rest) > 0:
		// Keys may contain dots, such as labels.
		key, rest = reflect.ValueOf(strings.Join(path, ".")).Convert(v.Type().Key()), nil
	case !old.IsValid() && entry.Kind() == reflect.Struct:
		names := make([]string, 0, v.Len())
		for _, k := range v.MapKeys() {
			names = append(names, k.String())
		}
		slices.Sort(names)
		return fmt.Errorf("there is no %q; allowed: %s", path[0], strings.Join(names, ", "))
	}
	if err := setField(entry, rest, value); err != nil {
		return err
	}
	next := reflect.MakeMap(v.Type())
	for _, k := range v.MapKeys() {
		next.SetMapIndex(k, v.MapIndex(k))
	}
	next.SetMapIndex(key, entry)
	v.Set(next)
	return nil
}

// fieldNamed returns the field of a struct with a JSON name, and the names of all fields for
// an error. Fields of embedded structs belong to the outer one.
func fieldNamed(v reflect.Value, name string) (field reflect.Value, names []string) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && tag == "":
			inner, below := fieldNamed(v.Field(i), name)
			names = append(names, below...)
			if inner.IsValid() {
				field = inner
			}
		case !f.IsExported() || tag == "-" || tag == "":
		case tag == name:
			field = v.Field(i)
			names = append(names, tag)
		default:
			names = append(names, tag)
		}
	}
	return field, names
}

// setValue parses a value as the type of v reads it: as text first, which quantities such as
// 4GiB and names need, and then as YAML. A field that is text takes any text as it is.
func setValue(v reflect.Value, value string) error {
	if v.Kind() == reflect.String {
		if _, custom := v.Addr().Interface().(json.Unmarshaler); !custom {
			v.SetString(value)
			return nil
		}
	}
	fresh := reflect.New(v.Type())
	quoted, err := json.Marshal(value)
	if err != nil {
		return err
	}
	asText := json.Unmarshal(quoted, fresh.Interface())
	if asText == nil {
		v.Set(fresh.Elem())
		return nil
	}
	raw, err := yaml.YAMLToJSON([]byte(value))
	if err != nil {
		return asText
	}
	fresh = reflect.New(v.Type())
	d := json.NewDecoder(strings.NewReader(string(raw)))
	d.DisallowUnknownFields()
	if err := d.Decode(fresh.Interface()); err != nil {
		return fmt.Errorf("%q is not a valid value: %v", value, plainJSON(err, asText))
	}
	v.Set(fresh.Elem())
	return nil
}

// plainJSON returns the more useful of the two faults of a value. The decoder's own texts
// name Go types.
func plainJSON(asYAML, asText error) error {
	var wrong *json.UnmarshalTypeError
	if errors.As(asYAML, &wrong) {
		if !errors.As(asText, &wrong) {
			return asText
		}
		switch wrong.Type.Kind() {
		case reflect.Slice:
			return errors.New("a list is required, such as [A, B]")
		case reflect.Map, reflect.Struct:
			return errors.New("a mapping is required, such as {KEY: VALUE}")
		case reflect.Bool:
			return errors.New("allowed are true and false")
		default:
			return errors.New("a number is required")
		}
	}
	return asYAML
}

// invalidSpec returns the error for faults that overrides caused, or nil without faults.
func invalidSpec(faults []berth.FieldError) error {
	if len(faults) == 0 {
		return nil
	}
	return &berth.Error{Code: berth.CodeInvalid, Slug: berth.SlugInvalidSpec, Fields: faults}
}
