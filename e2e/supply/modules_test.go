package main

import (
	"encoding/json"
	"os/exec"
	"testing"
)

// requirements returns the version of Go and the required modules of a file go.mod.
func requirements(t *testing.T, folder string) (version string, modules map[string]string) {
	t.Helper()
	cmd := exec.Command("go", "mod", "edit", "-json")
	cmd.Dir = folder
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", folder, err)
	}
	var file struct {
		Go      string
		Require []struct{ Path, Version string }
	}
	if err := json.Unmarshal(out, &file); err != nil {
		t.Fatal(err)
	}
	modules = map[string]string{}
	for _, r := range file.Require {
		modules[r.Path] = r.Version
	}
	return file.Go, modules
}

// make proof-gce-mock tests packages of Berth in a module of its own, which make test does not build. A dependency with
// another version there would make that target fail later, with a demand to edit go.mod.
func TestTheModuleOfTheGCEProofHasTheVersionsOfBerth(t *testing.T) {
	t.Parallel()
	goVersion, ours := requirements(t, "../..")
	proofGo, proof := requirements(t, "../gceproof")
	if proofGo != goVersion {
		t.Errorf("e2e/gceproof/go.mod has go %s, go.mod %s", proofGo, goVersion)
	}
	shared := 0
	for path, version := range proof {
		if ours[path] == "" {
			continue
		}
		if shared++; ours[path] != version {
			t.Errorf("e2e/gceproof/go.mod has %s %s, go.mod %s: run go mod tidy in e2e/gceproof", path, version, ours[path])
		}
	}
	if shared < 10 {
		t.Errorf("%d modules of e2e/gceproof/go.mod are required by go.mod, want more: the search is broken", shared)
	}
}
