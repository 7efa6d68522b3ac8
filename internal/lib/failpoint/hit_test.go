package failpoint

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

func arm(t *testing.T, dir, name, action string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(action+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAnArmedPointActsOnceAndLeavesAProof(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := hit(dir, "a"); err != nil {
		t.Errorf("one that is not armed returns %v", err)
	}
	if err := hit("", "a"); err != nil {
		t.Errorf("without a folder it returns %v", err)
	}
	arm(t, dir, "a", "error")
	if err := hit(dir, "b"); err != nil {
		t.Errorf("another returns %v", err)
	}
	if err := hit(dir, "a"); !errors.Is(err, ErrInjected) {
		t.Errorf("armed with error it returns %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "a.hit")); err != nil {
		t.Errorf("no proof: %v", err)
	}
	if err := hit(dir, "a"); err != nil {
		t.Errorf("the second time it returns %v", err)
	}
}

func TestADelayWaits(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	arm(t, dir, "slow", "delay 30ms")
	began := time.Now()
	if err := hit(dir, "slow"); err != nil || time.Since(began) < 30*time.Millisecond {
		t.Errorf("it took %s and returned %v", time.Since(began), err)
	}
}

func TestNonsensePanics(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	arm(t, dir, "x", "explode")
	defer func() {
		if recover() == nil {
			t.Error("it did not")
		}
	}()
	_ = hit(dir, "x")
}

// victim is this test binary in the role of the process that hits.
const victim = "BERTH_FAILPOINT_TEST_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(victim); dir != "" {
		_ = hit(dir, "here")
		os.Exit(7)
	}
	os.Exit(m.Run())
}

func TestKillAndFreezeStopTheProcessAtTheSpot(t *testing.T) {
	t.Parallel()
	for action, thaw := range map[string]bool{"kill": false, "freeze": true} {
		dir := t.TempDir()
		arm(t, dir, "here", action)
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), victim+"="+dir)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if thaw {
			var status syscall.WaitStatus
			if _, err := syscall.Wait4(cmd.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
				t.Errorf("%s: the process is not stopped but %v, %v", action, status, err)
			}
			if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
		}
		err = cmd.Wait()
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			t.Fatalf("%s: it ended with %v", action, err)
		}
		status := exit.Sys().(syscall.WaitStatus)
		if killed := status.Signaled() && status.Signal() == syscall.SIGKILL; killed == thaw || thaw && status.ExitStatus() != 7 {
			t.Errorf("%s: it ended with %v", action, err)
		}
	}
}

func TestAFasterClockAgreesAtItsOrigin(t *testing.T) {
	t.Parallel()
	if at, faster := parseClock(""); at != nil || faster != 1 {
		t.Errorf("without a setting the clock is %d times faster", faster)
	}
	origin := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	at, faster := parseClock("2026-11-26T12:00:00Z 10")
	if got := at(origin.Add(6 * time.Second)); faster != 10 || !at(origin).Equal(origin) || !got.Equal(origin.Add(time.Minute)) {
		t.Errorf("factor %d, six seconds later it is %s", faster, got)
	}
	for _, bad := range []string{"2026-11-26T12:00:00Z", "2026-11-26T12:00:00Z 0", "noon 10"} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%q is a clock", bad)
				}
			}()
			parseClock(bad)
		}()
	}
}
