package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/spec"
	"berth/wire"
)

// A value of --env or --label arrives byte for byte: commas, quotes and line feeds are part of it.
func TestPairsAreTakenLiterally(t *testing.T) {
	t.Parallel()
	var got spec.Job
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			if err := json.NewDecoder(r.Body).Decode(&got); err != nil {
				t.Error(err)
			}
		}
		_ = json.NewEncoder(w).Encode(wire.Job{ID: "0193a1b2-c3d4-7000-8000-000000000001", Name: got.Name})
	}))
	defer server.Close()
	a, b := onTerminal(80, false)
	a.URL = server.URL
	code := run(t.Context(), a, []string{"run", "-d", "--image", "busybox", "-e", "OVERRIDES=lr=0.1,bs=32",
		"-e", "CFG=a=1\nb=2\n", "-e", `J={"a":"x=y"}`, "-e", `MSG=say "hi"`, "-e", "EMPTY=", "-e", "TWICE=1",
		"-e", "TWICE=2", "-l", "path=a=b,c=d"})
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, b)
	}
	env := map[string]string{"OVERRIDES": "lr=0.1,bs=32", "CFG": "a=1\nb=2\n", "J": `{"a":"x=y"}`, "MSG": `say "hi"`,
		"EMPTY": "", "TWICE": "2"}
	if diff := cmp.Diff(env, got.Env); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"path": "a=b,c=d"}, got.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
}

// Two values of one label match nothing, so no command acts on the things that have the last of these.
func TestAFilterHasOneValueOfALabel(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("%s %s", r.Method, r.URL)
	}))
	defer server.Close()
	for _, args := range [][]string{
		{"cancel", "--yes"}, {"list"}, {"machine", "drain", "--reason", "x"},
		{"maintenance", "create", "--reason", "x", "--from", "2026-01-31T12:00:00Z", "--for", "1h"},
	} {
		a, b := onTerminal(80, false)
		a.URL = server.URL
		code := run(t.Context(), a, append(args, "-l", "team=a", "-l", "zone=x", "-l", "team=b"))
		if code != int(exitWrong) || !strings.Contains(b.String(), `team has the value "a" in another --label`) {
			t.Errorf("%q: exit code %d: %s", args, code, b)
		}
	}
}
