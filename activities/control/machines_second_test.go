package control_test

import (
	"slices"
	"testing"

	"berth/internal/control/cloud"
	"berth/internal/control/cloud/faultcloud"
)

// A cloud that has booted two instances for one token shows the other one first. The launch follows the instance of
// its row to the proof of its end, and leaves the other one to the sweep.
func TestALaunchFollowsItsOwnOfTwoInstances(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.launch()
	s.step()
	s.is(cloud.LaunchRunning)
	own := s.one()
	s.script(func(c *faultcloud.State) {
		second := c.Instances[0]
		second.ID = "i-0"
		c.Instances = slices.Insert(c.Instances, 0, second)
	})
	if found, err := s.cloud.Find(t.Context(), s.row().Launch()); err != nil || found.ID != "i-0" {
		t.Fatalf("the cloud shows %s first, %v", found.ID, err)
	}
	s.stop()
	s.until(cloud.LaunchGone)
	for _, i := range s.seen().Instances {
		if ended := i.State == cloud.Terminated; ended != (i.ID == own.ID) {
			t.Errorf("instance %s is %s; the launch has %s", i.ID, i.State, own.ID)
		}
	}
	// An instance that the cloud no longer lists proves nothing about its end.
	s.launch()
	s.until(cloud.LaunchRunning)
	s.script(func(c *faultcloud.State) { c.Instances[len(c.Instances)-1].ID = "i-9" })
	s.stop()
	s.until(cloud.LaunchTerminating)
	for range 50 {
		s.pass(s.step().Wait.Std())
	}
	s.is(cloud.LaunchTerminating)
}
