package spec_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"berth/spec"
)

// firstQuotaFields are the fields of the first version of a quota. Every other
// field is unknown to clients of some version, so that a change that leaves it out
// must keep it.
var firstQuotaFields = []string{
	"tenant", "guarantee", "limit", "borrow", "max_running", "max_queued", "budget", "version", "use", "stored",
}

func TestNewSettingsOfAQuotaAreLaterSettings(t *testing.T) {
	t.Parallel()
	var q spec.Quota
	later := q.Later()
	v := reflect.ValueOf(&q).Elem()
	known := slices.Clone(firstQuotaFields)
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		if slices.Contains(firstQuotaFields, name) {
			continue
		}
		known = append(known, name)
		if later[name] != v.Field(i).Addr().Interface() {
			t.Errorf("Later has no pointer to the field %s: a client that does not know it would lift it", name)
		}
	}
	for name := range later {
		if !slices.Contains(known, name) {
			t.Errorf("Later has %s, which is not a field of a quota", name)
		}
	}
}
