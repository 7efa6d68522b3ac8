package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"berth/api"
	"berth/spec"
)

const signing = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

func TestWebhooksAreCheckedBeforeAJobIsTaken(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	job := func(notify string) string { return fmt.Sprintf(`{"name":"a","image":"b","notify":%s}`, notify) }
	if got := s.call("alice", "POST", "/v1/jobs", job(`[{"url":"https://example.com/x"}]`)); got.status != 422 || !strings.Contains(got.body, "berth secret set WEBHOOK_SECRET") {
		t.Errorf("without a key to sign with: %d %s", got.status, got.body)
	}
	for _, value := range []string{"hunter2", "whsec_", "whsec_c2hvcnQ=", "whsec_!!!!" + signing, signing + " hunter2", strings.Repeat(signing+" ", 5)} {
		if got := s.secret(spec.WebhookSecret, "alice", value); got.status != 422 || strings.Contains(got.body, "hunter2") || !strings.Contains(got.body, "openssl rand") {
			t.Errorf("%q is taken as a key: %d %s", value, got.status, got.body)
		}
	}
	if got := s.secret(spec.WebhookSecret, "alice", signing+" "+signing); got.status != http.StatusCreated {
		t.Fatalf("%d %s", got.status, got.body)
	}
	got := s.call("alice", "POST", "/v1/jobs", job(`[{"url":"https://example.com/x?y=z","on":["running","failed"]},{"url":"https://[2606:4700::1]:8443/"}]`))
	if got.status != http.StatusCreated || !strings.Contains(got.body, `"on":["succeeded","failed","canceled"]`) {
		t.Errorf("%d %s", got.status, got.body)
	}
	if got := s.call("bob", "POST", "/v1/jobs", job(`[{"url":"https://example.com/x"}]`)); got.status != 422 {
		t.Errorf("with another tenant's key: %d %s", got.status, got.body)
	}
	for notify, field := range map[string]string{
		`[{"url":"http://example.com/"}]`:                                                        "notify[0].url",
		`[{"url":"https://a.example"},{"url":"file:///etc/passwd"}]`:                             "notify[1].url",
		`[{"url":"gopher://a.example"}]`:                                                         "notify[0].url",
		`[{"url":"https://"}]`:                                                                   "notify[0].url",
		`[{"url":"/x"}]`:                                                                         "notify[0].url",
		`[{"url":"https://me:hunter2@a.example"}]`:                                               "notify[0].url",
		`[{"url":"https://a.example/#x"}]`:                                                       "notify[0].url",
		`[{"url":"https://a.example/` + strings.Repeat("x", 2048) + `"}]`:                        "notify[0].url",
		`[{"url":"https://a.example","on":["submitted"]}]`:                                       "notify[0].on[0]",
		`[{"url":"https://a.example","on":["succeeded","done"]}]`:                                "notify[0].on[1]",
		`[{"url":"https://a.example","to":"x"}]`:                                                 "notify[0].to",
		`[` + strings.Repeat(`{"url":"https://a.example"},`, 8) + `{"url":"https://a.example"}]`: "notify",
	} {
		got := s.call("alice", "POST", "/v1/jobs", job(notify))
		if got.status != 422 || len(got.problem.Errors) == 0 || got.problem.Errors[0].Field != field || got.problem.Errors[0].Allowed == "" {
			t.Errorf("%.80s: %d %s", notify, got.status, got.body)
		}
	}
	pipeline := `{"kind":"pipeline","name":"p","notify":[{"url":"%s"}],"jobs":{"a":{"image":"b"%s}}}`
	for body, want := range map[string]string{
		fmt.Sprintf(pipeline, "https://a.example", ""):                                        "",
		fmt.Sprintf(pipeline, "http://a.example", ""):                                         "notify[0].url",
		fmt.Sprintf(pipeline, "https://a.example", `,"notify":[{"url":"https://a.example"}]`): "jobs.a.notify",
	} {
		got := s.call("alice", "POST", "/v1/pipelines", body)
		if want == "" && got.status != http.StatusCreated || want != "" && (got.status != 422 || got.problem.Errors[0].Field != want) {
			t.Errorf("%s: %d %s", body, got.status, got.body)
		}
	}
	if got := s.call("bob", "POST", "/v1/pipelines", fmt.Sprintf(pipeline, "https://a.example", "")); got.status != 422 {
		t.Errorf("a pipeline without a key to sign with: %d %s", got.status, got.body)
	}

	allowed := newSite(t, func(d *api.Deps) { d.PlainWebhooks = true })
	allowed.secret(spec.WebhookSecret, "alice", signing)
	if got := allowed.call("alice", "POST", "/v1/jobs", job(`[{"url":"http://10.0.0.1/"}]`)); got.status != http.StatusCreated {
		t.Errorf("where the operator allows networks: %d %s", got.status, got.body)
	}
}
