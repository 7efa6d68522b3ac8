// Package toolserver runs third-party servers for tests. scripts/tool.sh builds a server that
// is not installed yet.
package toolserver

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Start runs a program until the test ends and returns the program's address on this machine,
// once the program accepts connections. prepare passes the address to the command.
func Start(t testing.TB, name string, prepare func(cmd *exec.Cmd, address string)) string {
	t.Helper()
	program := tool(t, name)
	// A process that chooses its port itself may take it between the choice here and the use.
	for range 5 {
		if address, ok := run(t, program, prepare); ok {
			return address
		}
	}
	t.Fatalf("%s does not start", name)
	return ""
}

// tool returns the path of the server's program, which scripts/tool.sh builds on first use. It
// looks for the script from the test's folder upwards, at the module's root.
func tool(t testing.TB, name string) string {
	t.Helper()
	dir, err := os.Getwd()
	for err == nil {
		if _, missing := os.Stat(filepath.Join(dir, "go.mod")); missing == nil {
			break
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("toolserver: there is no go.mod above the test's folder")
		}
		dir = filepath.Dir(dir)
	}
	if err != nil {
		t.Fatal(err)
	}
	// Its output is the program's path; progress and errors go to stderr.
	cmd := exec.Command(filepath.Join(dir, "scripts", "tool.sh"), name)
	var says bytes.Buffer
	cmd.Stderr = &says
	path, err := cmd.Output()
	if err != nil {
		t.Fatalf("toolserver: %v\n%s", err, says.String())
	}
	return strings.TrimSpace(string(path))
}

// run starts the process on a free port and reports whether the process answers. false means that
// the process ended by itself, as it does on a taken port. The kernel kills the process if the
// test's process dies.
func run(t testing.TB, program string, prepare func(cmd *exec.Cmd, address string)) (address string, ok bool) {
	t.Helper()
	address = freeAddress(t)
	cmd := exec.Command(program)
	prepare(cmd, address)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	ended, err := startTied(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	// A busy machine may take minutes to start the server: the limit only ends a test that hangs.
	limit := time.After(5 * time.Minute)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if c, err := net.Dial("tcp", address); err == nil {
			_ = c.Close()
			select {
			case <-ended: // another process has answered
				return "", false
			default:
				return address, true
			}
		}
		select {
		case <-ended:
			return "", false
		case <-limit:
			t.Fatalf("%s does not answer", program)
		case <-tick.C:
		}
	}
}

// freeAddress returns a loopback address with a free port, for a server that starts later. The port lies below
// 32768, where the kernel's own choice of ports begins. A Unix socket named after the port reserves it among
// test processes until the test ends; e2e/commands.Port uses the same names.
func freeAddress(t testing.TB) string {
	t.Helper()
	for range 1000 {
		port := 20_000 + rand.IntN(10_000)
		claim, err := net.Listen("unix", fmt.Sprintf("@berth-test-port-%d", port)) // abstract: no file stays behind
		if err != nil {
			continue
		}
		address := fmt.Sprintf("127.0.0.1:%d", port)
		if l, err := net.Listen("tcp", address); err == nil {
			_ = l.Close()
			t.Cleanup(func() { _ = claim.Close() })
			return address
		}
		_ = claim.Close()
	}
	t.Fatal("toolserver: no port from 20000 to 29999 is free")
	return ""
}

// startTied starts cmd from a thread that lives as long as the child, and returns a channel that is
// closed once the child is gone. The kernel sends Pdeathsig when the starting THREAD ends, not
// the process. A thread that a test moved into a network namespace (netns.Do) ends early.
func startTied(cmd *exec.Cmd) (<-chan struct{}, error) {
	ended, started := make(chan struct{}), make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		started <- nil
		_ = cmd.Wait() // a server that ended early is started again by Start
		close(ended)
	}()
	return ended, <-started
}
