package spec_test

import (
	"slices"
	"strings"
	"testing"

	"berth/spec"
)

func TestATolerationMatchesKeyValueAndEffect(t *testing.T) {
	t.Parallel()
	taints := []string{"maintenance:no_schedule", "team=ml:no_schedule"}
	for _, x := range []struct {
		tolerations, left []string
	}{
		{nil, taints},
		{[]string{"*"}, nil},
		{[]string{"maintenance"}, taints[1:]},
		{[]string{"maintenance:no_schedule", "team"}, nil},
		{[]string{"maintenance=x", "team=web"}, taints},
		{[]string{"team=ml"}, taints[:1]},
		{[]string{"team:no_schedule", "team=ml:no_schedule"}, taints[:1]},
		{[]string{"tea", "team=m", "team=ml:no_execute", ""}, taints},
	} {
		if got := spec.Untolerated(x.tolerations, taints); !slices.Equal(got, x.left) {
			t.Errorf("tolerations %q leave %q, want %q", x.tolerations, got, x.left)
		}
	}
}

func TestTaintsAreStoredWithTheirEffect(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"maintenance": "maintenance:no_schedule", "a.b/c-d_1=X.2:no_schedule": "a.b/c-d_1=X.2:no_schedule", "k=v": "k=v:no_schedule",
		"": "", "=v": "", "k=": "", "k:": "", "-k": "", "k=v=w": "", "k v": "", "*": "", "k\n": "", strings.Repeat("k", 64): "",
		"k:no_execute": "", "k:prefer": "",
	} {
		got, err := spec.ParseTaint(text)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q is stored as %q, %v; want %q", text, got, err, want)
		}
	}
	if _, err := spec.ParseTaint("k:no_execute"); err == nil || !strings.Contains(err.Error(), "drain the machine") {
		t.Errorf("the effect no_execute: %v", err)
	}
}

func TestAChangeOfTaintsReplacesKeys(t *testing.T) {
	t.Parallel()
	c := spec.TaintChange{Add: []string{"team=ml", "new"}, Remove: []string{"old", "none"}}
	if faults := c.Validate(); faults != nil {
		t.Fatal(faults)
	}
	got := c.Apply([]string{"kept=1:no_schedule", "old=2:no_schedule", "team=web:no_schedule"})
	if want := []string{"kept=1:no_schedule", "new:no_schedule", "team=ml:no_schedule"}; !slices.Equal(got, want) {
		t.Errorf("the taints are %q, want %q", got, want)
	}
	for name, c := range map[string]spec.TaintChange{
		"a key twice":       {Add: []string{"a=1", "a=2"}},
		"added and removed": {Add: []string{"a=1"}, Remove: []string{"a"}},
		"a value to remove": {Remove: []string{"a=1"}},
		"an effect":         {Add: []string{"a:no_execute"}},
		"too many":          {Add: make([]string, 17)},
	} {
		if c.Validate() == nil {
			t.Errorf("%s is valid", name)
		}
	}
}

func TestTolerationsAreValidated(t *testing.T) {
	t.Parallel()
	j, faults := spec.Job{Name: "j", Image: "busybox", Placement: spec.Placement{Tolerations: []string{"*", "team=ml", "a b"}}}.WithDefaults(), []string{}
	for _, f := range j.Validate() {
		faults = append(faults, f.Field)
	}
	if !slices.Equal(faults, []string{"placement.tolerations[2]"}) {
		t.Errorf("faults of %q", faults)
	}
	a, b := spec.Job{Image: "busybox"}, spec.Job{Image: "busybox"}
	a.Placement.Tolerations, b.Placement.Tolerations = []string{"x", "y", "x"}, []string{"y", "x"}
	if one, other := a.WithDefaults().Request(), b.WithDefaults().Request(); one.Class() != other.Class() {
		t.Errorf("classes of %q and %q differ", one.Tolerations, other.Tolerations)
	}
}
