package control_test

import (
	"strings"
	"testing"

	"berth"
	"berth/internal/control/cloud"
	"berth/internal/control/cloud/faultcloud"
)

// A spot machine that the cloud takes back without a notice closes its offering, as a notice and a refusal do. The end
// of another machine, or an end that Berth has requested, says nothing about the offering.
func TestAPreemptionWithoutANoticeClosesTheOffering(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		market cloud.Market
		stop   bool
		want   int
	}{{"spot", cloud.Spot, false, 1}, {"on demand", cloud.OnDemand, false, 0}, {"at its requested end", cloud.Spot, true, 0}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			r := cloud.Request{Pool: "burst", Provider: "test", Offering: cloud.Offering{Region: "r", Type: "big", Market: c.market}}
			if _, err := s.db.Launches.Request(t.Context(), r, []berth.MachineID{vm}, "", "user:test"); err != nil {
				t.Fatal(err)
			}
			s.step()
			if err := s.join(s.one().Join, vm); err != nil {
				t.Fatal(err)
			}
			s.step()
			s.is(cloud.LaunchServing)
			if c.stop {
				s.stop()
			}
			s.script(func(x *faultcloud.State) {
				x.Instances[0].State, x.Instances[0].Reason = cloud.Terminated, "taken back"
			})
			s.until(cloud.LaunchTerminating)
			for range 3 {
				s.step()
			}
			list, _, err := s.db.Launches.Breakers(t.Context(), r)
			if err != nil || len(list) != c.want {
				t.Fatalf("breakers %+v, %v: want %d", list, err, c.want)
			}
			if c.want == 1 && (list[0].Step != 1 || list[0].Scope != cloud.ScopeOffering || !strings.Contains(list[0].Reason, "taken back")) {
				t.Errorf("breaker %+v", list[0])
			}
		})
	}
}
