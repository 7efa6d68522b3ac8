package web_test

import (
	"fmt"
	"strings"
	"testing"

	"berth"
)

// The page of a job links the debug jobs that keep its files, and the page of a debug job links back.
func TestAJobsPageLinksTheDebugJobsOfItsAttempts(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	failed, other := s.submit("alice", nil), s.submit("alice", nil)
	var debugs []berth.JobID
	for attempt := 1; attempt <= 5; attempt++ {
		debug := s.submit("alice", nil).ID
		debugs = append(debugs, debug)
		s.exec(`UPDATE jobs SET debug = true WHERE id = $1`, debug)
		s.exec(`INSERT INTO holds (debug, scope, job, attempt, rank, alloc, machine_id, hold_ms) VALUES ($1, $2, $2, $3, 0, 7, 'm1', 60000)`,
			debug, failed.ID, attempt)
		if attempt < 5 { // the last one goes on
			if _, err := s.as("alice").Cancel(t.Context(), debug); err != nil {
				t.Fatal(err)
			}
		}
	}
	page := s.signedIn("alice").get("/jobs/" + string(failed.ID)).body
	link := func(title string, id berth.JobID) string {
		return fmt.Sprintf(`<dt>%s</dt><dd><a class="id" href="/jobs/%s">`, title, id)
	}
	for attempt, want := range map[int]string{5: "Files of attempt 5 kept by", 4: "Files of attempt 4 were kept by", 2: "Files of attempt 2 were kept by"} {
		if !strings.Contains(page, link(want, debugs[attempt-1])) {
			t.Errorf("the page does not link %q: %s", want, page)
		}
	}
	if strings.Contains(page, string(debugs[0])) {
		t.Error("the page links more than three ended holds")
	}
	if back := s.signedIn("alice").get("/jobs/" + string(debugs[4])).body; !strings.Contains(back, link("Keeps the files of attempt 5 of", failed.ID)) {
		t.Errorf("the page of the debug job does not link the job: %s", back)
	}
	if page := s.signedIn("alice").get("/jobs/" + string(other.ID)).body; strings.Contains(page, "kept by") {
		t.Errorf("a job without a hold links one: %s", page)
	}
}
