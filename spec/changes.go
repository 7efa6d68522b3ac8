package spec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Change is one field with another value than before.
type Change struct {
	Field string `json:"field" doc:"path in the file, such as job.image"`
	From  string `json:"from,omitempty" doc:"former value as JSON; absent: none, or one that is not shown"`
	To    string `json:"to,omitempty" doc:"new value as JSON; absent: none, or one that is not shown"`
}

// shownChange is the greatest length of a value in a Change, in bytes.
const shownChange = 200

// Changes returns the fields in which two documents of one type differ, ordered by path. Lists
// are compared as a whole. Values of webhooks are left out, since they may hold keys.
func Changes(before, after any) ([]Change, error) {
	a, err := plainDocument(before)
	if err != nil {
		return nil, err
	}
	b, err := plainDocument(after)
	if err != nil {
		return nil, err
	}
	var list []Change
	compareDocuments("", a, b, func(c Change) { list = append(list, c) })
	return list, nil
}

// plainDocument converts a value to the maps and lists of its JSON document.
func plainDocument(v any) (doc any, err error) {
	text, err := json.Marshal(v)
	if err == nil {
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		err = d.Decode(&doc)
	}
	if err != nil {
		return nil, fmt.Errorf("compare documents: %w", err)
	}
	return doc, nil
}

// compareDocuments calls changed for each difference below a path. nil stands for no value.
func compareDocuments(path string, a, b any, changed func(Change)) {
	x, okX := a.(map[string]any)
	y, okY := b.(map[string]any)
	if okX && okY {
		keys := maps.Clone(x)
		maps.Copy(keys, y)
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			compareDocuments(strings.TrimPrefix(path+"."+key, "."), x[key], y[key], changed)
		}
		return
	}
	from, to := changeText(a), changeText(b)
	if from == to {
		return
	}
	if slices.Contains(strings.Split(path, "."), "notify") {
		from, to = "", ""
	}
	changed(Change{Field: path, From: cutChange(from), To: cutChange(to)})
}

// changeText returns a value as JSON, "" for none.
func changeText(v any) string {
	if v == nil {
		return ""
	}
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(text)
}

// cutChange shortens a value.
func cutChange(text string) string {
	if len(text) <= shownChange {
		return text
	}
	return strings.ToValidUTF8(text[:shownChange], "") + "..."
}
