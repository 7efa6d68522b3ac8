package agent_test

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"berth"
	"berth/api/client"
)

func TestDockerContainersAreEntered(t *testing.T) {
	t.Parallel()
	s, m := dockerMachine(t)
	c := s.user()
	id, name := m.entered()
	text := strings.Repeat("0123456789abcdef", 1<<18) // 4 MiB
	out, errs, code, err := m.exec(c, id, strings.NewReader(text), "cat")
	if err != nil || out != text || errs != "" || code != 0 {
		t.Errorf("cat returned %d bytes, %q, exit %d, %v", len(out), errs, code, err)
	}
	if out, errs, code, err = m.exec(c, id, nil, "do", "echo out", "stderr err", "exit 3"); err != nil || out != "out\n" || errs != "err\n" || code != 3 {
		t.Errorf("out %q, err %q, exit %d, %v", out, errs, code, err)
	}
	req := command("env", "TERM")
	req.TTY, req.Term, req.Rows, req.Columns = true, "xterm-256color", 24, 80
	var term bytes.Buffer
	code, err = c.Sessions().Run(t.Context(), id, req, client.Streams{Stdout: &term, Stderr: &term})
	if err != nil || code != 0 || term.String() != "TERM=xterm-256color\r\n" {
		t.Errorf("a terminal prints %q, exit %d, %v", term.String(), code, err)
	}
	// A user who goes leaves no process, even one that ignores the hangup.
	x := m.begin(c, id, command("do", "print ready", "trap SIGHUP", "sleep 1h"), client.Streams{})
	x.cancel()
	_ = x.wait(t)
	own, err := m.cfg.Runtime.Inspect(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	m.until("no other process is in the container", func() bool {
		return m.processes(own.ID) == 2 // the engine's init and the job's own
	})
	if got := s.job(id).Status; got != berth.Running {
		t.Errorf("the job is %s", got)
	}
}

// processes counts the processes of a container.
func (m *machine) processes(container string) (n int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		group, err := os.ReadFile("/proc/" + e.Name() + "/cgroup")
		if err == nil && strings.Contains(string(group), container) {
			n++
		}
	}
	return n
}
