package toolserver_test

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/machine/fetch/toolserver"
)

// The main goroutine keeps the main thread, which never ends: no test runs on it.
func init() { runtime.LockOSThread() }

// Tests that enter a network namespace end their threads. A server that such a thread has started
// would be killed with the thread, in the middle of another test.
func TestAServerOutlivesTheThreadThatAskedForIt(t *testing.T) {
	t.Parallel()
	var address string
	var thread int
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		thread = unix.Gettid()
		address = toolserver.Start(t, "fake-gcs-server", func(cmd *exec.Cmd, address string) {
			host, port, err := net.SplitHostPort(address)
			if err != nil {
				t.Error(err)
			}
			cmd.Args = append(cmd.Args, "-scheme", "http", "-host", host, "-port", port, "-backend", "memory", "-log-level", "error")
		})
	}()
	<-asked
	// The kernel sends the signal before the thread leaves the list.
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", thread)); err != nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the thread does not end")
		}
	}
	r, err := http.Get("http://" + address + "/storage/v1/b?project=test") //nolint:noctx // of a test
	if err != nil {
		t.Fatalf("the server has ended with the thread: %v", err)
	}
	_ = r.Body.Close()
}
