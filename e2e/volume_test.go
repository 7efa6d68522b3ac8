package e2e_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"berth"
	apiclient "berth/api/client"
	"berth/spec"
	"berth/wire"
)

// readsFolders runs a job twice that reads a folder which one machine shares; the second time the
// machine has the content. Tenants that the operator has not named are refused, and a job that
// waits for a machine with the folder shows that reason.
func readsFolders(t *testing.T, s *stack) {
	if err := os.WriteFile(filepath.Join(s.volume(t), "part.txt"), []byte("a part of the data"), 0o600); err != nil {
		t.Fatal(err)
	}
	job := jobSpec("reads", "read-file", "/data/part.txt")
	job.Inputs = []spec.Input{{From: "file:///datasets/", To: "/data"}}
	for _, how := range []string{": fetched ", "reused cached "} {
		id := s.submit(t, job)
		ended := s.ends(t, id, berth.Succeeded)
		if on := ended.Attempts[0].Machines; !slices.Equal(on, []berth.MachineID{"m1"}) {
			t.Errorf("it ran on %v", on)
		}
		var printed []string
		if err := s.api.Logs(t.Context(), id, apiclient.LogsQuery{}, func(l wire.LogLine) error { printed = append(printed, l.Text); return nil }); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(printed, []string{"a part of the data"}) {
			t.Errorf("it prints %q", printed)
		}
		events, err := s.api.Events(t.Context(), id, 0)
		if err != nil || !slices.ContainsFunc(events.Items, func(e wire.Event) bool {
			return e.Kind == wire.EventFetched && strings.Contains(e.Detail, " inputs[0] (") && strings.Contains(e.Detail, how)
		}) {
			t.Errorf("it does not say%s: %+v, %v", how, events.Items, err)
		}
	}

	mounted := job
	mounted.Name, mounted.Inputs = "mounts", []spec.Input{{From: "file:///datasets/", To: "/data", Mode: spec.InputMount}}
	id := s.submit(t, mounted)
	if on := s.ends(t, id, berth.Succeeded).Attempts[0].Machines; !slices.Equal(on, []berth.MachineID{"m1"}) {
		t.Errorf("it ran on %v", on)
	}
	events, err := s.api.Events(t.Context(), id, 0)
	if err != nil || !slices.ContainsFunc(events.Items, func(e wire.Event) bool {
		return e.Kind == wire.EventFetched && strings.HasSuffix(e.Detail, "mounted inputs[0] read-only, unversioned")
	}) {
		t.Errorf("it does not say that it mounts: %+v, %v", events.Items, err)
	}

	away := job
	away.Placement.AvoidMachines = []berth.MachineID{"m1"}
	plan, err := s.api.Plan(t.Context(), away)
	if err != nil || !strings.Contains(plan.Fit.Summary, "1 does not share the folder /datasets, 1 is avoided by the job") {
		t.Errorf("elsewhere the plan is %+v, %v", plan.Fit, err)
	}

	if _, err := s.api.CreateTenant(t.Context(), spec.NewTenant{ID: "others"}); err != nil {
		t.Fatal(err)
	}
	token, err := s.api.CreateToken(t.Context(), spec.NewToken{Name: "other", Tenant: "others", Role: spec.RoleUser})
	if err != nil {
		t.Fatal(err)
	}
	others := apiclient.New(s.url, token.Secret)
	defer others.Close()
	_, _, err = others.Submit(t.Context(), job, "")
	refused, ok := errors.AsType[*berth.Error](err)
	if !ok || refused.Code != berth.CodeInvalid || len(refused.Fields) != 1 || refused.Fields[0].Field != "inputs[0].from" ||
		!strings.Contains(refused.Fields[0].Detail, "file:// inputs are not enabled for tenant others") {
		t.Errorf("another tenant: %v", err)
	}
}
