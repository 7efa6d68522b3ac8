package gpuproof_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// answerLimit bounds a worker's answer, with the import of PyTorch from a slow disk.
const answerLimit = 90 * time.Second

// worker is a process of workload.py.
type worker struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers chan answer
	pid     int
}

// answer is a line of a worker's output.
type answer struct {
	Event string
	Why   string // of "missing" and "failed"
	PID   int
	Torch string
	CUDA  string
	Bytes int64
	Steps int
	Error string
}

// startWorker starts a process that waits for commands. It has no context on the GPU before the
// first one.
func startWorker(t *testing.T) *worker {
	t.Helper()
	script := t.TempDir() + "/workload.py"
	if err := os.WriteFile(script, []byte(workload), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(context.Background())
	w := &worker{cmd: exec.CommandContext(ctx, *python, script), answers: make(chan answer, 16)}
	w.cmd.Stderr = os.Stderr
	in, err := w.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	w.in = in
	if err := w.cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", *python, err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(w.answers)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var a answer
			if json.Unmarshal(lines.Bytes(), &a) == nil {
				w.answers <- a
			}
		}
	}()
	t.Cleanup(func() {
		end()
		<-done
		_ = w.cmd.Wait() // a second call returns at once
	})
	return w
}

// ready waits for the import of PyTorch. Without PyTorch the test is skipped.
func (w *worker) ready(t *testing.T) {
	t.Helper()
	a := w.answer(t)
	if a.Event == "missing" {
		t.Skipf("%s has no PyTorch: %s", *python, a.Why)
	}
	w.pid = a.PID
	record(t, "worker", map[string]any{"torch": a.Torch, "cuda": a.CUDA, "pid": a.PID})
}

// answer returns the next line of the output.
func (w *worker) answer(t *testing.T) answer {
	t.Helper()
	select {
	case a, ok := <-w.answers:
		if !ok {
			t.Fatal("the worker has ended")
		}
		return a
	case <-time.After(answerLimit):
		t.Fatalf("the worker has not answered for %s", answerLimit)
	}
	return answer{}
}

// begin sends a command and waits until the workload runs; an error is the workload's own.
func (w *worker) begin(t *testing.T, command string) (answer, error) {
	t.Helper()
	if _, err := fmt.Fprintln(w.in, command); err != nil {
		t.Fatalf("send a command to the worker: %v", err)
	}
	for {
		switch a := w.answer(t); a.Event {
		case "on":
			return a, nil
		case "failed":
			return a, fmt.Errorf("%s: %s", strings.Fields(command)[0], a.Why)
		}
	}
}
