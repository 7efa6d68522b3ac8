package e2e_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"berth"
	"berth/spec"
	"berth/wire"
)

func tellsWebhooks(t *testing.T, s *stack) {
	told := make(chan wire.WebhookEvent, 16)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var e wire.WebhookEvent
		if err == nil {
			err = json.Unmarshal(body, &e)
		}
		if err != nil || !strings.HasPrefix(r.Header.Get("webhook-signature"), "v1,") {
			t.Errorf("called with %v: %s: %v", r.Header, body, err)
		}
		told <- e
	}))
	defer receiver.Close()
	if _, _, err := s.api.SetSecret(t.Context(), spec.NewSecretValue{Name: spec.WebhookSecret, Value: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}); err != nil {
		t.Fatal(err)
	}
	job := jobSpec("tells", "exit", "3")
	job.Notify = []spec.Notify{{URL: receiver.URL, On: []string{"failed"}}}
	id := s.submit(t, job)
	s.becomes(t, id, berth.Failed)
	e := <-told
	if e.Type != "job.failed" || e.Data.ID != id || e.Data.ExitCode == nil || *e.Data.ExitCode != 3 || e.Data.Reason == nil || e.Data.Reason.Code != "exit_code" {
		t.Errorf("it is told %+v", e)
	}
}
