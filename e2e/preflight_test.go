package e2e_test

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/internal/control/controlplane"
	"berth/internal/control/controlplane/preflight"
	"berth/internal/control/scheduler"
	"berth/workers"
)

// With a real Temporal: an installation that runs has no fault, and a namespace is missing until it is
// created. The other faults have tests in package preflight.
func TestTheCheckOfAnInstallationThatRuns(t *testing.T) {
	t.Parallel()
	s := start(t, scheduler.Ages{})
	c := controlplane.Default()
	c.DatabaseURL, c.TemporalAddress = s.database, s.address
	c.BlobURL = "file://" + filepath.Join(s.dir, "blobs")
	c.SecretKeyFile = filepath.Join(s.dir, "secret-key")
	// until repeats the check, since berthd and Temporal's services act a moment later. The check of the namespace of
	// berthd also has no fault.
	until := func(namespace string, state preflight.State, text string) {
		t.Helper()
		c.TemporalNamespace = namespace
		for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
			findings := preflight.Run(t.Context(), preflight.Input{Config: c, UID: 1000})
			// A dependency that answers late is a fault, which the next check does not find.
			faultless := namespace != "default" || preflight.Faults(findings) == 0
			if faultless && slices.ContainsFunc(findings, func(f preflight.Finding) bool {
				return f.Check == "temporal" && f.State == state && strings.Contains(f.Detail, text)
			}) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("no %s of Temporal contains %q: %+v", state, text, findings)
			}
		}
	}
	until("default", preflight.OK, "has the search attributes")
	until("another", preflight.Fault, "namespace another does not exist")
	if _, err := workers.CreateNamespace(t.Context(), s.temporal, "another", 24*time.Hour); err != nil {
		t.Fatal(err)
	}
	until("another", preflight.Advice, "has no search attributes")
	// Temporal's services learn of a new namespace a moment later, as berthd create-namespace expects.
	for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		err := workers.AddSearchAttributes(ctx, s.temporal, "another")
		cancel()
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	until("another", preflight.OK, "has the search attributes")
}
