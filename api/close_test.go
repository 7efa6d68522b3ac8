package api_test

import (
	"net/http"
	"strings"
	"testing"
)

// A submit waits for a reading of the machines, which a lock delays. A stopped server ends the reading at once, and
// the submit with it.
func TestAStoppedServerAwaitsTheReadingOfTheMachines(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.machine("m1", 8, 1<<14, 0)
	defer s.lock("gpu_devices")()
	answers := make(chan answer, 1)
	go func() { answers <- s.call("alice", "POST", "/v1/jobs", `{"name": "digits", "image": "busybox"}`) }()
	eventually(t, "a reading that waits for the table", func() bool {
		if len(answers) > 0 {
			t.Fatalf("the submit did not wait for the table: %+v", <-answers)
		}
		return s.waitingForLocks() > 0
	})
	s.server.Close()
	s.server.Wait()
	if a := <-answers; a.status != http.StatusServiceUnavailable || !strings.Contains(a.body, "the server closes") {
		t.Errorf("the submit got %d %s", a.status, a.body)
	}
}
