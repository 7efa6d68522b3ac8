package api_test

import (
	"net/http"
	"strings"
	"testing"
)

// A filter with a slip in it must not answer with everything.
func TestParametersAreReadStrictly(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	job := s.submit("alice", nil)
	for path, want := range map[string]string{
		"/v1/jobs?statuss=running":                          "statuss is not a parameter of this call (allowed: count, cursor, dead_letter, index, label, limit, merged, name, parent, since, status, submitted_by, tenant)",
		"/v1/jobs?name=a;b":                                 "the query cannot be read",
		"/v1/jobs?name=%zz":                                 "the query cannot be read",
		"/v1/jobs?name=a&name=b":                            "name is given more than once",
		"/v1/jobs/" + string(job.ID) + "?attempt=1":         "attempt is not a parameter of this call (allowed: no parameters)",
		"/v1/jobs/" + string(job.ID) + "/logs?folow=true":   "folow is not a parameter of this call",
		"/v1/jobs/" + string(job.ID) + "/events?follow=yes": "follow is not a parameter of this call",
	} {
		a := s.call("alice", "GET", path, "")
		if a.status != http.StatusBadRequest || a.problem.Code != "invalid" || !strings.Contains(a.problem.Detail, want) {
			t.Errorf("GET %s: %d %s\nwant %s", path, a.status, a.body, want)
		}
	}
	if a := s.call("alice", "POST", "/v1/jobs/"+string(job.ID)+"/cancel?reason=x", ""); a.status != http.StatusBadRequest {
		t.Errorf("cancel with an unknown parameter: %d %s", a.status, a.body)
	}
	if a := s.call("alice", "GET", "/v1/jobs?status=submitted&status=queued&label=a=b&limit=5", ""); a.status != http.StatusOK {
		t.Errorf("lists may repeat: %d %s", a.status, a.body)
	}
	for _, query := range []string{"label=a%3Db%00", "pool=%00", "state=ready%00"} {
		if a := s.call("alice", "GET", "/v1/machines?"+query, ""); a.status != http.StatusBadRequest {
			t.Errorf("machines with %s: %d %s", query, a.status, a.body)
		}
	}
	if a := s.call("alice", "GET", "/v1/jobs?limit=0", ""); !strings.Contains(a.problem.Detail, "limit") {
		t.Errorf("the detail does not name the parameter: %s", a.body)
	}
}

func TestNoAdminRevokesTheTokenInUse(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	id := strings.Split(s.tokens["admin"], "_")[1]
	if a := s.call("admin", "DELETE", "/v1/tokens/"+id, ""); a.status != http.StatusConflict || strings.Contains(a.body, s.tokens["admin"]) {
		t.Errorf("got %d %s", a.status, a.body)
	}
	if a := s.call("admin", "GET", "/v1/tokens", ""); a.status != http.StatusOK {
		t.Errorf("the only admin is locked out: %d", a.status)
	}
}
