package api_test

import (
	"net/http"
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
	s := newSiteOn(t, d, func(d *api.Deps) { d.SubmitRate = 100 })
	for range d.Shares().Work {
		c, err := d.Pool().Acquire(overload.As(t.Context(), overload.End))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Release)
	}
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
