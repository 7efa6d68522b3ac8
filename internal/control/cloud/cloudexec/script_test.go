package cloudexec_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/control/cloud"
	"berth/internal/control/cloud/cloudexec"
	"berth/internal/control/cloud/cloudtest"
)

// script returns the absolute path of a file of the repository.
func script(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// The example for operators is a whole provider: a rack of machines, driven by a shell script.
func TestExampleScriptConforms(t *testing.T) {
	t.Parallel()
	cloudtest.Run(t, openRack)
}

func openRack(t *testing.T) cloudtest.Subject { return newRack(t, t.TempDir()) }

// newRack returns a rack with its state in a folder.
func newRack(t *testing.T, state string) cloudtest.Subject {
	t.Helper()
	var hosts strings.Builder
	fmt.Fprintln(&hosts, "# host region zone type cpus memory_mib gpus gpu_type price_per_hour")
	for n := range 12 {
		fmt.Fprintf(&hosts, "node-%d  berlin rack-a 8xH100  192 2000000 8 H100 12.50\n", n)
		fmt.Fprintf(&hosts, "plain-%d berlin rack-b plain 64 500000 0 - 1\n", n)
	}
	write(t, filepath.Join(state, "hosts"), hosts.String())
	p, err := cloudexec.New(cloudexec.Options{
		Name: "rack",
		Command: []string{
			script(t, "testdata/faulty.sh"), state,
			script(t, "../../../../examples/cloud/bare-metal.sh"), state, script(t, "testdata/power.sh"),
		},
		Env: []string{"POWER_LOG=" + filepath.Join(state, "power.log")}, Timeout: cloudexec.MaxTimeout,
	})
	if err != nil {
		t.Fatal(err)
	}
	return cloudtest.Subject{
		Provider: p, Regions: []string{"berlin"},
		Offering: cloud.Offering{Region: "berlin", Zone: "rack-a", Type: "8xH100", Market: cloud.OnDemand},
		Other:    cloud.Offering{Region: "berlin", Zone: "rack-b", Type: "plain", Market: cloud.OnDemand},
		Inject:   func(f cloudtest.Fault) { write(t, filepath.Join(state, "fault"), string(f)) },
		Created: func() int {
			names, err := filepath.Glob(filepath.Join(state, "launches", "*.json"))
			if err != nil {
				t.Error(err)
			}
			return len(names)
		},
		Finish:  func() {},
		Unknown: cloud.Instance{ID: "node-1-00000000", State: cloud.Running, Offering: cloud.Offering{Region: "berlin"}},
	}
}

// The script switches the machine of the launch on and off, and a machine that is off leaves no secret.
func TestExampleScriptSwitchesMachines(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	s := newRack(t, state)
	l := launch()
	l.Offering = s.Offering
	i, err := s.Provider.Create(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	host := i.ID[:strings.LastIndexByte(i.ID, '-')]
	bootstrap := filepath.Join(state, "bootstrap", host+".json")
	if text, err := os.ReadFile(bootstrap); err != nil || !strings.Contains(string(text), l.Bootstrap.JoinToken) {
		t.Errorf("the bootstrap of the machine is %q, %v", text, err)
	}
	if info, err := os.Stat(bootstrap); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file with the join token has the mode %v, %v", info.Mode(), err)
	}
	if err := s.Provider.Terminate(t.Context(), i); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(bootstrap); !os.IsNotExist(err) {
		t.Errorf("the join token is still there: %v", err)
	}
	want := "on " + host + "\noff " + host + "\n"
	if log, err := os.ReadFile(filepath.Join(state, "power.log")); err != nil || string(log) != want {
		t.Errorf("power was called as %q, want %q, %v", log, want, err)
	}
}

// write writes a file.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Error(err)
	}
}
