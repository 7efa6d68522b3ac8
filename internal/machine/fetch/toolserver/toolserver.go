// Package toolserver runs servers for tests that are programs of others, as
// scripts/tool.sh builds them where they are not there yet.
package toolserver

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Start runs a program until the test ends and returns the address, on this machine,
// at which it accepts connections. prepare passes this address to the command.
func Start(t testing.TB, name string, prepare func(cmd *exec.Cmd, address string)) string {
	t.Helper()
	program := tool(t, name)
	// Between the choice of a port and its use somebody else may take it.
	for range 5 {
		if address, ok := run(t, program, prepare); ok {
			return address
		}
	}
	t.Fatalf("%s does not start", name)
	return ""
}

// tool is the path of the server's program.
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
	cmd := exec.Command(filepath.Join(dir, "scripts", "tool.sh"), name)
	var says bytes.Buffer
	cmd.Stderr = &says
	path, err := cmd.Output()
	if err != nil {
		t.Fatalf("toolserver: %v\n%s", err, says.String())
	}
	return strings.TrimSpace(string(path))
}

// run starts the process and reports whether it answers.
func run(t testing.TB, program string, prepare func(cmd *exec.Cmd, address string)) (address string, ok bool) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address = l.Addr().String()
	_ = l.Close()
	cmd := exec.Command(program)
	prepare(cmd, address)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	limit := time.After(5 * time.Minute)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if c, err := net.Dial("tcp", address); err == nil {
			_ = c.Close()
			return address, true
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
