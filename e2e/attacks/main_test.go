package attacks_test

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"berth/e2e/rig"
)

// all adds the long attacks to the run.
var all = flag.Bool("all", false, "run all attacks, also those that take long")

// only limits the run to the attacks with these numbers.
var only = flag.String("attacks", "", "run only the attacks with these numbers, between commas; empty: all")

// workshop is the folder of this run.
var workshop *rig.Workshop

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	var err error
	if workshop, err = rig.OpenWorkshop(); err != nil {
		fmt.Fprintln(os.Stderr, "attacks:", err)
		return 1
	}
	defer func() {
		if err := workshop.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "attacks:", err)
		}
	}()
	return m.Run()
}
