package fakeruntime_test

import (
	"testing"

	"berth/activities/node"
	"berth/activities/node/fakeruntime"
	"berth/activities/node/runtimetest"
)

func TestFakeKeepsTheRuntimesClaims(t *testing.T) {
	t.Parallel()
	runtimetest.Suite(t, func(t *testing.T) runtimetest.Harness {
		fake := fakeruntime.New(fakeruntime.Options{})
		fake.FailImage("registry/missing:1", node.ErrImageNotFound)
		fake.FailImage("registry/unreachable:1", node.ErrImageUnavailable)
		fake.FailImage("berth-test.invalid/not/here:1", node.ErrImageNotFound)
		t.Cleanup(fake.Shutdown)
		return runtimetest.Harness{
			Runtime:     fake,
			Again:       func(*testing.T) node.Runtime { return fake },
			Image:       "registry/testprog:1",
			Missing:     "registry/missing:1",
			Unreachable: "registry/unreachable:1",
		}
	})
}
