package main

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/spec"
)

// reported are read-only fields of a quota.
var reported = []string{"tenant", "version", "use", "stored", "budget.since"}

// settings lists the fields of a type by their path in JSON, without reported.
func settings(of reflect.Type, path string) []string {
	if of.Kind() == reflect.Pointer {
		return settings(of.Elem(), path)
	}
	text := reflect.TypeFor[json.Marshaler]()
	if of.Kind() != reflect.Struct || of.Implements(text) || reflect.PointerTo(of).Implements(text) {
		return []string{path}
	}
	var list []string
	for i := range of.NumField() {
		name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
		at := strings.TrimPrefix(path+"."+name, ".")
		if !slices.Contains(reported, at) {
			list = append(list, settings(of.Field(i).Type, at)...)
		}
	}
	return list
}

// given lists the settings that a quota has.
func given(t *testing.T, q spec.Quota) []string {
	t.Helper()
	raw, err := json.Marshal(q)
	if err != nil {
		t.Fatal(err)
	}
	var leaves func(raw json.RawMessage, path string) []string
	leaves = func(raw json.RawMessage, path string) []string {
		var object map[string]json.RawMessage
		if json.Unmarshal(raw, &object) != nil {
			return []string{path}
		}
		var list []string
		for name, value := range object {
			if at := strings.TrimPrefix(path+"."+name, "."); !slices.Contains(reported, at) {
				list = append(list, leaves(value, at)...)
			}
		}
		return list
	}
	return leaves(raw, "")
}

// Each setting of a quota has a flag of `quota set`, and `quota show` prints it.
func TestEverySettingOfAQuotaIsSetAndShown(t *testing.T) {
	t.Parallel()
	shown := func(q spec.Quota) string {
		a, b := onTerminal(120, false)
		if err := showQuota(a, q); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(rules, []byte("- repositories: [ghcr.io/acme]\n  keys: [a key]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	set := map[string]bool{}
	for _, f := range quotaFlags {
		var q spec.Quota
		taken := slices.ContainsFunc([]string{"7", "5/1h", rules, "true"}, func(text string) bool { return f.set(&q, text) == nil })
		if !taken || shown(q) == shown(spec.Quota{}) {
			t.Errorf("--%s: takes no number, budget or file of rules, or quota show does not print it", f.name)
		}
		for _, name := range given(t, q) {
			set[name] = true
		}
	}
	want := settings(reflect.TypeFor[spec.Quota](), "")
	slices.Sort(want)
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(set))); diff != "" {
		t.Errorf("settings of a quota and flags of quota set differ (-quota +flags):\n%s", diff)
	}
}
