package db_test

import (
	"slices"
	"testing"
)

// Statistics are refreshed once a table has doubled, and not by less.
func TestStatisticsFollowTablesThatDouble(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	refreshed := func() bool {
		s.reset() // a session that has ended has counted the rows that it wrote
		s.alone()
		tables, err := s.db.Cluster.RefreshStatistics(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return slices.Contains(tables, "jobs")
	}
	if refreshed() {
		t.Error("an empty table was analyzed")
	}
	s.jobsThatEnded(300)
	if !refreshed() {
		t.Error("a table of 300 rows that were never counted was not analyzed")
	}
	for range 20 {
		s.submit(nil)
	}
	if refreshed() {
		t.Error("20 rows beside 300 had the table analyzed again")
	}
}
