package api_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

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
	s.metricsWith(`berth_dependency_up{dependency="postgres"} 1`, `berth_dependency_up{dependency="object_store"} 0`,
		`berth_dependency_up{dependency="temporal"} 0`)
}

// Waiting jobs are counted by the reason that users see.
func TestMetricsCountWaitingJobsByReason(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.queue(s.submit("alice", nil).ID, s.submit("alice", nil).ID)
	s.metricsWith(`berth_waiting_jobs{reason="no_machines"} 2`, `berth_waiting_jobs{reason="ready"} 0`)
}

// metricsWith scrapes until one scrape has each of the texts. A scrape leaves out values that the database does not
// answer within 3 seconds; a later one has them.
func (s *site) metricsWith(wants ...string) {
	s.t.Helper()
	missing := wants
	for began := time.Now(); len(missing) > 0 && time.Since(began) < waitLimit; {
		body := s.call("", "GET", "/metrics", "").body
		missing = slices.DeleteFunc(slices.Clone(wants), func(want string) bool { return strings.Contains(body, want) })
	}
	if len(missing) > 0 {
		s.t.Errorf("not in the metrics: %s", strings.Join(missing, "\n"))
	}
}
