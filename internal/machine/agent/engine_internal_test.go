package agent

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"berth"
	"berth/activities/node"
	"berth/activities/node/fakeruntime"
)

// A signal from outside is named without a question to the engine, which may be away.
func TestAKillFromOutsideIsNamed(t *testing.T) {
	t.Parallel()
	v := &evidence{}
	if text := v.engineFault(ending{container: node.Container{ExitCode: 137, Signaled: true}}); text !=
		"killed from outside Berth (docker kill or stop)" {
		t.Errorf("the fault is %q", text)
	}
}

// An answer that is no problem of Berth comes from a gateway, and may be another one in a moment.
func TestAnAnswerOfAGatewayIsNamed(t *testing.T) {
	t.Parallel()
	err := problem(&http.Response{Status: "502 Bad Gateway", Header: http.Header{"Content-Type": {"text/html"}}}, "GET", "/v1/x")
	if berth.CodeOf(err) != berth.CodeUnavailable || !strings.Contains(err.Error(),
		"GET /v1/x: 502 Bad Gateway from a gateway, not from Berth") {
		t.Errorf("got %v", err)
	}
}

// probed runs the probes of an agent on an engine for as long as f takes, on the
// clock of a bubble.
func probed(t *testing.T, f func(s *Supervisor, engine *fakeruntime.Fake, log *bytes.Buffer)) {
	synctest.Test(t, func(t *testing.T) {
		engine, log := fakeruntime.New(fakeruntime.Options{}), &bytes.Buffer{}
		logger := slog.New(slog.NewTextHandler(log, nil))
		timing := Timing{}.withDefaults()
		s := &Supervisor{
			cfg: Config{Machine: "m1", Runtime: engine, Timing: timing}, log: logger, beat: newBeat(), control: &control{cluster: "c1"},
			health: &engineHealth{runtime: engine, patience: timing.ProbePatience, log: logger},
		}
		s.adoption = make(chan struct{})
		close(s.adoption)
		go s.watchEngine(t.Context())
		f(s, engine, log)
		engine.Lag(nil)
	})
}

func TestASlowEngineIsNotSilent(t *testing.T) {
	t.Parallel()
	for _, takes := range []time.Duration{0, time.Second, 19 * time.Second} {
		probed(t, func(s *Supervisor, engine *fakeruntime.Fake, log *bytes.Buffer) {
			engine.Lag(func(fakeruntime.Call) { time.Sleep(takes) })
			for range 600 {
				time.Sleep(time.Second)
				if silent := s.health.silentFor(); silent != 0 {
					t.Fatalf("an engine that answers after %s counts as silent for %s", takes, silent)
				}
			}
			synctest.Wait()
			if log.Len() > 0 {
				t.Errorf("an engine that answers after %s: logged %s", takes, log)
			}
			engine.Lag(nil)
			time.Sleep(time.Minute) // the last slow probe ends
		})
	}
}

func TestF53AnEngineThatMissesTwoProbesIsSilentUntilItAnswers(t *testing.T) {
	t.Parallel()
	probed(t, func(s *Supervisor, engine *fakeruntime.Fake, log *bytes.Buffer) {
		for range 2 { // a second time as the first
			log.Reset()
			origin := time.Now()
			free := make(chan struct{})
			engine.Lag(func(fakeruntime.Call) { <-free })
			// Probes are sent 10 s and 40 s after the origin, and missed 20 s later.
			time.Sleep(60*time.Second - time.Millisecond)
			if silent := s.health.silentFor(); silent != 0 {
				t.Errorf("after one missed probe the engine counts as silent for %s", silent)
			}
			time.Sleep(2 * time.Millisecond)
			synctest.Wait()
			if silent, want := s.health.silentFor(), time.Since(origin.Add(10*time.Second)); silent != want {
				t.Errorf("after two missed probes the engine counts as silent for %s, want %s", silent, want)
			}
			time.Sleep(10 * time.Minute)
			if n := strings.Count(log.String(), "level=ERROR"); n != 1 {
				t.Errorf("%d lines at level Error, want 1:\n%s", n, log)
			}
			close(free)
			engine.Lag(nil)
			time.Sleep(40 * time.Second) // the probe under way, and one more
			synctest.Wait()
			recovered := strings.Contains(log.String(), "container engine recovered")
			if silent := s.health.silentFor(); silent != 0 || !recovered {
				t.Errorf("an engine that answers counts as silent for %s:\n%s", silent, log)
			}
			time.Sleep(s.beat.next(10 * time.Second)) // an instant of the grid, as at the start
			synctest.Wait()
		}
	})
}

func TestAnEngineThatRefusesCountsAsSilent(t *testing.T) {
	t.Parallel()
	probed(t, func(s *Supervisor, engine *fakeruntime.Fake, _ *bytes.Buffer) {
		refuse := func(fakeruntime.Call) error { return errors.New("connection refused") }
		engine.Intercept(refuse)
		time.Sleep(15 * time.Second)
		engine.Intercept(nil) // it was restarted
		time.Sleep(10 * time.Second)
		engine.Intercept(refuse)
		time.Sleep(10 * time.Second)
		if silent := s.health.silentFor(); silent != 0 {
			t.Errorf("after single misses the engine counts as silent for %s", silent)
		}
		time.Sleep(10 * time.Second)
		if s.health.silentFor() == 0 {
			t.Error("an engine that refuses twice counts as one that answers")
		}
	})
}
