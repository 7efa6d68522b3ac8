package cloud_test

import (
	"fmt"
	"testing"
	"time"

	"berth"
	"berth/internal/control/cloud"
)

const clusterID = "c1"

// listed is an instance that the cloud lists, of launch n of a machine in an incarnation.
func listed(id string, machine berth.MachineID, n, incarnation int) cloud.Instance {
	return cloud.Instance{ID: id, Cluster: clusterID, Machine: machine, N: n, State: cloud.Running,
		Token: cloud.Token(clusterID, fmt.Sprint(incarnation), machine, n), Created: start}
}

func ids(list []cloud.Instance) (ids string) {
	for _, i := range list {
		ids += i.ID + " "
	}
	return ids
}

func TestASweepEndsOnlyInstancesThatNoLaunchNeeds(t *testing.T) {
	t.Parallel()
	now := start.Add(cloud.SweepAge)
	used, late, second := listed("used", "m1", 1, 2), listed("late", "m2", 1, 2), listed("second", "m3", 1, 2)
	unseen, lost, old := listed("unseen", "m4", 1, 2), listed("lost", "m5", 1, 1), listed("old", "m6", 1, 1)
	young, ended, others := listed("young", "m7", 1, 2), listed("ended", "m8", 1, 2), listed("others", "m9", 1, 2)
	unnoticed := listed("unnoticed", "m10", 1, 2) // lost by a restore that did not raise the incarnation
	newborn := listed("newborn", "m11", 1, 1)     // lost, and young
	newborn.Created = now
	young.Created, ended.State, others.Cluster = start.Add(time.Second), cloud.Terminated, "c2"
	row := func(i cloud.Instance, state cloud.LaunchState, instance string, incarnation int64) cloud.Record {
		return cloud.Record{Token: i.Token, State: state, Instance: instance, Incarnation: incarnation, Current: 2}
	}
	rows := map[string]cloud.Record{
		used.Token:   row(used, cloud.LaunchServing, "used", 2),
		late.Token:   row(late, cloud.LaunchFailed, "", 2),
		second.Token: row(second, cloud.LaunchRunning, "first", 2),
		unseen.Token: row(unseen, cloud.LaunchSent, "", 2),
		old.Token:    row(old, cloud.LaunchFailed, "", 1),
		young.Token:  row(young, cloud.LaunchFailed, "", 2),
	}
	list := []cloud.Instance{used, late, second, unseen, lost, old, young, ended, others, unnoticed, newborn}
	for range 10 {
		list = append(list, used) // so that 10 % are 2
	}
	s := cloud.Judge(list, rows, clusterID, now)
	if ids(s.End) != "late second " || ids(s.Adopt) != "lost unnoticed newborn " || ids(s.Odd) != "old " || s.Left != 0 {
		t.Errorf("end %s, adopt %s, odd %s, left %d", ids(s.End), ids(s.Adopt), ids(s.Odd), s.Left)
	}
}

func TestASweepEndsFewInstancesAtATime(t *testing.T) {
	t.Parallel()
	for total, want := range map[int]int{1: 1, 9: 1, 30: 3, 49: 4, 50: 5, 1000: 5} {
		var list []cloud.Instance
		rows := map[string]cloud.Record{}
		for n := range total {
			i := listed("x", "m", n+1, 1)
			list, rows[i.Token] = append(list, i), cloud.Record{Token: i.Token, State: cloud.LaunchFailed}
		}
		s := cloud.Judge(list, rows, clusterID, start.Add(time.Hour))
		if len(s.End) != want || s.Left != total-want {
			t.Errorf("of %d instances: end %d, left %d; want %d", total, len(s.End), s.Left, want)
		}
	}
}
