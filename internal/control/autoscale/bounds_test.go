package autoscale_test

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"berth"
	"berth/db"
	"berth/internal/control/autoscale"
	"berth/internal/control/cloud"
)

// The limits of all tenants hold in every decision, whatever the queue; the facts stay as they were.
func TestDecideKeepsTheBoundsOfTenants(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		f := full()
		bound := map[berth.TenantID]int{}
		f.Spent = map[berth.TenantID]db.Spent{}
		for _, id := range []berth.TenantID{"root", "a", "b"} {
			bound[id] = rapid.IntRange(1, 5).Draw(t, "max")
			f.Policies[id] = limited(f.Policies[id], bound[id])
			f.Spent[id] = db.Spent{Room: rapid.Float64Range(0, 50).Draw(t, "room")}
		}
		have := map[berth.TenantID]int{}
		for i := range rapid.IntRange(0, 4).Draw(t, "machines") {
			owner := rapid.SampledFrom([]berth.TenantID{"a", "b"}).Draw(t, "owner")
			state := rapid.SampledFrom([]cloud.LaunchState{cloud.LaunchSent, cloud.LaunchUnresolved, cloud.LaunchTerminating}).Draw(t, "state")
			launched(f, berth.MachineID(fmt.Sprint("m", i)), owner, state, "")
			have[owner]++
			have["root"]++
		}
		members := map[berth.JobID]int{}
		for i := range rapid.IntRange(0, 6).Draw(t, "jobs") {
			id := fmt.Sprint("j", i)
			members[berth.JobID(id)] = rapid.IntRange(1, 3).Draw(t, "members")
			wait(f, id, rapid.SampledFrom([]berth.TenantID{"a", "b"}).Draw(t, "tenant"), members[berth.JobID(id)])
		}
		if rapid.Bool().Draw(t, "refused") {
			refused(f, now.Add(-time.Second), false)
		}
		o := autoscale.Decide(*f)
		if again := autoscale.Decide(*f); !reflect.DeepEqual(o, again) {
			t.Fatalf("the same facts gave %+v and %+v", o, again)
		}
		money := map[berth.TenantID]float64{}
		for _, r := range o.Requests {
			if len(f.Breakers) > 0 && (r.Machines > 1 || len(o.Requests) > 1) {
				t.Fatalf("%s after a refusal: one machine is tried", requested(o))
			}
			for _, id := range []berth.TenantID{r.Tenant, "root"} {
				have[id] += r.Machines
				money[id] += r.Price * float64(r.Machines)
			}
			if len(r.Jobs) == 1 && r.Machines > members[r.Jobs[0]] {
				t.Fatalf("%s: more machines than members", requested(o))
			}
		}
		for id, n := range have {
			if n > bound[id] && money[id] > 0 || money[id] > f.Spent[id].Room+1e-9 {
				t.Fatalf("tenant %s has %d of %d machines and spends %.0f of %.0f: %s", id, n, bound[id], money[id], f.Spent[id].Room, requested(o))
			}
		}
	})
}
