package alarms_test

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"berth/e2e/rig"
)

var only = flag.String("alerts", "", "words in the names of the alerts to try, between commas; empty: all")

// workshop is the folder of this run.
var workshop *rig.Workshop

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	var err error
	if workshop, err = rig.OpenWorkshop(); err != nil {
		fmt.Fprintln(os.Stderr, "alarms:", err)
		return 1
	}
	defer func() {
		if err := workshop.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "alarms:", err)
		}
	}()
	return m.Run()
}
