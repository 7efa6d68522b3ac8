package cloud_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"berth/internal/control/cloud"
)

// unmade returns the failure of a call that was not made.
func unmade() *cloud.Error {
	return &cloud.Error{Kind: cloud.Throttle, Unsent: true, Err: errors.New("no program")}
}

// answered is sent, and then sent once more 30 seconds after each answer; the last answer is the last error.
func answered(t *testing.T, answers ...*cloud.Error) (cloud.Record, time.Time) {
	t.Helper()
	r, at := sent(t), start
	for i, e := range answers {
		if i > 0 {
			at = at.Add(30 * time.Second)
			r = again(t, r, at)
		}
		r = r.Refused(e, at, at)
	}
	return r, at
}

// A repeat of a call of unknown outcome finds out whether an instance exists. Calls that were not made find out
// nothing, so they must not take the place of the repeats.
func TestCallsThatWereNotMadeUseUpNoRepeats(t *testing.T) {
	t.Parallel()
	unknown := fault(cloud.Unknown)
	for _, c := range []struct {
		name    string
		answers []*cloud.Error
		act     cloud.Act
	}{
		{"four calls not made, one unknown",
			[]*cloud.Error{unmade(), unmade(), unmade(), unmade(), unknown}, cloud.ActSend},
		{"four calls throttled, one unknown", []*cloud.Error{fault(cloud.Throttle), fault(cloud.Throttle),
			fault(cloud.Throttle), fault(cloud.Throttle), unknown}, cloud.ActSend},
		{"one unknown, three calls not made", []*cloud.Error{unknown, unmade(), unmade(), unmade()}, cloud.ActSend},
		{"four unknown", []*cloud.Error{unknown, unknown, unknown, unknown}, cloud.ActFind},
		{"four unknown, one of them after a call not made",
			[]*cloud.Error{unknown, unmade(), unknown, unknown, unknown}, cloud.ActFind},
		// The refusal was too soon after the others to decide. The next one decides.
		{"one unknown, four calls not made, one without room",
			[]*cloud.Error{unknown, unmade(), unmade(), unmade(), unmade(), fault(cloud.Capacity)}, cloud.ActSend},
	} {
		r, at := answered(t, c.answers...)
		if s := cloud.Next(r, limits, at.Add(cloud.SettleTime)); s.Act != c.act || r.State != cloud.LaunchSent {
			t.Errorf("%s: the launch is %s, the step %+v, want %s", c.name, r.State, s, c.act)
		}
	}
}

// A launch that has certainly no instance is not created for the sake of its end.
func TestAStopWithdrawsALaunchWithoutAnInstance(t *testing.T) {
	t.Parallel()
	for name, e := range map[string]*cloud.Error{"not made": unmade(), "throttled": fault(cloud.Throttle)} {
		r, at := answered(t, e)
		r, err := r.WithStop(cloud.Stop{Actor: "user:a", Reason: "x"}, at)
		if err != nil {
			t.Fatal(err)
		}
		late := at.Add(time.Minute)
		wants(t, r, late, cloud.ActMove, cloud.LaunchFailed)
		after, ok := r.Take(cloud.Next(r, limits, late), limits, late)
		if !ok || !strings.Contains(after.Reason, "withdrawn by user:a") || r.NeverCalled(after, late) {
			t.Errorf("call %s: %v, %+v", name, ok, after)
		}
		again, at := answered(t, e, fault(cloud.Unknown))
		again, _ = again.WithStop(cloud.Stop{Actor: "user:a", Reason: "x"}, at)
		wants(t, again, at.Add(time.Minute), cloud.ActSend, "") // an instance may exist
		r.Current = 2                                           // the lost tail may have sent it
		wants(t, r, late, cloud.ActSend, "")
	}
}

// While a repeat has no answer, no text may state that the cloud was not called.
func TestASendForgetsThatTheCallsBeforeWereNotMade(t *testing.T) {
	t.Parallel()
	r, at := answered(t, unmade(), unmade())
	if r.ErrorKind != cloud.Unsent {
		t.Fatalf("kind %s", r.ErrorKind)
	}
	r = again(t, r, at.Add(30*time.Second))
	if r.ErrorKind != "" || r.Error != "" {
		t.Errorf("a send under way shows %q: %s", r.ErrorKind, r.Error)
	}
	r = r.Missed(fault(cloud.NotFound), limits, start.Add(limits.Patience))
	if r.State != cloud.LaunchUnresolved || strings.Contains(r.Reason, "unsent") {
		t.Errorf("%s: %s", r.State, r.Reason)
	}
}

// A termination that was not made is repeated soon, however long it could not be made.
func TestATerminationThatWasNotMadeIsNoCall(t *testing.T) {
	t.Parallel()
	r := see(t, sent(t), cloud.Running, start)
	r.State = cloud.LaunchTerminating
	at := start
	for range 10 {
		wants(t, r, at, cloud.ActTerminate, "")
		r = r.Asked(unmade(), at)
		at = at.Add(limits.Look)
	}
	if r.Terminates != 0 || r.Error == "" {
		t.Errorf("%d calls, error %q", r.Terminates, r.Error)
	}
	r = r.Asked(nil, at)
	if s := cloud.Next(r, limits, at.Add(limits.Look)); s.Act == cloud.ActTerminate || r.Terminates != 1 {
		t.Errorf("after a call: %+v, %d calls", s, r.Terminates)
	}
}
