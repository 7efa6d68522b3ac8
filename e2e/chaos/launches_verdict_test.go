package chaos_test

import (
	"strings"
	"testing"
	"time"

	"berth"
	"berth/internal/control/cloud"
	"berth/internal/control/cloud/faultcloud"
)

// The judge of the proof of launches finds each kind of breach that the ledger can show.
func TestTheJudgeOfLaunchesFindsEachBreach(t *testing.T) {
	t.Parallel()
	start := time.Now()
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	sound := func() evidence {
		call := func(kind string, second int, machine berth.MachineID, id string) faultcloud.Call {
			return faultcloud.Call{At: at(second), Clock: start.Add(tenfold * at(second).Sub(start)), Call: kind, Machine: machine, N: 1,
				Token: "t-" + string(machine), Hash: "h-" + string(machine), Instance: id}
		}
		lost := call("create", 1, "a", "i-1")
		lost.Error = cloud.Unknown
		instance := func(machine berth.MachineID, id string) faultcloud.Instance {
			return faultcloud.Instance{Instance: cloud.Instance{ID: id, Machine: machine, N: 1, Token: "t-" + string(machine), State: cloud.Terminated}}
		}
		idle := at(20)
		return evidence{
			calls: []faultcloud.Call{lost, call("create", 2, "a", "i-1"), call("create", 5, "b", "i-2"), call("create", 6, "c", "i-3"),
				call("terminate", 30, "a", "i-1"), call("terminate", 60, "b", "i-2"), call("terminate", 100, "c", "i-3")},
			instances: []faultcloud.Instance{instance("a", "i-1"), instance("b", "i-2"), instance("c", "i-3")},
			rows: []ended{
				{Machine: "a", N: 1, State: "gone", Instance: "i-1", CreatedAt: at(0), Stopped: true},
				{Machine: "b", N: 1, State: "gone", Instance: "i-2", CreatedAt: at(4), Stopped: true, IdleAt: &idle},
				{Machine: "c", N: 1, State: "gone", Instance: "i-3", CreatedAt: at(4)}, // has not joined in 15 minutes of the faster clock
			},
			work:   map[berth.MachineID][]span{"b": {{at(10), at(20)}}},
			storms: []span{{at(6), at(8)}},
		}
	}
	v := sound().judge()
	if len(v.faults) != 0 || v.creates != 4 || v.lost != 1 || v.terminates != 3 {
		t.Errorf("without a breach: %+v", v)
	}
	// Machine a was launched before the first success, and the call for machine c met a kill.
	if len(v.all) != 2 || len(v.calm) != 1 || v.calm[0] != time.Second || len(v.idle) != 1 || v.idle[0] != 40*time.Second {
		t.Errorf("times %v, %v, %v", v.all, v.calm, v.idle)
	}
	for _, c := range []struct {
		plant func(e *evidence)
		want  string
	}{
		{func(e *evidence) { e.calls[1].Hash = "other" }, "sent with two requests"},
		{func(e *evidence) {
			second := e.instances[0]
			second.ID = "i-4"
			e.instances = append(e.instances, second)
		}, "has instances i-1 and i-4"},
		{func(e *evidence) { e.work["b"][0].to = at(61) }, "was terminated at"},
		{func(e *evidence) { e.rows[0].Stopped = false }, "terminated without a cause"},
		{func(e *evidence) { e.work["c"] = []span{{at(50), at(55)}} }, "terminated without a cause"},
		{func(e *evidence) { e.calls[6].Clock = e.calls[6].Clock.Add(-2 * time.Minute) }, "terminated without a cause"},
		{func(e *evidence) { e.instances[1].State = cloud.Running }, "is running"},
		{func(e *evidence) { e.rows[1].Instance = "" }, `its launch has instance ""`},
		{func(e *evidence) { e.rows[2].State = "terminating" }, "is terminating, with instance i-3"},
		{func(e *evidence) { e.rows = e.rows[1:] }, `its launch has instance ""`},
	} {
		e := sound()
		c.plant(&e)
		found := false
		for _, err := range e.judge().faults {
			found = found || strings.Contains(err.Error(), c.want)
		}
		if !found {
			t.Errorf("the judge does not find: %s: %v", c.want, e.judge().faults)
		}
	}
}
