package spec_test

import "testing"

func TestEqualRequestsAreOneClass(t *testing.T) {
	t.Parallel()
	a, b := minimal().WithDefaults(), minimal().WithDefaults()
	b.Name, b.Env = "other", map[string]string{"A": "1"}
	if a.Request().Class() != b.Request().Class() {
		t.Error("name and environment changed the class")
	}
	b.Resources.GPUs = 1000
	if a.Request().Class() == b.Request().Class() {
		t.Error("a GPU did not change the class")
	}
}
