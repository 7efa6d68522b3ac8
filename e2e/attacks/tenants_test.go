package attacks_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"berth"
	"berth/e2e/rig"
	"berth/spec"
	"berth/wire"
)

// noJob is a well-formed id that no job has.
const noJob = "0199a000-0000-7000-8000-000000000001"

// described returns the routes of the API's OpenAPI description, as "METHOD /path".
func (f *field) described() []string {
	f.t.Helper()
	var doc struct {
		Paths map[string]map[string]json.RawMessage `json:"paths"`
	}
	if err := json.Unmarshal(f.must("", "GET", "/openapi.json", ""), &doc); err != nil {
		f.t.Fatal(err)
	}
	var routes []string
	for path, methods := range doc.Paths {
		for method := range methods {
			routes = append(routes, strings.ToUpper(method)+" "+path)
		}
	}
	slices.Sort(routes)
	return routes
}

func jobOfAnother(a *attempt) {
	id := string(a.submit(a.victim, nil, "exit", "0"))
	a.ended(berth.JobID(id))
	before := string(a.must(a.victim, "GET", "/v1/jobs/"+id, ""))
	bodies := map[string]string{
		"PATCH /v1/jobs/{id}": `{"priority": "high"}`, "POST /v1/jobs/{id}/sessions": `{"command": ["sh"]}`,
	}
	tried := 0
	for _, route := range a.described() {
		method, path, _ := strings.Cut(route, " ")
		if !strings.HasPrefix(path, "/v1/jobs/{id}") && !strings.HasPrefix(path, "/v1/pipelines/{id}") {
			continue
		}
		tried++
		at := func(id string) string {
			r := strings.NewReplacer("{id}", id, "{step}", "1", "{member}", "0", "{file}", "0", "{name}", "x")
			return r.Replace(path)
		}
		theirs := a.call(a.attacker, method, at(id), bodies[route])
		none := a.call(a.attacker, method, at(noJob), bodies[route])
		same := strings.ReplaceAll(string(theirs.Body), id, noJob) == string(none.Body)
		if theirs.Status != 404 || none.Status != 404 || !same {
			a.breach("%s: %d %s, none: %d %s", route, theirs.Status, theirs.clipped(), none.Status, none.clipped())
		}
	}
	if tried < 10 {
		a.breach("only %d routes of jobs are described", tried)
	}
	if after := string(a.must(a.victim, "GET", "/v1/jobs/"+id, "")); after != before {
		a.breach("the job has changed: %s", after)
	}
	a.saw("404 on %d routes, as for a job that does not exist", tried)
}

func nestedIDs(a *attempt) {
	id := string(a.submit(a.victim, nil, "exit", "0"))
	a.ended(berth.JobID(id))
	address := a.upload(a.victim, tarOf(file("secret.txt", "canary")))
	before := a.jobs(attacker)
	for what, more := range map[string]map[string]any{
		"checkpoint":  {"checkpoint": map[string]any{"path": "/c", "from": id}},
		"output":      {"inputs": []any{map[string]any{"from": "job:" + id + "/model", "to": "/in"}}},
		"dependency":  {"needs": []string{"job:" + id}},
		"secret":      {"secrets": []string{"hers"}},
		"image login": {"image_auth": "hers"},
		"upload":      {"inputs": []any{map[string]any{"from": "upload:" + address, "to": "/in"}}},
	} {
		a.refused(what, a.call(a.attacker, "POST", "/v1/jobs", a.job(more, "exit", "0")), 404, 422)
	}
	if after := a.jobs(attacker); after != before {
		a.breach("%d jobs were made", after-before)
	}
}

func foreignCursors(a *attempt) {
	for range 2 {
		a.submit(a.victim, map[string]any{"labels": map[string]string{"canary": "of-victim"}}, "exit", "0")
		a.submit(a.attacker, nil, "exit", "0")
	}
	cursor := func(token string) string {
		var page wire.Page[wire.Job]
		if err := json.Unmarshal(a.must(token, "GET", "/v1/jobs?limit=1", ""), &page); err != nil {
			a.t.Fatal(err)
		}
		return page.NextCursor
	}
	theirs, own := cursor(a.victim), cursor(a.attacker)
	if theirs == "" || own == "" {
		a.t.Fatal("the lists have one page")
	}
	edited := []byte(own)
	edited[len(edited)/2] ^= 1
	admin := base64.RawURLEncoding.EncodeToString([]byte(`{"tenant":"victim"}`))
	for what, path := range map[string]string{
		"cursor of another": "/v1/jobs?cursor=" + theirs, "edited cursor": "/v1/jobs?cursor=" + string(edited),
		"made up": "/v1/jobs?cursor=" + admin, "filter by tenant": "/v1/jobs?tenant=victim",
		"filter by label": "/v1/jobs?label=canary%3Dof-victim", "queue": "/v1/queue?tenant=victim",
		"usage": "/v1/usage?tenant=victim", "secrets": "/v1/secrets", "schedules": "/v1/schedules",
	} {
		got := a.call(a.attacker, "GET", path, "")
		leaked := strings.Contains(string(got.Body), "of-victim") || strings.Contains(string(got.Body), `"hers"`) ||
			strings.Contains(string(got.Body), `"tenant":"victim"`)
		if leaked || got.Status != 200 && got.Status != 400 && got.Status != 403 && got.Status != 404 &&
			got.Status != 422 {
			a.breach("%s: %d %s", what, got.Status, got.clipped())
		}
		a.saw("%s: %d", what, got.Status)
	}
}

func idempotencyKeys(a *attempt) {
	body := a.job(nil, "exit", "0")
	first := a.must(a.victim, "POST", "/v1/jobs", body, "Idempotency-Key", "k1")
	changed := a.job(nil, "exit", "1")
	a.refused("another body", a.call(a.victim, "POST", "/v1/jobs", changed, "Idempotency-Key", "k1"), 422)
	var mine, hers wire.Job
	other := a.must(a.attacker, "POST", "/v1/jobs", body, "Idempotency-Key", "k1")
	for b, j := range map[*wire.Job][]byte{&hers: first, &mine: other} {
		if err := json.Unmarshal(j, b); err != nil {
			a.t.Fatal(err)
		}
	}
	if mine.ID == hers.ID || mine.Tenant != attacker {
		a.breach("the key of another tenant answers with job %s of %s", mine.ID, mine.Tenant)
	}
	a.saw("key of another tenant: a job of its own")
}

func wrongRole(a *attempt) {
	a.refused("viewer submits", a.call(a.viewer, "POST", "/v1/jobs", a.job(nil, "exit", "0")), 403)
	id := string(a.submit(a.attacker, nil, "exit", "0"))
	a.refused("viewer cancels", a.call(a.viewer, "POST", "/v1/jobs/"+id+"/cancel", ""), 403)
	for _, c := range []struct{ method, path, body string }{
		{"POST", "/v1/tokens", `{"name": "x", "role": "admin"}`}, {"POST", "/v1/join-tokens", `{}`},
		{"GET", "/v1/tokens", ""}, {"PUT", "/v1/quotas/attacker", `{"max_running": 1000}`},
		{"POST", "/v1/machines/m001/drain", `{}`}, {"PUT", "/v1/admission", `{"paused": true}`},
		{"PUT", "/v1/pools/default", `{}`}, {"DELETE", "/v1/tenants/victim", ""}, {"POST", "/v1/launches", `{}`},
		{"PUT", "/v1/tenants/attacker/burst", `{}`}, {"POST", "/agent/v1/register", `{}`},
		{"POST", "/agent/v1/sync", `{}`}, {"POST", "/agent/v1/claim", `{}`}, {"GET", "/agent/v1/objects/x", ""},
	} {
		got := a.call(a.attacker, c.method, c.path, c.body)
		if got.Status != 403 {
			a.breach("user calls %s %s: %d %s", c.method, c.path, got.Status, got.clipped())
		}
	}
	a.saw("user on routes of admins and agents: 403")
}

func quotaRace(a *attempt) {
	const tenant berth.TenantID = "quota"
	if _, err := a.API.CreateTenant(a.t.Context(), spec.NewTenant{ID: tenant}); err != nil {
		a.t.Fatal(err)
	}
	most := 3
	if _, err := a.API.SetQuota(a.t.Context(), spec.Quota{Tenant: tenant, MaxQueued: &most}); err != nil {
		a.t.Fatal(err)
	}
	// No machine can run these jobs, so they wait as long as the test runs.
	body := a.job(map[string]any{"placement": map[string]any{"regions": []string{"nowhere"}}}, "exit", "0")
	tokens := make([]string, 10)
	for i := range tokens {
		tokens[i] = a.token(tenant, spec.RoleUser)
	}
	for range most - 1 {
		a.must(tokens[0], "POST", "/v1/jobs", body)
	}
	var mu sync.Mutex
	count := map[int]int{}
	var callers sync.WaitGroup
	for i := range 200 {
		callers.Go(func() {
			got := a.call(tokens[i%len(tokens)], "POST", "/v1/jobs", body)
			mu.Lock()
			defer mu.Unlock()
			count[got.Status]++
		})
	}
	callers.Wait()
	// A slow control plane may have admitted none of them. The quota is used up once a call is refused for it.
	err := rig.Await(a.t.Context(), rig.Patience, func(context.Context) error {
		got := a.call(tokens[0], "POST", "/v1/jobs", body)
		if strings.Contains(string(got.Body), "max_queued") || a.jobs(tenant) > most {
			return nil
		}
		return fmt.Errorf("%d %s", got.Status, got.clipped())
	})
	if err != nil {
		a.breach("no call is refused for the quota: %v", err)
	}
	if n := a.jobs(tenant); n != most {
		a.breach("%d jobs at a quota of %d: answers %v", n, most, count)
	}
	a.saw("answers of 200 calls by status: %s", fmt.Sprint(count))
}
