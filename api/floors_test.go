package api_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"berth/wire"
)

func TestOperatorsWaiveFloors(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	m := s.joinMachine("m1")
	report := wire.HostReport{AgentBoot: m.boot, Epoch: m.epoch, Facts: wire.HostFacts{Runtime: "runc",
		Components: []wire.HostComponent{{Name: "runc", Version: "1.1.5"}}}}
	if a := m.post("engine", report, nil); a.status != http.StatusNoContent {
		t.Fatalf("a report: %d %s", a.status, a.body)
	}
	s.exec(`UPDATE machine_hosts SET findings = '[{"condition": "below_floor", "component": "runc", "floor": "1.3.6"}]'`)
	report.Facts.Seccomp = strings.Repeat("1", 200)
	if a := m.post("engine", report, nil); a.status != http.StatusBadRequest {
		t.Errorf("a report that is too long: %d %s", a.status, a.body)
	}
	in := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(time.RFC3339) }
	const path = "/v1/machines/m1/waivers"
	for _, x := range []struct {
		name, method, path, body string
		status                   int
		contains                 string
	}{
		{"admin", "POST", path, `{"component": "runc", "until": "` + in(time.Hour) + `", "reason": "backported"}`, http.StatusOK, `"waivers":[{"component":"runc","version":"1.1.5"`},
		{"admin", "POST", path, `{"component": "runc", "version": "1.1.4", "until": "` + in(time.Hour) + `", "reason": "r"}`, http.StatusConflict, "reports runc 1.1.5"},
		{"admin", "POST", path, `{"component": "runc", "version": "1.1.5", "until": "` + in(time.Hour) + `", "reason": "backported"}`, http.StatusOK, `"version":"1.1.5"`},
		{"alice", "POST", path, `{"component": "runc", "until": "` + in(time.Hour) + `", "reason": "r"}`, http.StatusForbidden, "admin token"},
		{"admin", "POST", path, `{"component": "runc", "until": "` + in(-time.Hour) + `", "reason": "r"}`, http.StatusUnprocessableEntity, "until"},
		{"admin", "POST", path, `{"component": "runc", "until": "` + in(400*24*time.Hour) + `", "reason": "r"}`, http.StatusUnprocessableEntity, "366 days"},
		{"admin", "POST", path, `{"component": "runc", "until": "` + in(time.Hour) + `"}`, http.StatusUnprocessableEntity, "reason"},
		{"admin", "POST", path, `{"component": "crun", "until": "` + in(time.Hour) + `", "reason": "r"}`, http.StatusBadRequest, "has not reported crun"},
		{"admin", "POST", "/v1/machines/m9/waivers", `{"component": "runc", "until": "` + in(time.Hour) + `", "reason": "r"}`, http.StatusNotFound, "m9"},
		{"alice", "DELETE", path + "/runc", "", http.StatusForbidden, "admin token"},
		{"admin", "DELETE", path + "/runc", "", http.StatusOK, `"id":"m1"`},
		{"admin", "DELETE", path + "/runc", "", http.StatusNotFound, "no waiver of runc"},
	} {
		a := s.call(x.name, x.method, x.path, x.body)
		if a.status != x.status || !strings.Contains(a.body, x.contains) {
			t.Errorf("%s %s %s with %s: %d %s", x.name, x.method, x.path, x.body, a.status, a.body)
		}
	}
}

func TestOperatorsSetTrust(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	for _, x := range []struct {
		name, method, path, body string
		status                   int
		contains                 string
	}{
		{"admin", "POST", "/v1/tenants", `{"id": "guests", "untrusted": true}`, http.StatusCreated, `"untrusted":true`},
		{"admin", "PATCH", "/v1/tenants/guests", `{"weight": 2}`, http.StatusOK, `"untrusted":true`},
		{"admin", "PATCH", "/v1/tenants/guests", `{"untrusted": false}`, http.StatusOK, `"weight":2`},
		{"alice", "PATCH", "/v1/tenants/a", `{"untrusted": false}`, http.StatusForbidden, "admin token"},
	} {
		a := s.call(x.name, x.method, x.path, x.body)
		if a.status != x.status || !strings.Contains(a.body, x.contains) {
			t.Errorf("%s %s %s with %s: %d %s", x.name, x.method, x.path, x.body, a.status, a.body)
		}
	}
	if a := s.call("admin", "GET", "/v1/tenants/guests", ""); strings.Contains(a.body, "untrusted") {
		t.Errorf("a trusted tenant: %s", a.body)
	}
}
