package api_test

import (
	"net/http"
	"strings"
	"testing"

	"berth/api/client"
)

// A reset writes to the database past the API, while callers use the old token.
func TestATokenThatWasResetDiesWithinFiveSeconds(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	if a := s.call("admin", "GET", "/v1/tokens", ""); a.status != http.StatusOK {
		t.Fatalf("before the reset: %d %s", a.status, a.body)
	}
	r, err := s.db.Tokens.Reset(t.Context(), "default", "admin", "reset:root@db1", false)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the refusal of the old token", func() bool {
		return s.call("admin", "GET", "/v1/tokens", "").status == http.StatusUnauthorized
	})
	events, err := client.New(s.url, r.Text).TokenEvents(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	for _, e := range events.Items[max(0, len(events.Items)-2):] {
		said = append(said, e.Event+" "+e.Name+" by "+e.Actor)
	}
	if got, want := strings.Join(said, ", "), "revoked admin by reset:root@db1, created admin by reset:root@db1"; got != want {
		t.Errorf("the last events are %q, want %q", got, want)
	}
	if a := s.call("alice", "GET", "/v1/tokens/events", ""); a.status != http.StatusForbidden {
		t.Errorf("a user reads the events of tokens: %d %s", a.status, a.body)
	}
}
