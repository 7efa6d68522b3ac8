package lifecycle_test

import (
	"testing"

	"berth"
	"berth/lifecycle"
)

func TestAParentRefusesStartsThatItDoesNotAllow(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		claim  string
		parent *lifecycle.Starting
		want   string // "": not refused
	}{
		{"no parent", nil, ""},
		{"a queued one", &lifecycle.Starting{State: berth.Queued}, ""},
		{"a running one", &lifecycle.Starting{State: berth.Running}, ""},
		{"a canceling one", &lifecycle.Starting{State: berth.Canceling}, "its array is canceling"},
		{"one that is not queued yet", &lifecycle.Starting{State: berth.Submitted}, "its array is submitted"},
		{"an ended one", &lifecycle.Starting{State: berth.Failed}, "its array is failed"},
		{"a held one", &lifecycle.Starting{State: berth.Running, Held: true}, "its array is held"},
		{"no limit", &lifecycle.Starting{State: berth.Running, Holding: 99}, ""},
		{"below its limit", &lifecycle.Starting{State: berth.Running, Parallel: 2, Holding: 1}, ""},
		{"at its limit", &lifecycle.Starting{State: berth.Running, Parallel: 2, Holding: 2},
			"2 elements of its array hold capacity, as many as may at once"},
	} {
		got := ""
		if err := c.parent.Refusal(); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: refusal is %q, want %q", c.claim, got, c.want)
		}
	}
}

func TestTheStartsOfOneBatchCountAgainstTheLimit(t *testing.T) {
	t.Parallel()
	p := &lifecycle.Starting{State: berth.Queued, Parallel: 2}
	if p.Begins() {
		t.Error("a parent begins without a start")
	}
	for range 2 {
		if err := p.Refusal(); err != nil {
			t.Fatal(err)
		}
		p.Admit()
	}
	if p.Refusal() == nil {
		t.Error("a third start is beyond the limit")
	}
	if !p.Begins() {
		t.Error("the first starts do not begin their parent")
	}
	running := &lifecycle.Starting{State: berth.Running}
	if running.Admit(); running.Begins() {
		t.Error("a running parent begins a second time")
	}
	var none *lifecycle.Starting
	none.Admit() // must not panic
}
