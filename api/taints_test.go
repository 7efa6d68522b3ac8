package api_test

import (
	"net/http"
	"strings"
	"testing"
)

func TestOperatorsTaintMachines(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.machine("m1", 8, 8192, 0)
	for _, x := range []struct {
		name, body string
		status     int
		contains   string
	}{
		{"admin", `{"add": ["maintenance"]}`, http.StatusOK, `"taints":["maintenance:no_schedule"]`},
		{"admin", `{"add": ["team=ml"], "remove": ["maintenance"]}`, http.StatusOK, `"taints":["team=ml:no_schedule"]`},
		{"admin", `{"add": ["team=ml:no_execute"]}`, http.StatusUnprocessableEntity, "drain the machine"},
		{"admin", `{"append": ["a"]}`, http.StatusUnprocessableEntity, "append"},
		{"alice", `{"remove": ["team"]}`, http.StatusForbidden, "admin token"},
	} {
		a := s.call(x.name, http.MethodPost, "/v1/machines/m1/taints", x.body)
		if a.status != x.status || !strings.Contains(a.body, x.contains) {
			t.Errorf("%s with %s: %d %s", x.name, x.body, a.status, a.body)
		}
	}
	if a := s.call("alice", http.MethodGet, "/v1/machines/m1", ""); !strings.Contains(a.body, "tainted team=ml") {
		t.Errorf("a user sees %s", a.body)
	}
	if a := s.call("admin", http.MethodPut, "/v1/pools/default", `{"taints": ["quiet"], "one_tenant_per_machine": true}`); a.status != http.StatusOK ||
		!strings.Contains(a.body, `"taints":["quiet:no_schedule"]`) || !strings.Contains(a.body, `"one_tenant_per_machine":true`) {
		t.Errorf("the pool: %d %s", a.status, a.body)
	}
	if a := s.call("admin", http.MethodPut, "/v1/pools/default", `{"taints": ["a b"]}`); a.status != http.StatusUnprocessableEntity {
		t.Errorf("an invalid taint of a pool: %d %s", a.status, a.body)
	}
}
