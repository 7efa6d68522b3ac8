package spec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"

	"berth"
)

// EnvArrayValue is the variable with the value of an element whose array comes from a list of
// plain values.
const EnvArrayValue = "BERTH_ARRAY_VALUE"

// MaxListBytes bounds the file of a list from which an array is made.
const MaxListBytes = MaxSpecBytes

// ListOf returns the output that has the elements of an array; ok is false for an array that
// has its elements in the file.
func (a *Array) ListOf() (ref OutputRef, ok bool) {
	if a == nil || a.From == "" {
		return ref, false
	}
	ref, err := ParseOutputRef(a.From)
	return ref, err == nil
}

// validateList checks array.from of a step. It returns the step with an array of one element,
// so that Job.Validate checks the other fields of the array.
func validateList(v *validation, at string, s Job) Job {
	if s.Array == nil || s.Array.From == "" {
		return s
	}
	a := *s.Array
	_, ok := a.ListOf()
	v.require(ok, at+".array.from", fmt.Sprintf("%.200q is not an output of a job", a.From), "job:STEP/OUTPUT")
	v.require(a.Size == 0 && len(a.Each) == 0 && len(a.Grid) == 0, at+".array.from",
		"is set but size, each or grid is set too", "give only one of size, each, grid and from")
	a.From, a.Size, a.Each, a.Grid = "", 1, nil, nil
	s.Array = &a
	return s
}

// ParseList returns the variables of each element from a JSON list. An entry is an object of
// texts, numbers and booleans, whose keys are variables, or one such value, which becomes
// EnvArrayValue. The error has berth.CodeInvalid and says which entry is wrong.
func ParseList(text []byte) ([]map[string]string, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber() // a number stays as it is written
	var list []any
	if err := d.Decode(&list); err != nil {
		return nil, berth.Errorf(berth.CodeInvalid, "it is not a JSON list: %.200s", err)
	}
	if d.More() {
		return nil, berth.Errorf(berth.CodeInvalid, "it has text after the list")
	}
	if len(list) > MaxArray {
		return nil, berth.Errorf(berth.CodeInvalid, "it has %d entries; at most %d are allowed", len(list), MaxArray)
	}
	each := make([]map[string]string, len(list))
	for i, entry := range list {
		vars, err := listEntry(entry)
		if err != nil {
			return nil, berth.Errorf(berth.CodeInvalid, "entry %d %s", i, err)
		}
		each[i] = vars
	}
	return each, nil
}

// listEntry returns the variables of one entry.
func listEntry(entry any) (map[string]string, error) {
	object, ok := entry.(map[string]any)
	if !ok {
		object = map[string]any{EnvArrayValue: entry}
	}
	vars := make(map[string]string, len(object))
	for key, value := range object {
		switch v := value.(type) {
		case string:
			vars[key] = v
		case json.Number:
			vars[key] = v.String()
		case bool:
			vars[key] = strconv.FormatBool(v)
		default:
			if !ok {
				return nil, fmt.Errorf("is no text, number, boolean or object of these")
			}
			return nil, fmt.Errorf("has a value of %.60q that is no text, number or boolean", key)
		}
	}
	return vars, nil
}

// Filled returns the spec of an array with the entries of its list as elements, or the
// reason why the list cannot be used.
func Filled(s Job, each []map[string]string) (Job, error) {
	a := *s.Array
	a.From, a.Each = "", each
	s.Array = &a
	for i, vars := range each {
		v := &validation{}
		for _, k := range sortedKeys(vars) {
			field, name := fmt.Sprintf("%.100q", k), k
			if k == EnvArrayValue { // reserved, but its value has the bounds of any other
				field, name = "it", "VALUE"
			}
			v.variable(field, name, vars[k])
		}
		v.require(len(s.Env)+len(vars) <= maxEnv-arrayVariables, "it", "has too many variables", "")
		v.requireGroups(s, vars)
		if len(v.faults) > 0 {
			return s, berth.Errorf(berth.CodeInvalid, "entry %d: %s %s", i, v.faults[0].Field, v.faults[0].Detail)
		}
	}
	raw, err := json.Marshal(each)
	if err != nil {
		return s, err
	}
	if n := int64(len(raw)); n > MaxSpecBytes {
		return s, berth.Errorf(berth.CodeInvalid, "its entries take %s; at most %s are allowed", berth.BytesText(n),
			berth.BytesText(MaxSpecBytes))
	}
	if n := int64(len(each)) * s.elementBytes(); n > maxArrayBytes {
		return s, berth.Errorf(berth.CodeInvalid, "its %d elements need %s; at most %s are allowed", len(each),
			berth.BytesText(n), berth.BytesText(maxArrayBytes))
	}
	return s, nil
}
