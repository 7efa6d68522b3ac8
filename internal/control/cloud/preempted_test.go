package cloud_test

import (
	"testing"
	"time"

	"berth/internal/control/cloud"
)

// An owner who terminates an instance in the console, and a machine that shuts itself down, show nothing about the room
// of the cloud.
func TestOnlyTheCloudPreemptsAMachine(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string]bool{
		"": true, "Server.SpotInstanceTermination": true, "compute.instances.preempted": true, "STOPPING": true,
		"Client.UserInitiatedShutdown": false, "Client.InstanceInitiatedShutdown": false, "delete": false,
	} {
		r := cloud.Record{State: cloud.LaunchServing, Instance: "i", Offering: cloud.Offering{Market: cloud.Spot}}
		after, err := r.See(cloud.Instance{ID: "i", State: cloud.Terminated, Reason: reason}, time.Now())
		if err != nil || r.Preempted(after) != want {
			t.Errorf("%s: preempted %t, %v", reason, r.Preempted(after), err)
		}
	}
}
