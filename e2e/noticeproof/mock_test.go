package noticeproof

import (
	"context"
	"encoding/json"
	"flag"
	"net"
	"net/http"
	"os/exec"
	"testing"
	"time"

	"berth/internal/machine/fetch/toolserver"
	"berth/internal/machine/identity"
	"berth/internal/machine/notice"
	"berth/wire"
)

var really = flag.Bool("mock", false, "build and run Amazon's mock of the metadata service")

// mock runs the mock with version 2 of the service alone, and returns its URL.
func mock(t *testing.T, args ...string) string {
	t.Helper()
	if !*really {
		t.Skip("make proof-notices builds the mock and runs this test")
	}
	url := "http://" + toolserver.Start(t, "ec2-metadata-mock", func(cmd *exec.Cmd, address string) {
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			t.Fatal(err)
		}
		cmd.Args = append(append(cmd.Args, args...), "--imdsv2", "--hostname", host, "--port", port)
		cmd.Dir = t.TempDir()
		cmd.Env = []string{"HOME=" + cmd.Dir} // its settings come from the arguments alone
	})
	r, err := http.Get(url + "/latest/meta-data/spot/instance-action")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusUnauthorized {
		t.Fatalf("the mock answers %s without a token", r.Status)
	}
	return url
}

// looksUntil looks each 100 ms until the state is as expected, and returns the number of looks before. No look may
// fail.
func looksUntil(t *testing.T, source notice.Reader, ok func(notice.State) bool) (s notice.State, before int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for {
		state, err := source.Look(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if ok(state) {
			return state, before
		}
		before++
		time.Sleep(100 * time.Millisecond)
	}
}

// The mock announces, some seconds after its start, that the instance ends in two minutes.
func TestTheNoticeOfASpotInstanceIsSeen(t *testing.T) {
	t.Parallel()
	source := notice.NewEC2(mock(t, "spot", "--action", "terminate", "--mock-delay-sec", "5"))
	state, before := looksUntil(t, source, func(s notice.State) bool { return s.End != nil })
	lead := time.Until(state.End.Deadline)
	if state.End.Kind != wire.NoticeSpot || lead < 90*time.Second || lead > 2*time.Minute+time.Second || before == 0 {
		t.Errorf("notice %+v, %s ahead, after %d looks", state.End, lead, before)
	}
}

func TestANoticeHasTheTimeOfTheMock(t *testing.T) {
	t.Parallel()
	end := time.Now().UTC().Add(time.Hour).Truncate(time.Second)
	for _, action := range []string{"stop", "hibernate"} {
		source := notice.NewEC2(mock(t, "spot", "--action", action, "--time", end.Format(time.RFC3339)))
		state, _ := looksUntil(t, source, func(s notice.State) bool { return s.End != nil })
		if want := (wire.CloudNotice{Kind: wire.NoticeSpot, Deadline: end}); *state.End != want {
			t.Errorf("%s: notice %+v, want %+v", action, *state.End, want)
		}
	}
}

func TestARebalanceRecommendationIsSeen(t *testing.T) {
	t.Parallel()
	advised := time.Now().UTC().Add(-time.Minute).Truncate(time.Second)
	source := notice.NewEC2(mock(t, "spot", "--mock-delay-sec", "3600", "--rebalance-delay-sec", "5",
		"--rebalance-rec-time", advised.Format(time.RFC3339)))
	state, before := looksUntil(t, source, func(s notice.State) bool { return !s.Rebalance.IsZero() })
	if !state.Rebalance.Equal(advised) || state.End != nil || before == 0 {
		t.Errorf("%+v after %d looks, want the advice of %s alone", state, before, advised)
	}
}

// The mock serves the example documents of Amazon, whose signature cannot be verified.
func TestTheIdentityIsRead(t *testing.T) {
	t.Parallel()
	source, err := identity.Open("ec2="+mock(t), "")
	if err != nil {
		t.Fatal(err)
	}
	id, err := source.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var document struct{ AccountID, InstanceID, Region, AvailabilityZone string }
	if err := json.Unmarshal([]byte(id.Document), &document); err != nil || id.Source != wire.IdentityEC2 ||
		id.Signature == "" || document.AccountID == "" || document.InstanceID == "" || document.Region == "" ||
		document.AvailabilityZone == "" {
		t.Errorf("identity %+v, %v", id, err)
	}
}
