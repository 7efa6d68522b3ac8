package api_test

import (
	"net/http"
	"strings"
	"testing"
)

func TestAnImageOutsideTheListIsRefusedWithTheList(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	if a := s.call("admin", "PUT", "/v1/quotas/a", `{"images": ["docker.io/library", "busybox"]}`); a.status != http.StatusUnprocessableEntity || len(a.problem.Errors) != 1 || a.problem.Errors[0].Field != "images[1]" {
		t.Fatalf("a list with a fault: %d %s", a.status, a.body)
	}
	if a := s.call("admin", "PUT", "/v1/quotas/a", `{"images": ["docker.io/library"]}`); a.status != http.StatusOK || !strings.Contains(a.body, `"images":["docker.io/library"]`) {
		t.Fatalf("the list: %d %s", a.status, a.body)
	}
	if a := s.call("alice", "POST", "/v1/jobs", `{"name": "x", "image": "busybox"}`); a.status != http.StatusCreated {
		t.Errorf("an image of the list: %d %s", a.status, a.body)
	}
	for _, c := range []struct{ name, path, body, field string }{
		{"a job", "/v1/jobs", `{"name": "x", "image": "ghcr.io/acme/tool:1"}`, "image"},
		{"a plan", "/v1/plans", `{"name": "x", "image": "ghcr.io/acme/tool:1"}`, "image"},
		{"a step", "/v1/pipelines", `{"kind": "pipeline", "name": "p", "jobs": {"fit": {"image": "ghcr.io/acme/tool:1"}}}`, "jobs.fit.image"},
	} {
		a := s.call("alice", "POST", c.path, c.body)
		if a.status != http.StatusUnprocessableEntity || len(a.problem.Errors) != 1 {
			t.Errorf("%s: %d %s", c.name, a.status, a.body)
			continue
		}
		f := a.problem.Errors[0]
		if f.Field != c.field || f.Detail != "ghcr.io/acme/tool is not among the images that tenant a allows" || f.Allowed != "images of docker.io/library" {
			t.Errorf("%s: %+v", c.name, f)
		}
	}
}
