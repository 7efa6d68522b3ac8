package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"berth/wire"
)

// A launched machine that has not joined has no row; its launch is shown in its place.
func TestMachineShowHasTheLaunchOfAMachineThatBoots(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/machines/{id}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(map[string]any{"status": 404, "code": "not_found", "detail": "no such machine"})
	})
	mux.HandleFunc("GET /v1/launches", func(w http.ResponseWriter, r *http.Request) {
		var list wire.Page[wire.Launch]
		if r.URL.Query().Get("machine") == "vm-1" {
			list.Items = []wire.Launch{{Machine: "vm-1", N: 1, State: "running", Type: "big", Region: "eu-1"}}
		}
		_ = json.NewEncoder(w).Encode(list)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	show := func(m string) (int, string) {
		var stdout, stderr bytes.Buffer
		a := &app{config: config{URL: server.URL}, in: strings.NewReader(""), out: &stdout, err: &stderr, now: time.Now}
		return run(t.Context(), a, []string{"machine", "show", m}), stdout.String()
	}
	if code, out := show("vm-1"); code != 0 || !strings.Contains(out, "running") || !strings.Contains(out, "eu-1") {
		t.Errorf("exit %d, %q", code, out)
	}
	if code, out := show("vm-2"); code == 0 || out != "" {
		t.Errorf("a machine that does not exist: exit %d, %q", code, out)
	}
}
