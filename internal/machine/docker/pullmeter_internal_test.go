package docker

import (
	"encoding/json"
	"strings"
	"testing"
)

// The lines come from an engine that pulls an image of three layers, of which it has one.
func TestThePullMeterReadsTheEnginesProgress(t *testing.T) {
	t.Parallel()
	m := &images{}
	if _, known := m.PullPercent("tool:1"); known {
		t.Error("an image that is not being pulled has a share")
	}
	p, end := m.meter.begin(canonical("tool:1"))
	for _, step := range []struct {
		line  string
		want  int
		known bool
	}{
		{`{"status":"Pulling from team/tool","id":"1"}`, 0, false},
		{`{"status":"Already exists","id":"a"}`, 0, false},
		{`{"status":"Pulling fs layer","id":"b"}`, 0, false},
		{`{"status":"Pulling fs layer","id":"c"}`, 0, false},
		// 100 + 7 + 0 of 300
		{`{"status":"Downloading","progressDetail":{"current":100,"total":1000},"id":"b"}`, 35, true},
		{`{"status":"Downloading","progressDetail":{"current":1000,"total":1000},"id":"b"}`, 56, true},
		{`{"status":"Download complete","id":"b"}`, 56, true},
		{`{"status":"Extracting","progressDetail":{"current":500,"total":1000},"id":"b"}`, 61, true},
		{`{"status":"Pull complete","id":"b"}`, 66, true},
		// known late: the share stays
		{`{"status":"Downloading","progressDetail":{"current":0,"total":98000},"id":"c"}`, 66, true},
		{`{"status":"Pull complete","id":"c"}`, 100, true},
		{`{"status":"Digest: sha256:00"}`, 100, true},
	} {
		var s layerStatus
		if err := json.NewDecoder(strings.NewReader(step.line)).Decode(&s); err != nil {
			t.Fatal(err)
		}
		p.note(s)
		if got, known := m.PullPercent("docker.io/library/tool:1"); got != step.want || known != step.known {
			t.Errorf("after %s: %d, %v; want %d, %v", step.line, got, known, step.want, step.known)
		}
	}
	end()
	if _, known := m.PullPercent("tool:1"); known {
		t.Error("a pull that is over has a share")
	}
}
