package web_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"berth"
	"berth/spec"
)

// full fills a site with jobs of all kinds.
func (s *site) full() (running, failed, array, pipeline berth.JobID) {
	s.t.Helper()
	for i := range 3 {
		s.machine(fmt.Sprintf("gpu-%d", i), 8)
	}
	s.machine("cpu-0", 0)
	s.exec(`UPDATE gpu_devices SET healthy = false, reason = 'XID 79' WHERE machine_id = 'gpu-1' AND idx = 3`)
	for i := range 12 {
		j := s.submit("alice", func(j *spec.Job) {
			j.Name, j.Labels = fmt.Sprintf("train-%d", i), map[string]string{"project": "vision"}
		})
		switch {
		case i < 3:
			s.run(j.ID, fmt.Sprintf("gpu-%d", i))
			running = j.ID
		case i < 6:
			s.run(j.ID, "cpu-0")
			s.end(j.ID, berth.Failed)
			failed = j.ID
		case i < 8:
			s.run(j.ID, "cpu-0")
			s.end(j.ID, berth.Succeeded)
		}
	}
	s.exec(`INSERT INTO spend (tenant, day, settled) SELECT t, current_date, c FROM (VALUES ('a', 412500000), ('b', 96250000), ('', 3000000)) AS x (t, c)`)
	array = s.submit("alice", func(j *spec.Job) { j.Name, j.Array = "sweep", &spec.Array{Size: 300, Parallel: 4} }).ID
	p, _, err := s.as("alice").SubmitPipeline(s.t.Context(), spec.Pipeline{Kind: string(berth.KindPipeline), Name: "nightly", Jobs: map[string]spec.Job{
		"prepare": {Image: "busybox"}, "train-a": {Image: "busybox", Needs: []string{"prepare"}},
		"train-b": {Image: "busybox", Needs: []string{"prepare"}}, "report": {Image: "busybox", Needs: []string{"train-a", "train-b"}},
	}}, "")
	if err != nil {
		s.t.Fatal(err)
	}
	return running, failed, array, p.ID
}

// The pages in a real browser: no fault of a script or a policy, no request to another host, a name for
// each control, and no wider than a small window, in both themes and without script.
func TestPagesInABrowser(t *testing.T) {
	t.Parallel()
	b := startChromium(t)
	s := newSite(t)
	running, failed, array, pipeline := s.full()
	for _, command := range []string{"nvidia-smi", "python train.py " + strings.Repeat("checkpoint ", 30), "bash"} {
		s.enter(running, command)
	}
	at, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	b.size(1400, 900)
	b.dark(false)
	b.open(s.url + "/jobs")
	b.picture("login")
	b.eval(`document.getElementById("token").focus()`)
	b.call("Input.insertText", map[string]any{"text": s.tokens["admin"].Secret}, nil)
	b.key("Enter")
	b.await(`document.querySelector("h1") && document.querySelector("h1").textContent === "Jobs"`)
	b.mu.Lock()
	b.forget()
	b.mu.Unlock()
	pages := map[string]string{
		"overview": "/", "queue": "/queue", "jobs": "/jobs", "running": "/jobs/" + string(running), "failed": "/jobs/" + string(failed),
		"events": "/jobs/" + string(failed) + "?tab=events", "explain": "/jobs/" + string(failed) + "?tab=explain",
		"sessions":    "/jobs/" + string(running) + "?tab=sessions",
		"no-sessions": "/jobs/" + string(failed) + "?tab=sessions",
		"spec":        "/jobs/" + string(failed) + "?tab=spec", "array": "/jobs/" + string(array), "pipeline": "/jobs/" + string(pipeline),
		"machines": "/machines", "machine": "/machines/gpu-1", "schedules": "/schedules", "tenants": "/tenants", "usage": "/usage", "me": "/me", "submit": "/submit",
		"act": "/act?do=cancel&id=" + string(running), "missing": "/jobs/00000000-0000-7000-8000-000000000000",
	}
	for name, path := range pages {
		for _, width := range []int{1400, 320} {
			b.size(width, 900)
			for _, dark := range []bool{false, true} {
				b.dark(dark)
				b.open(s.url + path)
				if n := b.eval(`document.documentElement.scrollWidth`); n != float64(width) {
					t.Errorf("%s is %v wide in a window of %d", name, n, width)
				}
				b.picture(fmt.Sprintf("%s-%d-%v", name, width, dark))
			}
		}
		if list := b.unnamed(); len(list) > 0 {
			t.Errorf("%s has controls without a name: %v", name, list)
		}
		if name == "missing" {
			b.mu.Lock()
			b.forget()
			b.mu.Unlock()
		}
		b.clean(name, at.Host)
	}
	b.size(1400, 900)
	b.dark(false)
	b.call("Emulation.setScriptExecutionDisabled", map[string]any{"value": true}, nil)
	b.open(s.url + "/jobs?q=status:failed")
	b.call("Emulation.setScriptExecutionDisabled", map[string]any{"value": false}, nil)
	if n := b.eval(`document.querySelectorAll("tbody tr").length`); n != 3.0 {
		t.Errorf("without script: %v rows", n)
	}
	b.call("Emulation.setScriptExecutionDisabled", map[string]any{"value": true}, nil)
	b.open(s.url + "/jobs/" + string(running) + "?tab=sessions")
	b.call("Emulation.setScriptExecutionDisabled", map[string]any{"value": false}, nil)
	if n := b.eval(`document.querySelectorAll('tr[data-live^="session-"]').length`); n != 3.0 {
		t.Errorf("without script: %v sessions", n)
	}
}

func TestKeysAndPatchesInABrowser(t *testing.T) {
	t.Parallel()
	b := startChromium(t)
	s := newSite(t)
	s.full()
	j := s.submit("alice", func(j *spec.Job) { j.Name = "watched" })
	b.size(1400, 900)
	b.open(s.url + "/login")
	b.eval(`document.getElementById("token").focus()`)
	b.call("Input.insertText", map[string]any{"text": s.tokens["alice"].Secret}, nil)
	b.key("Enter")
	b.await(`document.querySelector("h1") && document.querySelector("h1").textContent === "Overview" && document.readyState === "complete"`)
	b.key("g")
	b.key("j")
	b.await(`document.querySelector("h1") && document.querySelector("h1").textContent === "Jobs" && document.readyState === "complete"`)

	// A row that is selected is patched in its place and stays selected.
	b.key("j")
	b.key("x")
	row := fmt.Sprintf(`document.querySelector('[data-live="job-%s"]')`, j.ID)
	b.await(row + `.querySelector("input").checked && ` + row + `.classList.contains("selected")`)
	if _, err := s.as("alice").Cancel(t.Context(), j.ID); err != nil {
		t.Fatal(err)
	}
	b.await(row + `.textContent.includes("canceled") && ` + row + `.querySelector("input").checked`)
	s.submit("alice", func(j *spec.Job) { j.Name = "newest" })
	b.await(`document.getElementById("fresh") && document.getElementById("fresh").textContent.includes("1 new")`)
	if got := b.eval(`document.querySelectorAll("tbody tr")[0].textContent.includes("watched")`); !isTrue(got) {
		t.Error("a new row moved the others")
	}

	// The search is in the address, and back leads back.
	b.key("/")
	b.await(`document.activeElement.id === "q"`)
	b.call("Input.insertText", map[string]any{"text": "status:failed"}, nil)
	b.key("Enter")
	b.await(`location.search.includes("status%3Afailed") && document.querySelectorAll("tbody tr").length === 3 && document.readyState === "complete"`)
	b.eval(`history.back()`)
	b.await(`location.search === "" && document.querySelectorAll("tbody tr").length > 3 && document.readyState === "complete"`)

	b.key("?")
	b.await(`document.querySelector("dialog[open]") && document.querySelector("dialog[open]").contains(document.activeElement)`)
	b.key("Escape")
	b.await(`!document.querySelector("dialog[open]")`)
	b.key("j")
	b.key("e")
	b.await(`location.pathname.startsWith("/jobs/") && location.search === "?tab=explain"`)
	if title, _ := b.eval(`document.title`).(string); !strings.Contains(title, "Berth") {
		t.Errorf("title %q", title)
	}
	at, _ := url.Parse(s.url)
	b.clean("keys", at.Host)
}
