package docker_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"berth/activities/node"
	"berth/activities/node/runtimetest"
	"berth/internal/machine/docker"
	"berth/internal/machine/unfinished"
)

// followEnv makes the test program follow the unfinished line of the container that it names, as an agent does.
const followEnv = "BERTH_TEST_FOLLOW"

// TestMain lets the test program be its own reader of unfinished lines, and an agent that is frozen.
func TestMain(m *testing.M) {
	unfinished.Main()
	if name := os.Getenv(followEnv); name != "" {
		os.Exit(followAsAgent(name))
	}
	os.Exit(m.Run())
}

// followAsAgent prints each picture of a container's unfinished line.
func followAsAgent(name string) int {
	e, err := docker.Open(runtimetest.DefaultHost, docker.Options{})
	if err == nil {
		err = e.UnfinishedLines(context.Background(), name, func(l node.UnfinishedLine) { fmt.Printf("%q\n", l.Text) })
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}
