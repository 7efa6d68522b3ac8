package web

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/api/client"
	"berth/internal/lib/golden"
	"berth/spec"
	"berth/wire"
)

func TestASearchLineBecomesAQuery(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)
	for line, want := range map[string]client.JobsQuery{
		"":      {},
		"train": {Name: "train"},
		"status:failed,queued owner:me since:7d": {Status: []berth.State{berth.Failed, berth.Queued},
			SubmittedBy: "user:alice", Since: now.AddDate(0, 0, -7)},
		"label:project=vision label:a=b=c dead:yes": {Labels: map[string]string{"project": "vision", "a": "b=c"}, DeadLetter: true},
		"status:ended owner:bob tenant:b":           {Status: stateGroups["ended"], SubmittedBy: "user:bob", Tenant: "b"},
		"owner:schedule:nightly since:2026-01-31":   {SubmittedBy: "schedule:nightly", Since: time.Date(2026, 1, 31, 0, 0, 0, 0, time.UTC)},
		"parent:x since:36h":                        {Parent: "x", Since: now.Add(-36 * time.Hour)},
	} {
		got, err := parseSearch(line, "user:alice", now)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, %v; want %+v", line, got, err, want)
		}
	}
	for _, line := range []string{"colour:red", "status:", "status:happy", "since:yesterday", "label:x", "a b", "since:-3h", ":"} {
		if _, err := parseSearch(line, "user:alice", now); berth.CodeOf(err) != berth.CodeInvalid ||
			!strings.Contains(err.Error(), "allowed are") && !strings.Contains(err.Error(), "must be") {
			t.Errorf("%q: %v", line, err)
		}
	}
}

func TestLinesOfLogsAreTextWithColors(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"plain <b>":                        "plain &lt;b&gt;",
		"\x1b[31mred\x1b[0m end":           `<span class="a31">red</span> end`,
		"\x1b[1;32mbold":                   `<span class="a1 a32">bold</span>`,
		"10%\r50%\r100%":                   "100%",
		"100%\r":                           "100%",
		"a\x1b[2Kb\x1b]0;title\x07c":       "ab]0;titlec",
		"\x1b[38;5;196mx":                  "x",
		"\x1b[31":                          "",
		"\x1b":                             "",
		"\x1b[31\"onload=alert(1)mx":       "nload=alert(1)mx",
		"\x1b[31m\x1b[32mgreen\x1b[mplain": `<span class="a31"></span><span class="a32">green</span>plain`,
		"bell\x07 tab\tend":                "bell tab\tend",
	} {
		got := strings.ReplaceAll(string(ansi(line)), "&#34;", `"`)
		if got != want {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}

func TestNoLineOfALogBecomesHTML(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	pieces := []string{"<", ">", "\"", "'", "&", "\x1b", "[", "m", ";", "31", "script", "\r", "\x00", "=", " ", "é"}
	for range 20_000 {
		var line strings.Builder
		for range r.IntN(20) {
			line.WriteString(pieces[r.IntN(len(pieces))])
		}
		got := string(ansi(line.String()))
		for _, tag := range strings.Split(got, "<")[1:] {
			if !strings.HasPrefix(tag, `span class="a`) && !strings.HasPrefix(tag, "/span>") {
				t.Fatalf("%q became %q", line.String(), got)
			}
		}
		if strings.Count(got, "<span") != strings.Count(got, "</span") {
			t.Fatalf("%q became %q", line.String(), got)
		}
	}
}

// pipelineOf returns the steps of a pipeline whose needs are drawn by a seed.
func pipelineOf(n, width int, seed uint64) []wire.Step {
	r := rand.New(rand.NewPCG(seed, 0))
	start := time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)
	steps := make([]wire.Step, n)
	for i := range steps {
		steps[i] = wire.Step{Name: fmt.Sprintf("step-%d", i), Job: berth.JobID(fmt.Sprintf("job-%d", i)), Status: berth.States[i%10]}
		at := start.Add(time.Duration(i) * time.Minute)
		if i < n/2 {
			steps[i].StartedAt = &at
		}
		for range min(i, r.IntN(3)+1) {
			steps[i].Needs = append(steps[i].Needs, fmt.Sprintf("step-%d", max(0, i-1-r.IntN(width))))
		}
	}
	return steps
}

func TestGraphsAreDrawnAsBefore(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 10, 13, 0, 0, 0, time.UTC)
	diamond := []wire.Step{
		{Name: "prepare", Job: "a", Status: berth.Succeeded},
		{Name: "train", Job: "b", Kind: berth.KindArray, Status: berth.Running, Needs: []string{"prepare"},
			Tally: &wire.Tally{Total: 128, ByStatus: map[berth.State]int{berth.Succeeded: 120, berth.Failed: 3}}},
		{Name: "<check>", Job: "c", Status: berth.Failed, Needs: []string{"prepare"}},
		{Name: "report", Job: "d", Status: berth.Submitted, Needs: []string{"train", "<check>", "prepare"}, Final: true},
	}
	for name, steps := range map[string][]wire.Step{"diamond": diamond, "twenty": pipelineOf(20, 6, 1)} {
		svg := string(drawGraph(steps, criticalPath(steps, now)))
		golden.Check(t, filepath.Join("testdata", name+".svg"), strings.ReplaceAll(svg, "><", ">\n<")+"\n")
	}
}

func TestALargeGraphIsLaidOutFastAndSmall(t *testing.T) {
	t.Parallel()
	steps := pipelineOf(500, 40, 2)
	first := drawGraph(steps, nil)
	if second := drawGraph(steps, nil); first != second {
		t.Error("the same graph is drawn in two ways")
	}
	if len(first) > 250<<10 {
		t.Errorf("500 steps are a picture of %d bytes", len(first))
	}
}

func TestSweepsTakeCrossingsAway(t *testing.T) {
	t.Parallel()
	// Two chains whose second layer is listed in the other order.
	g := layOut([][]int{{}, {}, {1}, {0}, {2}, {3}})
	if n := g.crossings(); n != 0 {
		t.Errorf("%d crossings", n)
	}
}

func TestFaultyGraphsAreDrawn(t *testing.T) {
	t.Parallel()
	for _, needs := range [][][]int{{{0}}, {{1}, {0}}, {{5}, {-1}}, {{}}, {{2}, {0}, {1}, {0, 0, 0}}} {
		g := layOut(needs)
		if len(g.nodes) != len(needs) {
			t.Errorf("%v: %d nodes", needs, len(g.nodes))
		}
	}
	if drawGraph(nil, nil) != "" {
		t.Error("nothing is drawn")
	}
}

func BenchmarkGraphOf500Steps(b *testing.B) {
	steps := pipelineOf(500, 40, 2)
	for b.Loop() {
		drawGraph(steps, nil)
	}
}

func TestAHeatMapIsSmall(t *testing.T) {
	t.Parallel()
	cells := make([]string, mapElements)
	for i := range cells {
		cells[i] = []string{"", "wait", "run", "good", "bad"}[i%5]
	}
	if n := len(heatMap(cells, 98_000)); n > 60<<10 {
		t.Errorf("%d elements are a picture of %d bytes", len(cells), n)
	}
}

func TestAMapOfMachinesIsSmall(t *testing.T) {
	t.Parallel()
	var machines []wire.Machine
	for i := range 300 {
		m := wire.Machine{ID: berth.MachineID(fmt.Sprintf("gpu-%03d", i)), State: berth.MachineReady}
		for k := range 8 {
			m.GPUs = append(m.GPUs, wire.MachineGPU{GPU: berth.GPU{Index: k, Healthy: true}, UsedMilli: int64(k%2) * 1000})
		}
		machines = append(machines, m)
	}
	if n := len(machineMap(machines)); n > 150<<10 {
		t.Errorf("300 machines are a picture of %d bytes", n)
	}
}

func TestATimelineHasAllParts(t *testing.T) {
	t.Parallel()
	at := func(minute int) time.Time { return time.Date(2026, 3, 10, 12, minute, 0, 0, time.UTC) }
	p := func(minute int) *time.Time { x := at(minute); return &x }
	step := int64(10)
	j := wire.Job{SubmittedAt: at(0), Status: berth.Succeeded, FinishedAt: p(50), Spec: &spec.Job{}, Attempts: []berth.Attempt{
		{Number: 1, PlacedAt: at(2), StartedAt: p(6), EndedAt: p(20), Outcome: &berth.Reason{Code: berth.ReasonMachineLost}},
		{Number: 2, PlacedAt: at(21), StartedAt: p(25), EndedAt: p(50), Next: berth.Succeeded}}}
	events := []wire.Event{
		{At: at(3), Attempt: 1, Kind: wire.EventClaimed}, {At: at(5), Attempt: 1, Kind: wire.EventImagePulled},
		{At: at(10), Attempt: 1, Kind: wire.EventCheckpoint, Facts: &wire.EventFacts{Step: &step}},
		{At: at(24), Attempt: 2, Kind: wire.EventRestored}, {At: at(48), Attempt: 2, Kind: wire.EventExited},
	}
	svg := string(timeline(j, events, at(60)))
	for _, want := range []string{"waiting: 2 min", "claiming: 1 min", "pulling: 2 min", "starting: 1 min", "running: 14 min",
		"checkpoint of step 10", "restoring: 3 min", `class="f-good"`, "saving logs and results: 2 min", `aria-label="Time line of 2 attempts in 50 min 00 s"`} {
		if !strings.Contains(svg, want) {
			t.Errorf("without %q:\n%s", want, svg)
		}
	}
}

// Each template is rendered with the zero value of its data, and must not fail: a document may lack
// everything.
func TestTemplatesTakeZeroValues(t *testing.T) {
	t.Parallel()
	zero := map[string]any{
		"overview": overviewView{}, "jobs": jobsView{}, "queue": queueView{}, "machines": machinesView{},
		"machine": machineView{}, "schedules": schedulesView{}, "schedule": scheduleView{}, "tenants": tenantsView{},
		"usage": usageView{}, "me": meView{},
		"submit": submitView{}, "login": signInView{}, "error": problemView{}, "act": actView{}, "acted": actView{},
		"job": jobView{},
	}
	for name := range templates {
		data, ok := zero[name]
		if !ok {
			t.Errorf("template %s has no case", name)
			continue
		}
		for _, r := range []*reader{nil, {}, {Role: spec.RoleAdmin}} {
			if r == nil && name != "login" && name != "error" {
				continue
			}
			if _, err := render(page{Reader: r}, result{template: name, data: data}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	for _, tb := range jobTabs {
		parts := map[string]any{"log": logView{}, "events": eventsView{}, "explain": wire.Explanation{}, "metrics": metricsView{},
			"checkpoints": []berth.Checkpoint{{}}, "outputs": []wire.StoredOutput{{}}, "spec": "", "graph": graphView{},
			"elements": elementsView{}, "sessions": sessionsView{Rows: []sessionRow{{}}}}
		part, ok := parts[tb.key]
		if !ok {
			t.Errorf("tab %s has no case", tb.key)
		}
		view := jobView{Tab: tb.key, Part: part}
		if _, err := render(page{Reader: &reader{}}, result{template: "job", data: view}); err != nil {
			t.Errorf("tab %s: %v", tb.key, err)
		}
	}
}

func TestACheckpointThatWasPassedOverIsMarked(t *testing.T) {
	t.Parallel()
	list := []berth.Checkpoint{{Step: 10, State: berth.CheckpointVerified, PassedOver: true, Detail: "no answer"},
		{Step: 5, State: berth.CheckpointVerified}}
	text, err := render(page{Reader: &reader{}}, result{template: "job", data: jobView{Tab: "checkpoints", Part: list}})
	if err != nil || !strings.Contains(string(text), "<td>verified, passed over: no answer</td>") ||
		!strings.Contains(string(text), "<td>verified</td>") {
		t.Errorf("the page is %s, %v", text, err)
	}
}

func TestLiveRowsAreWholeElements(t *testing.T) {
	t.Parallel()
	rows := liveRows(`<table><tr class="x" data-live="a&amp;b"><td><table><tr><td>1</td></tr></table></td></tr>` +
		`<tr data-live="c"><td>2</td></tr></table><section data-live="s"><p>3</p></section><div data-live="broken">`)
	want := map[string]string{
		"a&b": `<tr class="x" data-live="a&amp;b"><td><table><tr><td>1</td></tr></table></td></tr>`,
		"c":   `<tr data-live="c"><td>2</td></tr>`, "s": `<section data-live="s"><p>3</p></section>`,
	}
	if !reflect.DeepEqual(rows, want) {
		t.Errorf("%q", rows)
	}
	sent := map[string]rowSum{}
	if n := len(changedRows(rows, sent)); n != 3 {
		t.Errorf("%d rows at first", n)
	}
	if n := len(changedRows(rows, sent)); n != 0 {
		t.Errorf("%d rows without a change", n)
	}
	changedRows(nil, sent)
	if len(sent) != 3 {
		t.Errorf("a failed reading leaves %d rows noted", len(sent))
	}
	delete(rows, "c")
	changedRows(rows, sent)
	if _, ok := sent["c"]; ok || len(sent) != 2 {
		t.Errorf("a row that is gone is still noted: %d rows", len(sent))
	}
	clock := func(text string) map[string]string {
		return map[string]string{"t": `<td><time class="ago" datetime="x">` + text + `</time></td>`}
	}
	changedRows(clock("1 s ago"), sent)
	if n := len(changedRows(clock("2 s ago"), sent)); n != 0 {
		t.Error("the clock alone changes a row")
	}
}

func TestAddressesStayOnThisSite(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"/jobs?q=a": "/jobs?q=a", "": "/", "jobs": "/", "//evil": "/", "https://evil/": "/", `/\evil`: "/", "/a\nb": "/",
	} {
		if got := localPath(text); got != want {
			t.Errorf("%q: %q", text, got)
		}
	}
	u, _ := url.Parse("/jobs?q=a&cursor=x")
	if got := linkOf(u, "cursor", "", "cols", "owner"); got != "/jobs?cols=owner&q=a" {
		t.Error(got)
	}
}

func TestAssetsHaveNoOtherHost(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("templates/*.html")
	if err != nil || len(files) == 0 {
		t.Fatal(err)
	}
	for _, f := range append(files, "assets/style.css") {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, bad := range []string{`src="http`, `href="http`, "@import", "url(http"} {
			if bytes.Contains(b, []byte(bad)) {
				t.Errorf("%s has %q", f, bad)
			}
		}
	}
}
