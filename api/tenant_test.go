package api_test

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"berth/internal/lib/poll"
	"berth/spec"
)

func field(t *testing.T, body, name string) string {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal([]byte(body), &m); err != nil {
		t.Errorf("no JSON: %s", clipped(body))
		return ""
	}
	s, _ := m[name].(string)
	return s
}

var none64 = "sha256:" + strings.Repeat("0", 64)

// kinds of routes in the matrix of tenants.
const (
	ofJob     = "a job's"     // another tenant's id is answered like one that does not exist
	ofTenant  = "a list"      // shows the caller's own
	ofMachine = "machines'"   // shared to read
	ofAdmin   = "admins'"     // closed to users
	ofOwn     = "tenants'"    // another tenant is answered like one that does not exist
	ofUpload  = "an upload's" // another tenant's content is answered like none
	ofSecret  = "secrets'"    // each tenant has names of its own
	ofChannel = "channels'"   // another tenant's name is answered like none
	ofName    = "schedules'"  // another tenant's name is answered like none
	ofApply   = "applied"     // each tenant has names of its own; makes the caller's own
	ofAgent   = "agents'"     // closed to users
	open      = "open"        // needs no token
	ofToken   = "own tokens'" // another caller's token is answered like none
	ofSubmit  = "submit"      // makes the caller's own
	ofSession = "a session's" // another caller's session is answered like none
)

// kindOf classifies a route; "" for a route that is not yet classified.
func kindOf(method, path string) string {
	switch {
	case strings.HasPrefix(path, "/v1/jobs/:id"), strings.HasPrefix(path, "/v1/pipelines/:id"):
		return ofJob
	case path == "/v1/sessions/:id":
		return ofSession
	case path == "/v1/jobs" && method == http.MethodGet, path == "/v1/queue":
		return ofTenant
	case path == "/v1/jobs", path == "/v1/plans", path == "/v1/pipelines":
		return ofSubmit
	case strings.HasPrefix(path, "/v1/machines") && method == http.MethodGet, path == "/v1/maintenance" && method == http.MethodGet,
		path == "/v1/maintenance/:window" && method == http.MethodGet, path == "/v1/admission" && method == http.MethodGet, path == "/v1/offers":
		return ofMachine
	case strings.HasPrefix(path, "/v1/machines"), strings.HasPrefix(path, "/v1/maintenance"), path == "/v1/admission", strings.HasPrefix(path, "/v1/tokens"), strings.HasPrefix(path, "/v1/join-tokens"), strings.HasPrefix(path, "/v1/pools"),
		strings.HasPrefix(path, "/v1/launches"), path == "/v1/offers/price":
		return ofAdmin
	case path == "/v1/whoami", path == "/v1/whoami/tokens", path == "/v1/usage":
		return ofOwn
	case strings.HasPrefix(path, "/v1/whoami/tokens/:id"):
		return ofToken
	case strings.HasPrefix(path, "/v1/tenants"), strings.HasPrefix(path, "/v1/quotas"):
		if method != http.MethodGet {
			return ofAdmin
		}
		return ofOwn
	case strings.HasPrefix(path, "/v1/uploads"):
		return ofUpload
	case strings.HasPrefix(path, "/v1/secrets"):
		return ofSecret
	case path == "/v1/channels":
		return ofTenant
	case strings.HasPrefix(path, "/v1/channels/:name"):
		return ofChannel
	case path == "/v1/schedules/:name" && method == http.MethodPut:
		return ofApply
	case strings.HasPrefix(path, "/v1/schedules/:name"):
		return ofName
	case path == "/v1/schedules" && method == http.MethodGet:
		return ofTenant
	case path == "/v1/schedules":
		return ofSubmit
	case strings.HasPrefix(path, "/agent/v1/"):
		return ofAgent
	case path == "/", path == "/docs", path == "/docs/*", path == "/healthz", path == "/readyz", path == "/metrics", strings.HasPrefix(path, "/openapi"), strings.HasPrefix(path, "/downloads/"):
		return open
	}
	return ""
}

// bodies that reach the look at the id.
var bodies = map[string]string{"PATCH /v1/jobs/:id": `{"priority": "high"}`, "POST /v1/jobs": small, "POST /v1/plans": small,
	"POST /v1/pipelines": `{"kind": "pipeline", "name": "p", "jobs": {"a": {"image": "busybox"}}}`, "POST /v1/secrets": `{"name": "bobs", "value": "own"}`,
	"PUT /v1/channels/:name": `{"kind": "slack", "secret": "alices-secret"}`,
	"POST /v1/schedules":     hourly, "POST /v1/jobs/:id/sessions": `{"command": ["sh"]}`, "POST /v1/schedules/:name/backfill": `{"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T00:00:00Z"}`}

const hourly = `{"name": "hourly", "cron": "@hourly", "job": {"image": "busybox"}}`

func TestAnotherTenantsJobIsLikeNone(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.machine("m1", 8, 8192, 0)
	window := s.call("admin", "POST", "/v1/maintenance", `{"machines": ["m1"], "from": "`+time.Now().Add(24*time.Hour).Format(time.RFC3339)+
		`", "for": "1h", "reason": "disks"}`)
	if window.status != http.StatusCreated {
		t.Fatal(window.body)
	}
	job := s.submit("alice", func(j *spec.Job) { j.Labels = map[string]string{"canary": "alices-secret"} })
	before := s.call("alice", "GET", "/v1/jobs/"+string(job.ID), "").body
	const none = "0199a000-0000-7000-8000-000000000001"
	s.tokens["nobody"] = "berth_000000000000_" + strings.Repeat("0", 64)
	for i, r := range s.server.Routes() {
		if strings.HasPrefix(r.Method, "echo_route") {
			continue
		}
		kind := kindOf(r.Method, r.Path)
		if kind == "" {
			t.Errorf("%s %s is not in the matrix of tenants: say in kindOf what another tenant may see of it", r.Method, r.Path)
			continue
		}
		body := bodies[r.Method+" "+r.Path]
		at := func(id string) string {
			return strings.NewReplacer(":id", id, ":alloc", "1", ":step", "5", ":window", "1", ":member", "0", ":file", "0", "*", "x").
				Replace(r.Path)
		}
		name := r.Method + " " + r.Path
		switch kind {
		case ofJob:
			theirs, missing := s.call("bob", r.Method, at(string(job.ID)), body), s.call("bob", r.Method, at(none), body)
			if theirs.status != http.StatusNotFound || strings.ReplaceAll(theirs.body, string(job.ID), none) != missing.body {
				t.Errorf("%s: another tenant's job %d %s, one that is none %d %s", name, theirs.status, theirs.body, missing.status, missing.body)
			}
			short := s.call("bob", r.Method, at(string(job.ID)[:30]), body)
			if short.status != http.StatusNotFound {
				t.Errorf("%s: by the beginning of its id %d %s", name, short.status, short.body)
			}
		case ofSession:
			open := s.session("alice", s.submit("alice", nil).ID)
			upgrade := []string{"Connection", "Upgrade", "Upgrade", "websocket"}
			theirs, missing := s.call("bob", r.Method, at(open), "", upgrade...), s.call("bob", r.Method, at(none), "", upgrade...)
			if theirs.status != http.StatusNotFound || strings.ReplaceAll(theirs.body, open, none) != missing.body {
				t.Errorf("%s: another's session %d %s, one that is none %d %s", name, theirs.status, theirs.body, missing.status, missing.body)
			}
		case ofTenant, ofMachine:
			if a := s.call("bob", r.Method, at("m1"), body); a.status != http.StatusOK || strings.Contains(a.body, "alices-secret") || strings.Contains(a.body, string(job.ID)) {
				t.Errorf("%s: %d %s", name, a.status, clipped(a.body))
			}
		case ofOwn:
			of := func(tenant string) string { return strings.ReplaceAll(r.Path, ":tenant", tenant) }
			theirs, missing, own := s.call("bob", r.Method, of("a"), ""), s.call("bob", r.Method, of("none"), ""), s.call("bob", r.Method, of("b"), "")
			one := strings.Contains(r.Path, ":tenant")
			if one && (theirs.status != http.StatusNotFound || missing.status != http.StatusNotFound) || own.status != http.StatusOK || strings.Contains(own.body, `"a"`) {
				t.Errorf("%s: another tenant %d %s, none %d, their own %d %s", name, theirs.status, theirs.body, missing.status, own.status, own.body)
			}
		case ofUpload:
			address, _ := s.upload("alice", "alices-secret")
			theirs := s.call("bob", r.Method, strings.ReplaceAll(r.Path, ":address", string(address)), body)
			missing := s.call("bob", r.Method, strings.ReplaceAll(r.Path, ":address", none64), body)
			if theirs.status < 400 || theirs.status != missing.status || strings.ReplaceAll(theirs.body, string(address), none64) != missing.body {
				t.Errorf("%s: another tenant's %d %s, none %d %s", name, theirs.status, theirs.body, missing.status, missing.body)
			}
		case ofSecret:
			s.call("alice", "POST", "/v1/secrets", `{"name": "alices-secret", "value": "hunter2"}`)
			theirs := s.call("bob", r.Method, strings.ReplaceAll(r.Path, ":name", "alices-secret"), body)
			if r.Method == http.MethodDelete && theirs.status != http.StatusNotFound || r.Method == http.MethodGet && strings.Contains(theirs.body, "alices-secret") || strings.Contains(theirs.body, "hunter2") {
				t.Errorf("%s: %d %s", name, theirs.status, theirs.body)
			}
			if list := s.call("alice", "GET", "/v1/secrets", "").body; !strings.Contains(list, "alices-secret") || strings.Contains(list, "hunter2") {
				t.Errorf("%s: alice has %s", name, list)
			}
		case ofChannel:
			s.call("alice", "POST", "/v1/secrets", `{"name": "alices-secret", "value": "https://chat.example/x"}`)
			s.call("alice", "PUT", "/v1/channels/alices-secret", bodies["PUT /v1/channels/:name"])
			theirs := s.call("bob", r.Method, strings.ReplaceAll(r.Path, ":name", "alices-secret"), body)
			missing := s.call("bob", r.Method, strings.ReplaceAll(r.Path, ":name", "none"), body)
			if theirs.status < 400 || theirs.status != missing.status ||
				strings.ReplaceAll(theirs.body, "alices-secret", "none") != strings.ReplaceAll(missing.body, "alices-secret", "none") {
				t.Errorf("%s: another tenant's %d %s, none %d %s", name, theirs.status, theirs.body, missing.status, missing.body)
			}
			if hers := s.call("alice", "GET", "/v1/channels/alices-secret", ""); hers.status != http.StatusOK {
				t.Errorf("%s: alice has %d %s", name, hers.status, hers.body)
			}
		case ofName:
			s.call("alice", "POST", "/v1/schedules", strings.Replace(hourly, "hourly", "alices-secret", 1))
			theirs := s.call("bob", r.Method, strings.ReplaceAll(r.Path, ":name", "alices-secret"), body)
			missing := s.call("bob", r.Method, strings.ReplaceAll(r.Path, ":name", "none"), body)
			if theirs.status != http.StatusNotFound || strings.ReplaceAll(theirs.body, "alices-secret", "none") != missing.body {
				t.Errorf("%s: another tenant's %d %s, none %d %s", name, theirs.status, theirs.body, missing.status, missing.body)
			}
		case ofApply:
			hers := strings.Replace(hourly, "hourly", "alices-applied", 1)
			s.call("alice", "POST", "/v1/schedules", hers)
			path := strings.ReplaceAll(r.Path, ":name", "alices-applied")
			a := s.call("bob", r.Method, path, strings.Replace(hers, "busybox", "bobs-image", 1))
			if a.status != http.StatusCreated || !strings.Contains(a.body, `"tenant":"b"`) {
				t.Errorf("%s: %d %s", name, a.status, clipped(a.body))
			}
			if kept := s.call("alice", http.MethodGet, path, "").body; strings.Contains(kept, "bobs-image") {
				t.Errorf("%s: alice has %s", name, clipped(kept))
			}
		case ofToken:
			id := strings.Split(s.tokens["alice"], "_")[1]
			theirs, missing := s.call("bob", r.Method, at(id), body), s.call("bob", r.Method, at(none), body)
			if theirs.status != http.StatusNotFound || strings.ReplaceAll(theirs.body, id, none) != missing.body {
				t.Errorf("%s: another's token %d %s, one that is none %d %s", name, theirs.status, theirs.body,
					missing.status, missing.body)
			}
		case ofSubmit:
			if a := s.call("bob", r.Method, r.Path, body); a.status >= 300 || strings.Contains(a.body, `"tenant":"a"`) {
				t.Errorf("%s: %d %s", name, a.status, clipped(a.body))
			}
		case ofAdmin, ofAgent:
			if openAgentPath(r.Path) {
				continue // needs a join token, or the key of a machine
			}
			if a := s.call("bob", r.Method, at("m1"), `{}`); a.status != http.StatusForbidden || a.problem.Code != "forbidden" {
				t.Errorf("%s: %d %s, want 403", name, a.status, clipped(a.body))
			}
		}
		if kind == open || openAgentPath(r.Path) {
			continue
		}
		// By turns without a token and with a wrong one: an address that tries both
		// everywhere has to wait.
		who := []string{"", "nobody"}[i%2]
		var a answer
		poll.Until(time.Minute, time.Second, func() bool { // an address has a few such calls a second
			a = s.call(who, r.Method, at(string(job.ID)), body)
			return a.status != http.StatusTooManyRequests
		})
		if a.status != http.StatusUnauthorized || a.problem.Code != "unauthorized" || a.header.Get("WWW-Authenticate") == "" {
			t.Errorf("%s without a good token: %d %s", name, a.status, clipped(a.body))
		}
		write := r.Method != http.MethodGet && r.Path != "/v1/plans"
		if a := s.call("viewer", r.Method, at(string(job.ID)), body); kind != ofAgent && kind != ofAdmin && write != (a.status == http.StatusForbidden) {
			t.Errorf("%s by a viewer: %d %s", name, a.status, clipped(a.body))
		}
	}
	if after := s.call("alice", "GET", "/v1/jobs/"+string(job.ID), "").body; after != before {
		t.Errorf("others changed alice's job:\n%s\n%s", before, after)
	}
}

// openAgentPath reports whether a route of agents needs no machine's token.
func openAgentPath(path string) bool { return path == "/agent/v1/join" || path == "/agent/v1/renew" }

var parameter = regexp.MustCompile(`:(\w+)`)

func TestEveryRouteOfUsersIsDescribed(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	a := s.call("", "GET", "/openapi.json", "")
	var doc struct {
		OpenAPI    string
		Paths      map[string]map[string]json.RawMessage
		Components struct {
			Schemas map[string]json.RawMessage
		}
	}
	if err := json.Unmarshal([]byte(a.body), &doc); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(doc.OpenAPI, "3.1") {
		t.Errorf("the description is of version %q", doc.OpenAPI)
	}
	for _, r := range s.server.Routes() {
		if !strings.HasPrefix(r.Path, "/v1/") || strings.HasPrefix(r.Method, "echo_route") {
			continue
		}
		path := parameter.ReplaceAllString(r.Path, "{$1}")
		op, ok := doc.Paths[path][strings.ToLower(r.Method)]
		if !ok {
			t.Errorf("%s %s is not described", r.Method, r.Path)
			continue
		}
		for _, want := range []string{`"security"`, `"summary"`, `application/problem+json`, `#/components/schemas/Problem`} {
			if !strings.Contains(string(op), want) {
				t.Errorf("the description of %s %s has no %s", r.Method, r.Path, want)
			}
		}
		if r.Method == http.MethodPatch || r.Path == "/v1/jobs" && r.Method == http.MethodPost {
			if !strings.Contains(string(op), `"requestBody":{"content":{"application/json":{"schema":{"$ref"`) {
				t.Errorf("the description of %s %s has no body: %s", r.Method, r.Path, op)
			}
		}
	}
	schema := string(doc.Components.Schemas["JobSpec"])
	for _, field := range []string{"stop_grace", "resources", "checkpoint", "placement"} {
		if !strings.Contains(schema, field) {
			t.Errorf("the schema of a job has no %s: %s", field, schema)
		}
	}
	if strings.Contains(a.body, "ErrorModel") {
		t.Error("the description tells of errors of another shape")
	}
}
