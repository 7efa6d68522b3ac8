package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/wire"
)

const advisedHour = 3600

func TestIntervalText(t *testing.T) {
	t.Parallel()
	for want, i := range map[string]wire.CheckpointInterval{
		"checkpoint interval: about every 25m would lose least work\n" +
			"(saving takes 40s; machines like its own are lost every 9d; now every 2m)": {
			AdvisedSeconds: 1500, SaveSeconds: 40, LossSeconds: 9 * 86400, PresentSeconds: 120, Machines: 1, LostMachines: 3},
		"checkpoint interval: about every 60m would lose least work\n" +
			"(saving takes 0.4s; its machines are lost every 20h)": {
			AdvisedSeconds: advisedHour, SaveSeconds: 0.4, LossSeconds: 20 * 3600, Machines: 16, LostMachines: 3},
		"checkpoint interval: about every 60m would lose least work\n" +
			"(saving takes 12s; no machine like its own was lost in 240 days of service; now every 3h0m)": {
			AdvisedSeconds: advisedHour, SaveSeconds: 12, LossSeconds: 540 * 86400, PresentSeconds: 3 * 3600, Machines: 16,
			MachineDays: 240},
	} {
		if got := intervalText(i); got != want {
			t.Errorf("advice is\n%s\nwant\n%s", got, want)
		}
	}
}

// TestShowAdvisesOnTheInterval checks that "berth show" prints advice for a job with measured checkpoints alone, and none
// with a server that cannot give it.
func TestShowAdvisesOnTheInterval(t *testing.T) {
	t.Parallel()
	const id = "0198c0de-0000-7000-8000-000000000001"
	took := 40.0
	for name, c := range map[string]struct {
		write  *float64
		answer int
		body   wire.CheckpointInterval
		want   bool
	}{
		"measured":     {&took, http.StatusOK, wire.CheckpointInterval{AdvisedSeconds: advisedHour}, true},
		"too little":   {&took, http.StatusOK, wire.CheckpointInterval{}, false},
		"old server":   {&took, http.StatusNotFound, wire.CheckpointInterval{}, false},
		"not measured": {nil, http.StatusOK, wire.CheckpointInterval{AdvisedSeconds: advisedHour}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mux := http.NewServeMux()
			mux.HandleFunc("GET /v1/jobs/{id}", func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				_ = json.NewEncoder(w).Encode(wire.Job{ID: id, Name: "train", Status: berth.Running,
					Checkpoints: []berth.Checkpoint{{Step: 7, Attempt: 1, State: berth.CheckpointVerified, Write: c.write,
						CreatedAt: time.Unix(0, 0)}}})
			})
			mux.HandleFunc("GET /v1/jobs/{id}/checkpoint-interval", func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(c.answer)
				_ = json.NewEncoder(w).Encode(c.body)
			})
			server := httptest.NewServer(mux)
			t.Cleanup(server.Close)
			var out, errs bytes.Buffer
			a := &app{config: config{URL: server.URL}, in: strings.NewReader(""), out: &out, err: &errs, now: time.Now}
			if code := run(t.Context(), a, []string{"show", id}); code != 0 {
				t.Fatalf("exit code %d: %s", code, errs.String())
			}
			if got := strings.Contains(out.String(), "checkpoint interval: about every 60m"); got != c.want {
				t.Errorf("advice %t, want %t:\n%s", got, c.want, out.String())
			}
			if got := strings.Contains(out.String(), "SAVED IN"); got != (c.write != nil) {
				t.Errorf("times of checkpoints are shown: %t\n%s", got, out.String())
			}
		})
	}
}
