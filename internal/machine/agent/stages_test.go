package agent_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/activities/node"
	"berth/activities/node/fakeruntime"
	"berth/internal/lib/publicnet/dnstest"
	"berth/wire"
)

// stage returns the stage of a job as users see it, "" for none.
func (s *site) stage(id berth.JobID) string {
	s.t.Helper()
	j, err := s.db.Jobs.Get(s.t.Context(), "", id)
	if err != nil {
		s.t.Fatal(err)
	}
	if j.Stage == nil {
		return ""
	}
	return j.Stage.String()
}

func (s *site) shows(id berth.JobID, want string) {
	s.t.Helper()
	s.until("the stage is "+want, func() bool { return s.stage(id) == want })
}

func TestAPullShowsItsShare(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	pulled := make(chan struct{})
	m.runtime.Intercept(func(c fakeruntime.Call) error {
		if c.Method == "EnsureImage" {
			<-pulled
		}
		return nil
	})
	id := s.submit(nil, "exit", "0")
	req, w := m.run(id)
	s.shows(id, "pulling")
	m.runtime.Pulled(s.image, 40)
	s.shows(id, "pulling 40 %")
	m.runtime.Pulled(s.image, 80)
	s.shows(id, "pulling 80 %")
	m.runtime.Intercept(nil)
	close(pulled)
	w.exit()
	s.settle(id)
	m.cleared(req)
	pulling := 0 // a slow machine may report later stages as well
	for _, e := range s.eventsOf(id, wire.EventStage) {
		if e.Facts.Stage.Name == wire.StagePulling {
			pulling++
		}
	}
	if pulling != 1 {
		t.Errorf("%d events about one pull", pulling)
	}
	if got := s.stage(id); got != "" {
		t.Errorf("the stage of an ended job is %q", got)
	}
}

func TestAPullThatIsRepeatedShowsItsTriesAndItsError(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	m.runtime.FailImage(s.image, node.ErrImageUnavailable)
	m.cfg.Timing.PullPause = time.Minute
	m.restart()
	id := s.submit(nil, "exit", "0")
	m.run(id)
	s.until("the first try is shown", func() bool { return strings.HasPrefix(s.stage(id), "pulling (try 1: ") })
}

// The rows of the table in witness.go.
func TestAHostThatDoesNotExistFailsTheJobOnlyByTwoWitnesses(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		machine, control dnstest.Answer
		state            berth.State
		code             berth.ReasonCode
		asked            bool // the control plane's name servers
	}{
		"both deny it": {dnstest.NoSuchName, dnstest.NoSuchName, berth.Failed, berth.ReasonInputInvalid,
			true},
		"the control plane has it": {dnstest.NoSuchName, dnstest.Exists, berth.Retrying,
			berth.ReasonInputUnavailable, true},
		"the control plane's fail": {dnstest.NoSuchName, dnstest.Failure, berth.Retrying,
			berth.ReasonInputUnavailable, true},
		"the machine's fail": {dnstest.Failure, dnstest.NoSuchName, berth.Retrying,
			berth.ReasonInputUnavailable, false},
		"the machine's fail for IPv4": {dnstest.FailsV4, dnstest.NoSuchName, berth.Retrying,
			berth.ReasonInputUnavailable, false},
		"the name has no address here": {dnstest.NoAddress, dnstest.NoSuchName, berth.Failed, berth.ReasonInputInvalid,
			true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			m := s.machine("m1")
			names := &dnstest.Server{}
			names.Set("data.test", row.machine)
			s.names.Set("data.test", row.control)
			m.cfg.InputResolver = names.Resolver()
			m.impatient()
			id := s.submit(from("https://data.test/set.bin"), "exit", "0")
			_, w := m.run(id)
			w.exit()
			j := s.settle(id)
			if j.Status != row.state || j.Reason.Code != row.code || !strings.Contains(j.Reason.Message, "data.test") {
				t.Errorf("job is %s, %+v", j.Status, j.Reason)
			}
			if asked := s.names.Asked("data.test") > 0; asked != row.asked {
				t.Errorf("the control plane's name servers were asked: %v", asked)
			}
			if row.state == berth.Retrying && (j.Failures != 0 || j.Losses != 1) {
				t.Errorf("%d failures and %d losses", j.Failures, j.Losses)
			}
		})
	}
}

// The stage names the fault within the first seconds, long before the fetch is given up.
func TestAHostThatDoesNotExistIsShownAtOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	m.cfg.InputResolver = (&dnstest.Server{}).Resolver()
	m.cfg.Timing.NamePatience = time.Hour
	m.restart()
	id := s.submit(from("https://data.test/set.bin"), "exit", "0")
	m.run(id)
	s.until("the fault is shown", func() bool {
		got := s.stage(id)
		return strings.HasPrefix(got, "fetching input 0 (try ") && strings.HasSuffix(got, ": no such host)")
	})
	s.until("the history has it", func() bool {
		return s.hasEvent(id, wire.EventStage,
			"fetching input 0 (no such host)")
	})
}

// A control plane of the version before knows neither stages nor hosts: its agents work on, and
// the exit carries nothing that the server would refuse.
func TestAnOlderControlPlaneGetsNeitherStagesNorHosts(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	next := s.gate.next
	s.gate.next = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/agent/v1/stages" || r.URL.Path == "/agent/v1/hosts" {
			r.URL.Path = "/agent/v1/no-such-call"
		}
		next.ServeHTTP(w, r)
	})
	m := s.machine("m1")
	m.cfg.InputResolver = (&dnstest.Server{}).Resolver()
	m.impatient()
	id := s.submit(from("https://data.test/set.bin"), "exit", "0")
	_, w := m.run(id)
	if x := w.exit(); x.Unresolved != nil {
		t.Errorf("the exit carries %+v", x.Unresolved)
	}
	if j := s.settle(id); j.Status != berth.Retrying || j.Reason.Code != berth.ReasonInputUnavailable {
		t.Errorf("job is %s, %+v", j.Status, j.Reason)
	}
	if !strings.Contains(m.logs.text(), "server does not support stages, pausing them") {
		t.Error("the agent goes on to report stages")
	}
}
