package attacks_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"berth"
	"berth/e2e/rig"
	"berth/spec"
)

func massAssignment(a *attempt) {
	before := a.jobs(attacker)
	for _, field := range []string{
		"tenant", "tenant_id", "status", "state", "price", "epoch", "attempt", "machine", "submitted_by", "id",
		"failures", "image_digest",
	} {
		body := a.job(map[string]any{field: "victim"}, "exit", "0")
		a.refused(field, a.call(a.attacker, "POST", "/v1/jobs", body), 400, 422)
	}
	for _, call := range []struct{ path, body string }{
		{"/v1/secrets", `{"name": "x", "value": "y", "tenant": "victim"}`},
		{"/v1/schedules", `{"name": "x", "cron": "@hourly", "tenant": "victim", "job": {"image": "busybox"}}`},
		{"/v1/pipelines", `{"kind": "pipeline", "name": "p", "tenant": "victim", "jobs": {"a": {"image": "busybox"}}}`},
	} {
		a.refused(call.path, a.call(a.attacker, "POST", call.path, call.body), 400, 422)
	}
	if after := a.jobs(attacker); after != before {
		a.breach("%d jobs were made", after-before)
	}
}

func leaks(a *attempt) {
	more := map[string]any{"name": "canary-name", "env": map[string]string{"CANARY": "canary-value"}}
	id := a.submit(a.victim, more, "sleep", "10m")
	defer a.call(a.victim, "POST", "/v1/jobs/"+string(id)+"/cancel", "")
	a.running(id)
	words := []string{"canary-name", "canary-value", string(id), a.Dir, "/var/tmp", "postgres://", a.secret}
	for _, path := range []string{
		"/v1/machines", "/v1/machines/m001", "/v1/machines/m002", "/v1/machines/m001/events", "/v1/queue", "/v1/jobs",
		"/v1/usage", "/v1/offers", "/v1/maintenance", "/openapi.json", "/readyz", "/healthz",
	} {
		got := a.call(a.attacker, "GET", path, "")
		for _, w := range words {
			if strings.Contains(string(got.Body), w) {
				a.breach("%s has %q", path, w)
			}
		}
	}
	for _, path := range []string{
		"/v1/jobs/" + string(id), "/v1/jobs/" + string(id) + "/events", "/v1/jobs/" + string(id) + "/explain",
	} {
		own := string(a.must(a.victim, "GET", path, ""))
		for _, w := range []string{a.Dir, "/var/tmp", "postgres://", a.secret} {
			if strings.Contains(own, w) {
				a.breach("the owner's %s has %q", path, w)
			}
		}
	}
	a.saw("12 routes of others and 3 of the owner are clean")
}

// resident returns the resident memory of berthd in MiB.
func (a *attempt) resident() int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", a.Berthd().PID))
	if err != nil {
		a.t.Fatal(err)
	}
	m := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(b)
	if m == nil {
		a.t.Fatalf("no resident memory: %s", b)
	}
	n, _ := strconv.Atoi(string(m[1])) // the expression matches only digits
	return n >> 10
}

// zeros is a reader of spaces. left is the number of bytes that remain to be read.
type zeros struct{ left int64 }

func (z *zeros) Read(b []byte) (int, error) {
	if z.left <= 0 {
		return 0, io.EOF
	}
	n := int(min(int64(len(b)), z.left))
	for i := range n {
		b[i] = ' '
	}
	z.left -= int64(n)
	return n, nil
}

func hugeBodies(a *attempt) {
	before := a.resident()
	const gib = 1 << 30
	for _, path := range []string{"/v1/jobs", "/v1/secrets", "/v1/plans"} {
		body := &zeros{left: gib}
		req, err := http.NewRequestWithContext(a.t.Context(), "POST", a.URL+path, body)
		if err != nil {
			a.t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+a.attacker)
		req.Header.Set("Content-Type", "application/json")
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			_ = res.Body.Close()
			if res.StatusCode != 413 && res.StatusCode != 400 {
				a.breach("1 GiB at %s: %d", path, res.StatusCode)
			}
		}
		if sent := gib - body.left; sent > 64<<20 {
			a.breach("1 GiB at %s: %d MiB were read", path, sent>>20)
		}
	}
	a.saw("1 GiB: refused")
	levels := `{"labels": ` + strings.Repeat(`{"a":`, 100_000)
	a.refused("100,000 levels", a.call(a.attacker, "POST", "/v1/jobs", levels), 400, 422)
	lists := `{"command": ` + strings.Repeat(`[`, 100_000)
	a.refused("as many lists", a.call(a.attacker, "POST", "/v1/jobs", lists), 400, 422)
	var env strings.Builder
	for i := range 1_000_000 {
		fmt.Fprintf(&env, `"V%d":"",`, i)
	}
	variables := `{"image": "x", "env": {` + strings.TrimSuffix(env.String(), ",") + `}}`
	a.refused("a million variables", a.call(a.attacker, "POST", "/v1/jobs", variables), 400, 413, 422)
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	_, err := io.Copy(z, &zeros{left: 256 << 20})
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		a.t.Fatal(err)
	}
	got := a.call(a.attacker, "POST", "/v1/jobs", bomb.String(), "Content-Encoding", "gzip")
	a.refused("gzip bomb", got, 400, 413, 415, 422)
	if grown := a.resident() - before; grown > 150 {
		a.breach("berthd grew by %d MiB", grown)
	} else {
		a.saw("berthd grew by %d MiB", grown)
	}
}

func submitFlood(a *attempt) {
	const tenant berth.TenantID = "flood"
	tokens := make([]string, 20)
	for i := range tokens {
		tokens[i] = a.token(tenant, spec.RoleUser)
	}
	if _, err := a.API.SetQuota(a.t.Context(), spec.Quota{Tenant: tenant, SubmitRPS: new(float64(5))}); err != nil {
		a.t.Fatal(err)
	}
	body := a.job(map[string]any{"placement": map[string]any{"regions": []string{"nowhere"}}}, "exit", "0")
	var mu sync.Mutex
	count, hints := map[int]int{}, 0
	stop := make(chan struct{})
	var callers sync.WaitGroup
	for _, token := range tokens {
		callers.Go(func() {
			c := rig.NewCaller(a.URL, token, "")
			defer c.Close()
			for {
				select {
				case <-stop:
					return
				default:
				}
				got := c.Call(a.t.Context(), "POST", "/v1/jobs", nil, []byte(body))
				mu.Lock()
				count[got.Status]++
				if got.Status == 429 && strings.Contains(string(got.Body), "retry") {
					hints++
				}
				mu.Unlock()
			}
		})
	}
	slow := 0
	for range 20 {
		got := a.once("", a.victim, "POST", "/v1/jobs", a.job(nil, "exit", "0"))
		if got.Status == http.StatusTooManyRequests || *all && !got.Good() {
			a.breach("another tenant's submit: %d %s", got.Status, got.clipped())
		}
		if got.Took > time.Second {
			slow++
		}
	}
	res := a.headerOfRefusal(tokens, body) // during the flood, as the limit fills up again after it
	close(stop)
	callers.Wait()
	if count[429] == 0 || res == "" {
		a.breach("answers %v, Retry-After %q", count, res)
	}
	a.saw("answers of the flood: %v, Retry-After %s; "+
		"20 submits of another tenant pass, %d over 1 s (ratios: make siege)", count, res, slow)
}

// headerOfRefusal submits jobs until the rate limit refuses one, and returns the Retry-After of that answer. It returns
// "" if no submit is refused.
func (a *attempt) headerOfRefusal(tokens []string, body string) string {
	for i := range 200 {
		req, err := http.NewRequestWithContext(a.t.Context(), "POST", a.URL+"/v1/jobs", strings.NewReader(body))
		if err != nil {
			a.t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+tokens[i%len(tokens)])
		req.Header.Set("Content-Type", "application/json")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			a.t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode == http.StatusTooManyRequests {
			return res.Header.Get("Retry-After")
		}
	}
	return ""
}

func badNumbers(a *attempt) {
	job := func(part string) string { return `{"image": "busybox", ` + part + `}` }
	for _, part := range []string{
		`"resources": {"gpus": -1}`, `"resources": {"gpus": 9223372036854775808}`, `"resources": {"gpus": NaN}`,
		`"resources": {"gpus": 1e9}`, `"resources": {"gpus": 0.3333333333333333333}`,
		`"resources": {"gpus": "Infinity"}`, `"resources": {"cpus": -1}`, `"resources": {"cpus": 1e300}`,
		`"resources": {"memory": "-1GiB"}`, `"resources": {"memory": "99999999999999999999GiB"}`,
		`"members": -1`, `"members": 1000000`, `"time_limit": "99999999999999999999h"`, `"time_limit": "-1s"`,
		`"stop_grace": "1e30s"`, `"retry": {"max_attempts": 2147483648}`,
		`"priority": 99999999999999999999`, `"priority": -5`, `"array": {"count": 1000000000}`,
	} {
		got := a.call(a.attacker, "POST", "/v1/jobs", job(part))
		if got.Status != 400 && got.Status != 422 {
			a.breach("%s: %d %s", part, got.Status, got.clipped())
		}
	}
	a.saw("19 values refused")
}

func injections(a *attempt) {
	evil := map[string]string{
		"sql": "x'); DROP TABLE jobs; --", "html": "<script>alert(1)</script><img src=x onerror=alert(1)>",
		"csv": "=HYPERLINK(\"http://x\")", "template": "{{.}}${7*7}%{x}", "null": "a\x00b",
		"newline": "a\r\nlevel=ERROR msg=forged", "escape": "\x1b[2J\x1b]0;owned\x07", "bidi": "a\u202eb",
	}
	var kept []string
	for what, text := range evil {
		more := map[string]any{"labels": map[string]string{"evil": text}, "env": map[string]string{"EVIL": text}}
		got := a.call(a.attacker, "POST", "/v1/jobs", a.job(more, "exit", "0"))
		switch {
		case got.Status == 422 || got.Status == 400:
			a.saw("%s: refused", what)
		case got.Good():
			var j struct {
				ID string `json:"id"`
			}
			if err := json.Unmarshal(got.Body, &j); err != nil {
				a.t.Fatal(err)
			}
			kept = append(kept, j.ID)
			var back struct {
				Labels map[string]string `json:"labels"`
			}
			err := json.Unmarshal(a.must(a.attacker, "GET", "/v1/jobs/"+j.ID, ""), &back)
			if err != nil || back.Labels["evil"] != text {
				a.breach("%s: stored as %q, %v", what, back.Labels["evil"], err)
			}
			a.saw("%s: kept as text", what)
		default:
			a.breach("%s: %d %s", what, got.Status, got.clipped())
		}
		for _, path := range []string{
			"/v1/jobs?name=", "/v1/jobs?label=", "/v1/jobs?submitted_by=", "/v1/jobs?since=", "/v1/machines/",
		} {
			if got := a.call(a.attacker, "GET", path+url.QueryEscape(text), ""); got.Status >= 500 || got.Status == 0 {
				a.breach("%s%q: %d %s", path, text, got.Status, got.clipped())
			}
		}
	}
	page := a.pages(kept)
	for _, bad := range []string{"<script>alert", "<img src=x"} {
		if strings.Contains(page, bad) {
			a.breach("a page has %q", bad)
		}
	}
	b, err := os.ReadFile(a.Berthd().Log)
	if err != nil {
		a.t.Fatal(err)
	}
	if bytes.Contains(b, []byte("\nlevel=ERROR msg=forged")) || bytes.ContainsRune(b, 0x1b) {
		a.breach("the log of berthd has a forged line or an escape")
	}
	if a.jobs(attacker) == 0 {
		a.breach("the table of jobs is empty")
	}
}

// pages returns the web pages of all jobs, of the queue and of these jobs, as a signed-in browser gets them.
func (a *attempt) pages(ids []string) string {
	jar, err := cookiejar.New(nil)
	if err != nil {
		a.t.Fatal(err)
	}
	browser := http.Client{Jar: jar}
	form := url.Values{"token": {a.attacker}, "next": {"/jobs"}}
	req, err := http.NewRequestWithContext(a.t.Context(), "POST", a.URL+"/login", strings.NewReader(form.Encode()))
	if err != nil {
		a.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Origin", a.URL)
	res, err := browser.Do(req)
	if err != nil {
		a.t.Fatal(err)
	}
	_ = res.Body.Close()
	var all strings.Builder
	paths := []string{"/jobs", "/queue"}
	for _, id := range ids {
		paths = append(paths, "/jobs/"+id)
	}
	for _, path := range paths {
		res, err := browser.Get(a.URL + path)
		if err != nil {
			a.t.Fatal(err)
		}
		b, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || res.StatusCode != http.StatusOK {
			a.t.Fatalf("page %s: %d %v", path, res.StatusCode, err)
		}
		all.Write(b)
	}
	return all.String()
}

func strangeSchemes(a *attempt) {
	for _, address := range []string{
		"file:///etc/passwd", "gopher://127.0.0.1:70/1", "unix:/var/run/docker.sock", "ftp://example.org/x",
		"dict://127.0.0.1:11211/", "ldap://127.0.0.1/", "http://example.org/x", "jar:http://x!/", "javascript:alert(1)",
		"//example.org/x",
	} {
		a.refused("notify "+address, a.call(a.attacker, "POST", "/v1/jobs",
			a.job(map[string]any{"notify": []any{map[string]any{"url": address}}}, "exit", "0")), 422)
		a.refused("input "+address, a.call(a.attacker, "POST", "/v1/jobs",
			a.job(map[string]any{"inputs": []any{map[string]any{"from": address, "to": "/in"}}}, "exit", "0")), 422)
	}
	a.seen = []string{"10 addresses as webhook and as input: 422"}
}

func hostileKeys(a *attempt) {
	id := string(a.submit(a.victim, nil, "exit", "0"))
	for _, key := range []string{"../victim/x", "%2e%2e/x", "%2e%2e%2fx", "a%00b", "..%5cx", "a/../../b"} {
		for _, path := range []string{
			"/v1/jobs/" + id + "/outputs/" + key, "/v1/uploads/" + key,
			"/v1/jobs/" + id + "/checkpoints/" + key + "/members/0",
		} {
			got := a.call(a.attacker, "GET", path, "")
			if got.Status < 400 || got.Status >= 500 || strings.Contains(string(got.Body), "/var/") {
				a.breach("GET %s: %d %s", path, got.Status, got.clipped())
			}
		}
		for what, more := range map[string]map[string]any{
			"output name":     {"outputs": []any{map[string]any{"name": key, "path": "/out"}}},
			"output path":     {"outputs": []any{map[string]any{"name": "x", "path": "/out/../" + key + "/../../etc"}}},
			"checkpoint path": {"checkpoint": map[string]any{"path": "/c/../../" + key}},
		} {
			got := a.call(a.attacker, "POST", "/v1/jobs", a.job(more, "exit", "0"))
			if got.Status != 422 && got.Status != 400 {
				a.breach("%s %q: %d %s", what, key, got.Status, got.clipped())
			}
		}
	}
	a.saw("6 keys on 3 routes and in 3 fields: 4xx")
}

func privileges(a *attempt) {
	for _, field := range []string{
		"privileged", "cap_add", "network_mode", "pid", "pid_mode", "ipc", "ipc_mode", "devices", "security_opt",
		"runtime", "cgroup_parent", "volumes", "mounts", "binds", "host_network", "userns_mode", "sysctls",
		"extra_hosts", "dns", "ulimits", "entry_point",
	} {
		for _, value := range []any{true, "host", []string{"ALL"}} {
			got := a.call(a.attacker, "POST", "/v1/jobs", a.job(map[string]any{field: value}, "exit", "0"))
			if got.Status != 422 && got.Status != 400 || !strings.Contains(string(got.Body), field) {
				a.breach("%s: %d %s", field, got.Status, got.clipped())
			}
		}
	}
	a.saw("21 fields refused by name")
}

func hookVariables(a *attempt) {
	for _, name := range []string{
		"LD_PRELOAD", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_IMEX_CHANNELS",
		"LD_LIBRARY_PATH_NVIDIA", "BERTH_MEMBER",
	} {
		body := a.job(map[string]any{"env": map[string]string{name: "all"}}, "exit", "0")
		a.refused(name, a.call(a.attacker, "POST", "/v1/jobs", body), 422)
	}
}
