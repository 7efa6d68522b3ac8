package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"berth/spec"
	"berth/wire"
)

func TestListsHaveNoMoreThanAPage(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	job := s.submit("alice", nil)
	for i := range 3 {
		name := fmt.Sprintf("n%d", i)
		if _, _, err := s.as("alice").SetSecret(t.Context(), spec.NewSecretValue{Name: name, Value: "x"}); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.as("alice").SetChannel(t.Context(), name, spec.Channel{Kind: "slack", Secret: name}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.as("admin").CreateJoinToken(t.Context(), spec.NewJoinToken{}); err != nil {
			t.Fatal(err)
		}
		s.exec(`INSERT INTO outputs (job, attempt, rank, name, address, files, bytes, stored_bytes, sha256, object) VALUES ($1, 1, 0, $2, '', 1, 1, 1, '', '')`, job.ID, name)
	}
	for path, c := range map[string]struct {
		who  string
		want int
	}{
		"/v1/secrets":  {"alice", 3},
		"/v1/channels": {"alice", 3},
		"/v1/jobs/" + string(job.ID) + "/outputs": {"alice", 3},
		"/v1/join-tokens":                         {"admin", 3},
		"/v1/tokens":                              {"admin", 4},
		"/v1/tenants":                             {"admin", 3},
		"/v1/quotas":                              {"admin", 3},
	} {
		all, cursor := 0, ""
		for more := true; more; more = cursor != "" {
			a := s.call(c.who, "GET", path+"?limit=1&cursor="+cursor, "")
			var page wire.Page[json.RawMessage]
			if err := json.Unmarshal([]byte(a.body), &page); err != nil || a.status != http.StatusOK || len(page.Items) != 1 {
				t.Fatalf("%s after %q: %d %s", path, cursor, a.status, a.body)
			}
			all, cursor = all+1, page.NextCursor
		}
		if all != c.want {
			t.Errorf("%s has %d items in pages of one, want %d", path, all, c.want)
		}
		if bad := s.call(c.who, "GET", path+"?cursor=x", ""); bad.status != http.StatusBadRequest {
			t.Errorf("%s after x: %d %s", path, bad.status, bad.body)
		}
	}
	if bad := s.call("alice", "GET", "/v1/tenants?cursor=x", ""); bad.status != http.StatusBadRequest {
		t.Errorf("a user's tenants after x: %d %s", bad.status, bad.body)
	}
}
