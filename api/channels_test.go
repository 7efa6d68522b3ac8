package api_test

import (
	"net/http"
	"strings"
	"testing"

	"berth"
	"berth/api"
	"berth/internal/control/notify"
	"berth/spec"
)

func TestChannelsAreCheckedBeforeTheyAreStored(t *testing.T) {
	t.Parallel()
	mailer, err := notify.ParseServer("smtp://127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	mailer.From = "berth@example.com"
	s := newSite(t, func(d *api.Deps) { d.Mail = mailer })
	put := func(who, name, body string) answer { return s.call(who, "PUT", "/v1/channels/"+name, body) }
	if a := put("alice", "team", `{"kind": "slack", "secret": "CHAT"}`); a.status != 422 || !strings.Contains(a.body,
		"berth secret set CHAT") {
		t.Errorf("without its secret: %d %s", a.status, a.body)
	}
	s.secret("CHAT", "alice", "https://chat.example/services/hunter2")
	if a := put("alice", "team",
		`{"kind": "slack", "secret": "CHAT", "events": ["job.failed"]}`); a.status != http.StatusCreated ||
		strings.Contains(a.body, "hunter2") {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a := put("alice", "team", `{"kind": "email", "to": ["a@example.com"]}`); a.status != http.StatusOK ||
		strings.Contains(a.body, "CHAT") {
		t.Errorf("a replacement: %d %s", a.status, a.body)
	}
	for body, field := range map[string]string{
		`{"kind": "pager"}`: "kind", `{"kind": "slack"}`: "secret", `{"kind": "slack", "secret": "CHAT", "url": "https://a.example"}`: "url",
		`{"kind": "email", "to": []}`: "to", `{"kind": "email", "to": ["x"]}`: "to[0]", `{"kind": "email", "to": ["A <a@example.com>"]}`: "to[0]",
		`{"kind": "email", "to": ["a@example.com\r\nBcc: b@example.com"]}`: "to[0]", `{"kind": "email", "to": ["a@other.example"]}`: "to",
		`{"kind": "webhook", "url": "http://a.example"}`: "url", `{"kind": "webhook", "url": "ftp://a.example"}`: "url",
		`{"kind": "slack", "secret": "CHAT", "events": ["job.lost"]}`: "events[0]", `{"kind": "slack", "secret": "CHAT", "x": 1}`: "x",
		`{"kind": "email", "to": [` + strings.Repeat(`"a@example.com",`, 20) + `"a@example.com"]}`: "to",
	} {
		a := put("alice", "x", body)
		if a.status != 422 || len(a.problem.Errors) == 0 || a.problem.Errors[0].Field != field ||
			a.problem.Errors[0].Allowed == "" {
			t.Errorf("%.90s: %d %s", body, a.status, a.body)
		}
	}
	if a := put("alice", "Not%20a%20name", `{"kind": "email", "to": ["a@example.com"]}`); a.status != 422 ||
		a.problem.Errors[0].Field != "name" {
		t.Errorf("a wrong name: %d %s", a.status, a.body)
	}
	machines := `{"kind": "email", "to": ["a@example.com"], "events": ["job.failed", "machine.lost", "gpu.unhealthy"]}`
	if a := put("alice", "ops", machines); a.status != http.StatusForbidden || !strings.Contains(a.body,
		"machine.lost, gpu.unhealthy") {
		t.Errorf("a user's channel of machines: %d %s", a.status, a.body)
	}
	if a := put("admin", "ops", machines); a.status != http.StatusCreated {
		t.Errorf("an admin's channel of machines: %d %s", a.status, a.body)
	}
	// The address of a chat with events of machines is not for others to choose.
	s.secret("OPS", "admin", "https://chat.example/ops")
	ops := `{"kind": "slack", "secret": "OPS", "events": ["machine.lost"]}`
	if a := put("admin", "chat", ops); a.status != http.StatusCreated {
		t.Fatalf("%d %s", a.status, a.body)
	}
	s.exec(`UPDATE channels SET tenant = 'a' WHERE name = 'chat'`)
	if a := s.secret("OPS", "alice", "https://evil.example"); a.status != http.StatusForbidden {
		t.Errorf("a user changes the address of a channel of machines: %d %s", a.status, a.body)
	}
	if a := s.call("alice", "DELETE", "/v1/secrets/OPS", ""); a.status != http.StatusForbidden {
		t.Errorf("a user deletes it: %d %s", a.status, a.body)
	}
	none := newSite(t, nil)
	if a := none.call("alice", "PUT", "/v1/channels/x",
		`{"kind": "email", "to": ["a@example.com"]}`); a.status != 422 || !strings.Contains(a.body, "berthd --smtp") {
		t.Errorf("without a mail server: %d %s", a.status, a.body)
	}
}

func TestChannelsOfTenantsAboveAreListedWithoutTheirDestination(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	admin, alice := s.as("admin"), s.as("alice") // of tenant a
	if _, err := admin.CreateTenant(t.Context(), spec.NewTenant{ID: "org"}); err != nil {
		t.Fatal(err)
	}
	parent := berth.TenantID("org")
	if _, err := admin.UpdateTenant(t.Context(), "a", spec.TenantPatch{Parent: &parent}); err != nil {
		t.Fatal(err)
	}
	s.exec(`INSERT INTO channels (tenant, name, kind, recipients, events, updated_by) VALUES ('org', 'all', 'email', '{boss@example.com}', '{job.failed}', 'user:x')`)
	s.secret("CHAT", "alice", "https://chat.example/x")
	if _, created, err := alice.SetChannel(t.Context(), "team", spec.Channel{Kind: spec.ChannelSlack,
		Secret: "CHAT"}); err != nil || !created {
		t.Fatal(created, err)
	}
	list, err := alice.Channels(t.Context())
	if err != nil || len(list.Items) != 2 || !list.Items[0].Inherited || len(list.Items[0].To) != 0 ||
		list.Items[0].Tenant != "org" || list.Items[1].Secret != "CHAT" {
		t.Errorf("%+v, %v", list, err)
	}
	if _, err := alice.Channel(t.Context(), "all"); berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("the channel of a tenant above: %v", err)
	}
	if err := alice.DeleteChannel(t.Context(), "all"); berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("deletion of the channel of a tenant above: %v", err)
	}
	c, err := alice.TestChannel(t.Context(), "team")
	if err != nil || c.Waiting != 1 {
		t.Errorf("%+v, %v", c, err)
	}
	if err := alice.DeleteChannel(t.Context(), "team"); err != nil {
		t.Error(err)
	}
	// The list of allowed channels of a job names both tenants' ones.
	a := s.call("alice", "POST", "/v1/jobs", `{"name": "a", "image": "b", "notify": [{"channel": "none"}]}`)
	if a.status != 422 || a.problem.Errors[0].Field != "notify[0].channel" || a.problem.Errors[0].Allowed != "all" {
		t.Errorf("a job with an unknown channel: %d %s", a.status, a.body)
	}
	if a := s.call("alice", "POST", "/v1/jobs",
		`{"name": "a", "image": "b", "notify": [{"channel": "all"}]}`); a.status != http.StatusCreated {
		t.Errorf("a job with a channel needs no key for webhooks: %d %s", a.status, a.body)
	}
	both := `{"name": "a", "image": "b", "notify": [{"channel": "all", "url": "https://a.example"}]}`
	if a := s.call("alice", "POST", "/v1/jobs", both); a.status != 422 ||
		a.problem.Errors[0].Field != "notify[0].channel" {
		t.Errorf("channel and url: %d %s", a.status, a.body)
	}
}
