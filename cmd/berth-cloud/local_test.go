package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/internal/control/cloud"
	"berth/internal/control/cloud/cloudexec"
	"berth/internal/control/cloud/cloudtest"
	"berth/internal/control/cloud/offers"
)

// host is a folder of local instances.
type host struct {
	dir   string
	fault string // of the next call
	*cloudexec.Provider
}

var small = cloud.Offering{Region: "here", Type: "small", Market: cloud.OnDemand}

// openHost returns a provider of local instances, whose processes end with the test.
func openHost(t *testing.T, agent string, args ...string) host {
	t.Helper()
	h := host{dir: filepath.Join(t.TempDir(), "machines"), fault: t.TempDir()}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	prices := file(t, "offers.csv", offers.Header+"\n"+
		"local,here,,small,on_demand,2,512,0,,1,example value,2026-11-26\n"+
		"local,here,,large,spot,4,1024,0,,2,example value,2026-11-26\n")
	command := append([]string{absolute(t, "../../internal/control/cloud/cloudexec/testdata/faulty.sh"), h.fault, self, "local",
		"--dir", h.dir, "--agent", agent, "--offers", prices, "--max", "20", "--"}, args...)
	if h.Provider, err = cloudexec.New(cloudexec.Options{Name: "local", Command: command, Env: []string{asProgram + "=1"}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		names, _ := filepath.Glob(filepath.Join(h.dir, "*", "instance.json"))
		for _, name := range names {
			i := cloud.Instance{ID: "local-" + filepath.Base(filepath.Dir(name)), Offering: small}
			_ = os.Remove(filepath.Join(h.fault, "fault"))                      // that no call has met
			end := func() error { return h.Terminate(context.Background(), i) } // the test's context has ended
			if err := answered(end); err != nil {
				t.Errorf("instance %s lives on: %v", i.ID, err)
			}
		}
	})
	return h
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// alive reports whether any process of an instance lives.
func (h host) alive(t *testing.T, id string) bool {
	t.Helper()
	lock, err := os.Open(filepath.Join(h.dir, strings.TrimPrefix(id, "local-"), "alive"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	return errors.Is(syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB), syscall.EWOULDBLOCK)
}

func TestLocalConforms(t *testing.T) {
	t.Parallel()
	cloudtest.Run(t, func(t *testing.T) cloudtest.Subject {
		h := openHost(t, absolute(t, "testdata/machine.sh"))
		return cloudtest.Subject{
			Provider: h, Offering: small, Regions: []string{"here"},
			Other: cloud.Offering{Region: "here", Type: "large", Market: cloud.Spot},
			Inject: func(f cloudtest.Fault) {
				if err := os.WriteFile(filepath.Join(h.fault, "fault"), []byte(f), 0o600); err != nil {
					t.Error(err)
				}
			},
			Created: func() int {
				names, err := filepath.Glob(filepath.Join(h.dir, "*", "instance.json"))
				if err != nil {
					t.Error(err)
				}
				return len(names)
			},
			Finish:  func() {},
			Unknown: cloud.Instance{ID: "local-00000000000000000000000000000000", Offering: small},
		}
	})
}

// localLaunch returns a launch for a server.
func localLaunch(url string) cloud.Launch {
	return cloud.Launch{
		Token: cloud.Token("cluster", "1", "burst-1", 1), Cluster: "cluster", Pool: "burst", Machine: "burst-1", N: 1,
		Offering: small, Bootstrap: cloud.Bootstrap{URL: url, JoinToken: "berth_JOIN_SECRET"},
	}
}

func TestEndOfAnInstanceEndsAllItsProcesses(t *testing.T) {
	t.Parallel()
	h := openHost(t, absolute(t, "testdata/machine.sh"), "--runtime=fake")
	l := localLaunch("http://127.0.0.1:1")
	i, err := h.Create(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	await(t, "the machine to start", func() bool {
		found, err := h.Find(t.Context(), l)
		return err == nil && found.State == cloud.Running
	})
	log := filepath.Join(h.dir, l.Token, "log")
	await(t, "the settings in the log", func() bool {
		text, _ := os.ReadFile(log)
		return strings.Contains(string(text), "--machine=burst-1 --pool=burst --region=here --site=cloud") &&
			strings.Contains(string(text), "--notices=file="+filepath.Join(h.dir, l.Token, "notice.json")+" ") &&
			strings.Contains(string(text), "--cpus=2 --memory=512MiB --runtime=fake\n") &&
			strings.Contains(string(text), "BERTH_JOIN_TOKEN=berth_JOIN_SECRET")
	})
	if record, err := os.ReadFile(filepath.Join(h.dir, l.Token, "instance.json")); err != nil || strings.Contains(string(record), "SECRET") {
		t.Errorf("the record has the join token: %s, %v", record, err)
	}
	if !h.alive(t, i.ID) {
		t.Fatal("no process lives")
	}
	if err := answered(func() error { return h.Terminate(t.Context(), i) }); err != nil {
		t.Fatal(err)
	}
	if h.alive(t, i.ID) {
		t.Error("a process lives on, or its child in another session")
	}
}

// A crash between the record and the start leaves an instance that a repetition starts, once.
func TestRepetitionAfterACrashStartsTheInstance(t *testing.T) {
	t.Parallel()
	h := openHost(t, absolute(t, "testdata/machine.sh"))
	l := localLaunch("http://127.0.0.1:1")
	i, err := h.Create(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(h.dir, l.Token)
	record, err := os.ReadFile(filepath.Join(folder, "instance.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Terminate(t.Context(), i); err != nil {
		t.Fatal(err)
	}
	// The folder as the crash would have left it.
	if err := os.RemoveAll(folder); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "instance.json"), record, 0o600); err != nil {
		t.Fatal(err)
	}
	if found, err := h.Find(t.Context(), l); err != nil || found.State != cloud.Pending {
		t.Errorf("found %+v, %v", found, err)
	}
	if again, err := h.Create(t.Context(), l); err != nil || again.ID != i.ID || !h.alive(t, i.ID) {
		t.Errorf("the repetition returns %+v, %v", again, err)
	}
}

// A machine that ends by itself is terminated, and never starts again.
func TestInstanceThatEndsByItselfIsTerminated(t *testing.T) {
	t.Parallel()
	h := openHost(t, "/bin/true")
	l := localLaunch("http://127.0.0.1:1")
	if _, err := h.Create(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	await(t, "the end", func() bool {
		i, err := h.Find(t.Context(), l)
		return err == nil && i.State == cloud.Terminated && i.Reason == "ended by itself"
	})
	var e *cloud.Error
	if _, err := h.Create(t.Context(), l); !errors.As(err, &e) || e.Kind != cloud.Mismatch {
		t.Errorf("the token starts it again: %v", err)
	}
}

// patience bounds every wait for an expected event; machines that run tests are busy.
const patience = 10 * time.Minute

func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for limit := time.After(patience); !done(); {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// answered repeats a call whose process was stopped at the time limit, as berthd does: the next call goes on with the
// work of the call before. It returns the error of the last call.
func answered(call func() error) (err error) {
	stopped := fmt.Sprintf("stopped after %s", cloudexec.DefaultTimeout)
	for limit := time.Now().Add(patience); time.Now().Before(limit); {
		if err = call(); err == nil || !strings.Contains(err.Error(), stopped) {
			return err
		}
	}
	return err
}
