package siege_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"berth/e2e/rig"
)

// Sizes of BenchmarkSiege.
var (
	programs     = flag.String("programs", "", "folder with berthd, berth-agent, berth-dev and berth-check of another commit; empty: built from this repository")
	only         = flag.String("attacks", "", "run only attacks whose name contains one of these words, between commas; empty: all")
	attackFor    = flag.Duration("attack-for", 20*time.Second, "length of an attack")
	tokenlessFor = flag.Duration("tokenless-for", time.Minute, "length of the attack without tokens")
	quietFor     = flag.Duration("quiet-for", time.Minute, "length of the quiet phase before the attacks; a second one before the last attack is half as long")
	groups       = flag.Bool("groups", true, "run each service of a benchmark in a control group of its own; false shows the effect of the groups")
	warmFor      = flag.Duration("warm-for", 10*time.Second, "time of the good caller before the first quiet phase, which is left out")
	share        = flag.Float64("share", 0.5, "most cores that the attacker may use")
)

// workshop is the folder of this run.
var workshop *rig.Workshop

func TestMain(m *testing.M) {
	switch os.Getenv(rig.HelperName) {
	case attackHelper:
		os.Exit(rig.RunHelper(attack))
	case rig.ProbeHelper:
		os.Exit(rig.RunHelper(rig.RunProbe))
	}
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	var err error
	if workshop, err = rig.OpenWorkshop(); err != nil {
		fmt.Fprintln(os.Stderr, "siege:", err)
		return 1
	}
	defer func() {
		if err := workshop.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "siege:", err)
		}
	}()
	return m.Run()
}

// start starts a stack with two agents and the flags that berthd is shipped
// with, and closes it at the end. In a benchmark each service has a control group of
// its own; a test leaves the host's CPU to the tests next to it as well.
func start(t testing.TB, folder string) *rig.Stack {
	t.Helper()
	_, bench := t.(*testing.B)
	s, err := rig.Start(t.Context(), rig.Options{Workshop: workshop, Programs: folder, Apart: bench && *groups})
	if s != nil {
		t.Cleanup(func() {
			if t.Failed() && !bench { // a benchmark fails by its figures
				t.Logf("berthd:\n%s", rig.Tail(filepath.Join(s.Dir, "berthd.log")))
			}
			if err := s.Close(); err != nil {
				t.Errorf("stop the stack: %v", err)
			}
		})
	}
	if err == nil {
		err = s.Join(t.Context(), 2)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}
