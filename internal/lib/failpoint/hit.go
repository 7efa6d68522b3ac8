package failpoint

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ErrInjected is the error of a failpoint armed with "error".
var ErrInjected = errors.New("failpoint")

// hit checks whether a failpoint is armed and acts. It panics at an unknown action,
// because the test that armed it would wait without end.
func hit(dir, name string) error {
	if dir == "" {
		return nil
	}
	armed := filepath.Join(dir, name)
	done := armed + ".hit"
	// The rename makes a failpoint act once, in one of the processes that share the folder,
	// and shows the test that it was hit.
	if err := os.Rename(armed, done); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		panic("failpoint: " + err.Error())
	}
	text, err := os.ReadFile(done)
	if err != nil {
		panic("failpoint: " + err.Error())
	}
	action, argument, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	switch action {
	case "kill":
		return stop(syscall.SIGKILL)
	case "freeze":
		return stop(syscall.SIGSTOP)
	case "error":
		return fmt.Errorf("%w %s", ErrInjected, name)
	case "delay":
		d, err := time.ParseDuration(argument)
		if err != nil {
			panic("failpoint " + name + ": " + err.Error())
		}
		time.Sleep(d)
		return nil
	}
	panic(fmt.Sprintf("failpoint %s: action %q: allowed are kill, freeze, error, delay DURATION", name, text))
}

// stop sends this process a signal that no handler can catch, and returns if and when the process
// continues. The kernel stops threads one by one; the sleep gives it the time to stop this one.
func stop(s syscall.Signal) error {
	if err := syscall.Kill(os.Getpid(), s); err != nil {
		panic("failpoint: " + err.Error())
	}
	time.Sleep(10 * time.Millisecond)
	return nil
}

// parseClock reads the setting of a faster clock: the time at which both clocks agree, in RFC 3339, and a factor.
// It panics at a setting that it cannot read, because the test would measure something else.
func parseClock(text string) (func(time.Time) time.Time, int) {
	if text == "" {
		return nil, 1
	}
	origin, factor, _ := strings.Cut(text, " ")
	since, err := time.Parse(time.RFC3339Nano, origin)
	n, wrong := strconv.Atoi(factor)
	if err = errors.Join(err, wrong); err != nil || n < 1 {
		panic(fmt.Sprintf("failpoint: clock %q: want a time and a factor of at least 1: %v", text, err))
	}
	return func(t time.Time) time.Time { return since.Add(time.Duration(n) * t.Sub(since)) }, n
}
