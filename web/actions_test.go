package web_test

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"berth"
	"berth/spec"
	"berth/wire"
)

func TestActionsAskFirstAndCount(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	first, second := s.submit("alice", nil), s.submit("alice", nil)
	ids := url.Values{"id": {string(first.ID), string(second.ID)}, "do": {"cancel"}, "back": {"/jobs?q=x"}}
	alice := s.signedIn("alice")
	ask := alice.get("/act?" + ids.Encode())
	if ask.status != http.StatusOK || !strings.Contains(ask.body, "2 jobs will be canceled") || !strings.Contains(ask.body, "Cancel 2 jobs") {
		t.Errorf("%d %s", ask.status, ask.body)
	}
	if j, err := s.as("alice").Job(t.Context(), first.ID); err != nil || j.Status.Terminal() {
		t.Fatalf("the question canceled the job: %s, %v", j.Status, err)
	}
	if a := alice.post("/act", ids); a.status != http.StatusSeeOther || a.header.Get("Location") != "/jobs?q=x" {
		t.Errorf("%d %s", a.status, a.body)
	}
	for _, id := range []berth.JobID{first.ID, second.ID} {
		if j, err := s.as("alice").Job(t.Context(), id); err != nil || j.Status != berth.Canceled {
			t.Errorf("%s, %v", j.Status, err)
		}
	}
}

func TestEachActionDoesItsPart(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	alice := s.signedIn("alice")
	j := s.submit("alice", nil)
	do := func(name string, more url.Values) answer {
		t.Helper()
		form := url.Values{"do": {name}, "id": {string(j.ID)}, "back": {"/jobs/" + string(j.ID)}}
		for k, v := range more {
			form[k] = v
		}
		return alice.post("/act", form)
	}
	now := func() (held bool, priority spec.Priority, status berth.State) {
		t.Helper()
		got, err := s.as("alice").Job(t.Context(), j.ID)
		if err != nil {
			t.Fatal(err)
		}
		return got.Held, got.Priority, got.Status
	}
	if a := do("hold", nil); a.status != http.StatusSeeOther {
		t.Errorf("hold: %d %s", a.status, a.body)
	}
	if held, _, _ := now(); !held {
		t.Error("not held")
	}
	do("release", nil)
	if held, _, _ := now(); held {
		t.Error("not released")
	}
	for text, want := range map[string]spec.Priority{"high": 800, "123": 123} {
		do("priority", url.Values{"priority": {text}})
		if _, got, _ := now(); got != want {
			t.Errorf("priority %s is %d", text, got)
		}
	}
	if a := do("priority", url.Values{"priority": {"urgent"}}); a.status != http.StatusUnprocessableEntity || !strings.Contains(a.body, "allowed are") {
		t.Errorf("a bad priority: %d %s", a.status, a.body)
	}
	do("cancel", nil)
	if _, _, status := now(); status != berth.Canceled {
		t.Errorf("%s", status)
	}
	a := do("retry", nil)
	if next := a.header.Get("Location"); a.status != http.StatusSeeOther || !strings.HasPrefix(next, "/jobs/") || strings.HasSuffix(next, string(j.ID)) {
		t.Errorf("retry: %d to %s", a.status, next)
	}
	if a := do("explode", nil); a.status != http.StatusUnprocessableEntity {
		t.Errorf("an unknown action: %d", a.status)
	}
}

func TestASelectionReportsEachRefusal(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	live, ended := s.submit("alice", nil), s.submit("alice", nil)
	if _, err := s.as("alice").Cancel(t.Context(), ended.ID); err != nil {
		t.Fatal(err)
	}
	a := s.signedIn("alice").post("/act", url.Values{"do": {"hold"}, "id": {string(live.ID), string(ended.ID)}})
	if a.status != http.StatusConflict || !strings.Contains(a.body, "Done for 1 job, refused for 1 job") {
		t.Errorf("%d %s", a.status, a.body)
	}
}

func TestOperatorsDrainMachines(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.machine("m1", 2)
	admin := s.signedIn("admin")
	if a := admin.get("/act?do=drain&machine=m1"); a.status != http.StatusOK || !strings.Contains(a.body, "Machine m1 will get no new work. 0 jobs on it now.") {
		t.Errorf("%d %s", a.status, a.body)
	}
	form := url.Values{"do": {"drain"}, "machine": {"m1"}, "reason": {"new kernel"}, "within": {"30m"}, "back": {"/machines/m1"}}
	if a := s.signedIn("alice").post("/act", form); a.status != http.StatusForbidden {
		t.Errorf("a user drains: %d", a.status)
	}
	if a := admin.post("/act", url.Values{"do": {"drain"}, "machine": {"m1"}}); a.status != http.StatusUnprocessableEntity {
		t.Errorf("without a reason: %d", a.status)
	}
	if a := admin.post("/act", form); a.status != http.StatusSeeOther {
		t.Errorf("%d %s", a.status, a.body)
	}
	a := admin.get("/machines/m1")
	for _, want := range []string{"new kernel", "operator:admin", "Undrain", "A100"} {
		if !strings.Contains(a.body, want) {
			t.Errorf("without %q:\n%s", want, a.body)
		}
	}
	admin.post("/act", url.Values{"do": {"undrain"}, "machine": {"m1"}})
	if m, err := s.as("admin").Machine(t.Context(), "m1"); err != nil || m.State != berth.MachineReady {
		t.Errorf("%s, %v", m.State, err)
	}
}

func TestOperatorsApproveMachines(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.machine("m1", 2)
	s.exec(`UPDATE machines SET equipment = '{"cpu_milli": 8000, "memory_mib": 2048, "region": "eu", "labels": {"rack": "r7"},
		"gpus": [{"uuid": "a", "model": "A100", "memory_mib": 1}, {"uuid": "b", "model": "A100", "memory_mib": 1}]}', held = 'waits for approval', state = 'ready'`)
	admin := s.signedIn("admin")
	if a := admin.get("/machines/m1"); !strings.Contains(a.body, "pending") || !strings.Contains(a.body, `value="approve"`) {
		t.Errorf("%d %s", a.status, a.body)
	}
	ask := admin.get("/act?do=approve&machine=m1")
	shown := regexp.MustCompile(`name="fingerprint" value="([0-9a-f]{12})"`).FindStringSubmatch(ask.body)
	for _, want := range []string{"It waits for approval.", "8 CPUs, 2 A100, 2.0 GiB of memory, region eu", "rack=r7"} {
		if !strings.Contains(ask.body, want) {
			t.Errorf("without %q:\n%s", want, ask.body)
		}
	}
	if shown == nil {
		t.Fatal("the confirmation has no fingerprint")
	}
	form := url.Values{"do": {"approve"}, "machine": {"m1"}, "fingerprint": {shown[1]}}
	if a := s.signedIn("alice").post("/act", form); a.status != http.StatusForbidden {
		t.Errorf("a user approves: %d", a.status)
	}
	s.exec(`UPDATE machines SET equipment = equipment || '{"cpu_milli": 9000}'`)
	if a := admin.post("/act", form); !strings.Contains(a.body, "other equipment") {
		t.Errorf("equipment that was not shown is approved: %d %s", a.status, a.body)
	}
	s.exec(`UPDATE machines SET equipment = equipment || '{"cpu_milli": 8000}'`)
	admin.post("/act", form)
	if m, err := s.as("admin").Machine(t.Context(), "m1"); err != nil || m.State == wire.MachinePending {
		t.Errorf("%s, %v", m.State, err)
	}
}

func TestPastedFilesArePlannedAndSubmittedOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.machine("m1", 0)
	alice := s.signedIn("alice")
	form := alice.get("/submit")
	key := regexp.MustCompile(`name="key" value="([0-9a-f]{64})"`).FindStringSubmatch(form.body)
	if form.status != http.StatusOK || key == nil {
		t.Fatalf("%d %s", form.status, form.body)
	}
	file := url.Values{"key": {key[1]}, "file": {"name: pasted\r\nimage: busybox\r\ncommand: [echo, hi]\r\n"}, "do": {"plan"}}
	if a := alice.post("/submit", file); a.status != http.StatusOK || !strings.Contains(a.body, "would start") {
		t.Errorf("plan: %d %s", a.status, a.body)
	}
	file.Set("do", "submit")
	first, second := alice.post("/submit", file), alice.post("/submit", file)
	if first.status != http.StatusSeeOther || first.header.Get("Location") != second.header.Get("Location") {
		t.Errorf("%d to %s, then to %s: %s", first.status, first.header.Get("Location"), second.header.Get("Location"), first.body)
	}
	bad := alice.post("/submit", url.Values{"file": {"name: x\nimage: y\nresources: {gpus: -1}\nfoo: 1\n"}, "do": {"plan"}})
	if bad.status != http.StatusUnprocessableEntity || !strings.Contains(bad.body, "pasted:4:1") || !strings.Contains(bad.body, "foo: 1") {
		t.Errorf("a bad file: %d %s", bad.status, bad.body)
	}
	pipeline := "kind: pipeline\nname: two\njobs:\n  a: {image: busybox}\n  b: {image: busybox, needs: [a]}\n"
	a := alice.post("/submit", url.Values{"file": {pipeline}, "do": {"submit"}})
	if a.status != http.StatusSeeOther {
		t.Fatalf("a pipeline: %d %s", a.status, a.body)
	}
	page := alice.get(a.header.Get("Location"))
	if !strings.Contains(page.body, `aria-label="Graph of 2 steps"`) {
		t.Errorf("without a graph:\n%s", page.body)
	}
	if a := alice.get("/submit?from=" + strings.TrimPrefix(first.header.Get("Location"), "/jobs/")); !strings.Contains(a.body, "&#34;pasted&#34;") {
		t.Errorf("the form does not have the old spec: %s", a.body)
	}
}

func TestAnArrayHasAMapOfItsElements(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	j := s.submit("alice", func(j *spec.Job) { j.Array = &spec.Array{Size: 5000, Parallel: 2} })
	page := s.signedIn("alice").get("/jobs/" + string(j.ID))
	if page.status != http.StatusOK || !strings.Contains(page.body, `data-heat="0"`) || !strings.Contains(page.body, "2000–3999") {
		t.Errorf("%d %s", page.status, page.body)
	}
	if last := s.signedIn("alice").get("/jobs/" + string(j.ID) + "?from=4000"); !strings.Contains(last.body, "Elements 4000 to 4999") {
		t.Errorf("%s", last.body)
	}
	if a := s.signedIn("alice").get("/jobs/" + string(j.ID) + "/elements/7"); a.status != http.StatusNotFound {
		t.Errorf("an element that does not exist: %d", a.status)
	}
}
