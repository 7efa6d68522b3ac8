package api

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"berth/db"
)

func TestReadsMuchFindsLongPagesAndFollows(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		method, url, accept string
		much, follow        bool
	}{
		{"GET", "/v1/jobs?limit=1000", "", true, false},
		{"GET", "/v1/jobs?limit=200", "", false, false},
		{"GET", "/v1/jobs?limit=many", "", false, false},
		{"POST", "/v1/jobs?limit=1000", "", false, false},
		{"GET", "/v1/jobs/j/logs?follow=true", "", true, true},
		{"GET", "/v1/jobs/j/logs?tail=5&follow=true", "", true, true},
		{"GET", "/v1/jobs/j/logs?follow=false", "", false, false},
		{"GET", "/v1/jobs/j/events", "text/event-stream", true, true},
		{"GET", "/v1/jobs/j/events", "application/json", false, false},
		{"POST", "/v1/jobs/j/events?follow=true", "text/event-stream", false, false},
	} {
		r := httptest.NewRequest(c.method, c.url, http.NoBody)
		r.Header.Set("Accept", c.accept)
		if much, follow := readsMuch(r), asksToFollow(r); much != c.much || follow != c.follow {
			t.Errorf("%s %s, Accept %q: reads much %v, follows %v", c.method, c.url, c.accept, much, follow)
		}
	}
}

// One tenant must leave connections and cores to others, for every size of the pool.
func TestOneTenantsReadsLeaveConnectionsAndCores(t *testing.T) {
	t.Parallel()
	for reads := 1; reads <= 64; reads++ {
		for _, cores := range []int{1, 2, 4, 64} {
			s := newCallSlots(db.Shares{Reads: reads, Writes: max(1, reads/2), Work: max(1, reads/2)}, cores)
			if all := s.reads.most + s.bulks.most + s.questions.most; reads >= 5 && all > reads-max(1, reads/4) {
				t.Errorf("%d connections for reads, %d cores: one tenant may use %d", reads, cores, all)
			}
			if s.bulks.most > max(1, cores/2) {
				t.Errorf("%d connections for reads, %d cores: one tenant may read much in %d calls", reads, cores, s.bulks.most)
			}
		}
	}
}
