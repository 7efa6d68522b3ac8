package api_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"berth/api"
)

// A dependency that does not answer is a 0, whether the readiness of the process depends on it or not.
func TestMetricsShowDependenciesThatDoNotAnswer(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(d *api.Deps) {
		d.Checks = []api.Check{
			{Name: "blob store", Run: func(context.Context) error { return errors.New("away") }},
			{Name: "temporal", Run: func(context.Context) error { return errors.New("away") }, Optional: true},
		}
	})
	body := s.call("", "GET", "/metrics", "").body
	for _, want := range []string{
		`berth_dependency_up{dependency="postgres"} 1`, `berth_dependency_up{dependency="object_store"} 0`,
		`berth_dependency_up{dependency="temporal"} 0`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("no %s in the metrics", want)
		}
	}
}

// Waiting jobs are counted by the reason that users see.
func TestMetricsCountWaitingJobsByReason(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.queue(s.submit("alice", nil).ID, s.submit("alice", nil).ID)
	body := s.call("", "GET", "/metrics", "").body
	for _, want := range []string{`berth_waiting_jobs{reason="no_machines"} 2`, `berth_waiting_jobs{reason="ready"} 0`} {
		if !strings.Contains(body, want) {
			t.Errorf("no %s in the metrics", want)
		}
	}
}
