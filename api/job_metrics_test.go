package api_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/spec"
	"berth/wire"
)

func TestMetricsAreReadAsSeriesAndAsAPicture(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	a := s.joinMachine("m1")
	job := s.submit("alice", nil)
	path := "/v1/jobs/" + string(job.ID) + "/metrics"
	if got := s.call("alice", "GET", path, ""); got.status != http.StatusOK || got.body != `{"items":[]}` {
		t.Errorf("before it ran: %d %s", got.status, got.body)
	}
	a.take(job.ID)
	key := berth.MetricsKey(job.Tenant, job.ID, 1, 0)
	started := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	stored := `{"attempt": 7, "member": 9, "machine": "m1", "started_at": "2026-01-31T12:00:00Z", "step": "2s", "series": [
		{"metric": "cpu", "unit": "bogus", "values": [0.5, null, 1.5]},
		{"metric": "gpu", "gpu": "<b>&GPU", "unit": "ratio", "values": [1, 1, 0]}]}`
	if put := a.call("m1", "PUT", "/agent/v1/objects/"+key, stored); put.status != http.StatusNoContent {
		t.Fatalf("%d %s", put.status, put.body)
	}
	read := func(query string) (list wire.Page[wire.MemberMetrics]) {
		t.Helper()
		got := s.call("alice", "GET", path+query, "")
		if err := json.Unmarshal([]byte(got.body), &list); err != nil || got.status != http.StatusOK || got.header.Get("Content-Type") != "application/json" {
			t.Fatalf("%s: %d %s", query, got.status, got.body)
		}
		return list
	}
	for _, query := range []string{"", "?attempt=1&member=0", "?since=2026-01-31T11:00:00Z"} {
		list := read(query)
		if len(list.Items) != 1 {
			t.Fatalf("%s: %+v", query, list)
		}
		m := list.Items[0] // whose it is the key says, and units are the metrics' own
		if m.Attempt != 1 || m.Member != 0 || m.Series[0].Unit != "cores" || len(m.Series[0].Values) != 3 || m.Step.Std() != 2*time.Second {
			t.Errorf("%s: %+v", query, m)
		}
	}
	if m := read("?since=2026-01-31T12:00:03Z").Items[0]; !m.StartedAt.Equal(started.Add(2*time.Second)) || len(m.Series[1].Values) != 2 {
		t.Errorf("since: %+v", m)
	}
	picture := s.call("alice", "GET", path+"?format=svg", "")
	if picture.header.Get("Content-Type") != "image/svg+xml" || !strings.Contains(picture.header.Get("Content-Security-Policy"), "sandbox") {
		t.Errorf("headers are %v", picture.header)
	}
	if !strings.Contains(picture.body, "&lt;b&gt;&amp;GPU") || strings.Contains(picture.body, "<b>") || strings.Count(picture.body, "<path") != 2 {
		t.Errorf("the picture is %s", picture.body)
	}
	for query, want := range map[string]int{
		"?attempt=2": 404, "?member=1": 404, "?since=yesterday": 400, "?format=png": 422, "?member=-2": 422, "?limit=65": 422, "?cursor=x": 400,
	} {
		if got := s.call("alice", "GET", path+query, ""); got.status != want {
			t.Errorf("%s: %d %s, want %d", query, got.status, got.body, want)
		}
	}
	// A machine's word is not trusted further than its form.
	for _, bad := range []string{
		`{`, `{"started_at": "2026-01-31T12:00:00Z", "step": "0s"}`, strings.Replace(stored, `"cpu"`, `"<script>"`, 1), strings.Replace(stored, `[1, 1, 0]`, `[1]`, 1),
		strings.Replace(stored, `[0.5, null, 1.5]`, `[`+strings.Repeat("1,", wire.MaxPoints)+`1]`, 1), strings.Replace(stored, `2s`, `2s"`+strings.Repeat(" ", wire.MaxMetricBytes)+`,"x":"`, 1),
	} {
		if put := a.call("m1", "PUT", "/agent/v1/objects/"+key, bad); put.status != http.StatusNoContent {
			t.Fatalf("%d %s", put.status, put.body)
		}
		if list := read(""); len(list.Items) != 0 {
			t.Errorf("%.100s is read as %+v", bad, list)
		}
	}
}

func TestMetricsOfAGangComeInPages(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	a := s.joinMachine("m1")
	job := s.submit("alice", func(j *spec.Job) { j.Members = 3 })
	a.take(job.ID)
	s.exec(`INSERT INTO allocations (job, attempt, rank, machine_id, machine_epoch, cpu_m, mem_mb, disk_mb, gpu_milli, state)
		SELECT $1, 1, r, 'm1', $2, 1, 1, 0, 0, 'active' FROM generate_series(1, 2) r`, job.ID, a.epoch)
	for _, member := range []int{0, 2} { // nothing was measured of member 1
		put := a.call("m1", "PUT", "/agent/v1/objects/"+berth.MetricsKey(job.Tenant, job.ID, 1, member),
			`{"started_at": "2026-01-31T12:00:00Z", "step": "2s", "series": [{"metric": "cpu", "values": [1]}]}`)
		if put.status != http.StatusNoContent {
			t.Fatalf("%d %s", put.status, put.body)
		}
	}
	var members []int
	pages := 0
	for cursor := ""; pages == 0 || cursor != ""; pages++ {
		var list wire.Page[wire.MemberMetrics]
		got := s.call("alice", "GET", "/v1/jobs/"+string(job.ID)+"/metrics?limit=1&cursor="+cursor, "")
		if err := json.Unmarshal([]byte(got.body), &list); err != nil {
			t.Fatalf("%d %s", got.status, got.body)
		}
		for _, m := range list.Items {
			members = append(members, m.Member)
		}
		cursor = list.NextCursor
	}
	if pages != 3 || len(members) != 2 || members[0] != 0 || members[1] != 2 {
		t.Errorf("%d pages tell of members %v", pages, members)
	}
}
