package api_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"berth/api"
	"berth/db"
	"berth/db/dbtest"
	"berth/internal/lib/overload"
)

// busySite is a site whose connections for work are all held until the test ends, as under an overload.
func busySite(t *testing.T) *site {
	t.Helper()
	d := dbtest.DB(t, db.Options{MaxConns: 8})
	s := newSiteOn(t, d, func(deps *api.Deps) {
		deps.SubmitRate = 100
		deps.Checks = []api.Check{{Name: "quarantine", Run: func(ctx context.Context) error {
			_, _, err := d.Cluster.Quarantine(ctx)
			return err
		}}}
	})
	for range d.Shares().Work {
		c, err := d.Pool().Acquire(overload.As(t.Context(), overload.End))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Release)
	}
	s.patience = time.Minute // a call that waits for a connection for work waits for the end of the test
	return s
}

// A submit needs the look-up of its token, a block of the tenant's rate, and the statement that stores the job.
func TestSubmitsAndReadsNeedNoConnectionForWork(t *testing.T) {
	t.Parallel()
	s := busySite(t)
	if a := s.call("alice", "POST", "/v1/jobs", small); a.status != http.StatusCreated {
		t.Errorf("a submit with a token never seen before: %d %s", a.status, a.body)
	}
	s.server.AgeUserTokens(time.Minute)
	if a := s.call("alice", "POST", "/v1/jobs", small); a.status != http.StatusCreated {
		t.Errorf("a submit with a token that is looked up again: %d %s", a.status, a.body)
	}
	if a := s.call("bob", "GET", "/v1/jobs", ""); a.status != http.StatusOK {
		t.Errorf("a read: %d %s", a.status, a.body)
	}
}

// An upload is a change, and not work of Berth.
func TestUploadsNeedNoConnectionForWork(t *testing.T) {
	t.Parallel()
	s := busySite(t)
	if _, a := s.upload("alice", "print(1)"); a.status != http.StatusCreated {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// A load balancer would take a replica away that is only busy, and an operator would not see why it is busy.
func TestProbesAndScrapesNeedNoConnectionForWork(t *testing.T) {
	t.Parallel()
	s := busySite(t)
	if a := s.call("", "GET", "/readyz", ""); a.status != http.StatusOK {
		t.Errorf("readiness: %d %s", a.status, a.body)
	}
	var body string
	for range 10 { // a scrape leaves out values that the database does not answer within 3 seconds
		body = s.call("", "GET", "/metrics", "").body
		if strings.Contains(body, "berth_leader_present 0") && strings.Contains(body, `berth_waiting_jobs{reason="ready"} 0`) {
			return
		}
	}
	t.Errorf("no scrape has the values of the database: %s", clipped(body))
}
