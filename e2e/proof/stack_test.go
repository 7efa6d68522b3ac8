package proof_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"berth"
	"berth/activities/node/runtimetest"
	"berth/api/client"
	"berth/db"
	"berth/e2e/commands"
	"berth/internal/check"
)

// stack is one running Berth in a folder of its own.
type stack struct {
	t     testing.TB
	dir   string
	flags []string // of berth-dev
	image string   // of the test program, in the machine's own engine

	dev      *process
	others   []*process // started apart from berth-dev
	at       addresses
	url      string // of the API
	api      *client.Client
	engine   *engine // nil on private engines
	machines int
}

// addresses is berth-dev's stack.json.
type addresses struct {
	API         string `json:"api"`
	TokenFile   string `json:"token_file"`
	Temporal    string `json:"temporal"`
	DatabaseURL string `json:"database_url"`
	BlobURL     string `json:"blob_url"`
	PID         int    `json:"pid"`
}

// newStack makes a folder for a stack, and cleans up after it.
func newStack(t testing.TB) *stack {
	t.Helper()
	origin, err := template()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(shop, "s-")
	if err != nil {
		t.Fatal(err)
	}
	s := &stack{t: t, dir: dir}
	t.Cleanup(s.clear)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	// Owners matter: PostgreSQL refuses data that is not its user's.
	if out, err := exec.Command("cp", "-a", filepath.Join(origin, "postgres"), dir).CombinedOutput(); err != nil {
		t.Fatalf("copy the template: %v: %s", err, out)
	}
	return s
}

// onHost is a running stack with one machine on the machine's own engine. It
// pretends to many cores, so that jobs wait for nothing but each other's turn
// at the engine.
func onHost(t *testing.T) *stack {
	t.Helper()
	s := newStack(t)
	s.image = testImage(t)
	s.machines = 1
	s.flags = []string{"--engines", "host", "--agents", "1", "--cpus", "64", "--memory", "64GiB"}
	s.start()
	s.engine = watchEngine(t, s.dir)
	return s
}

// start starts berth-dev, again after the first time, and returns once all
// machines are ready for work.
func (s *stack) start() {
	s.t.Helper()
	s.startDev()
	token, err := os.ReadFile(s.at.TokenFile)
	if err != nil {
		s.t.Fatal(err)
	}
	s.connect(s.at.API, strings.TrimSpace(string(token)))
	s.awaitMachines()
}

// startDev starts berth-dev and returns once stack.json has its addresses.
func (s *stack) startDev() {
	s.t.Helper()
	args := append([]string{"--dir", s.dir, "--listen", "127.0.0.1:0", "--temporal-port", "0", "--ui-port", "-1"}, s.flags...)
	var err error
	if s.dev, err = startProcess(filepath.Join(s.dir, "berth-dev.log"), nil, program(s.t, "berth-dev"), args...); err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	if s.at, err = awaitAddresses(ctx, s.dir, s.dev); err != nil {
		s.t.Fatalf("berth-dev does not start: %v", err)
	}
}

// awaitAddresses waits for stack.json of this very process: a killed one
// leaves its own behind.
func awaitAddresses(ctx context.Context, dir string, p *process) (addresses, error) {
	var at addresses
	err := await(ctx, func(context.Context) error {
		if !p.running() {
			at.PID = p.pid
			return nil
		}
		b, err := os.ReadFile(filepath.Join(dir, "stack.json"))
		if err == nil {
			err = json.Unmarshal(b, &at)
		}
		if err == nil && at.PID != p.pid {
			err = fmt.Errorf("stack.json is of process %d, not %d", at.PID, p.pid)
		}
		return err
	})
	if err == nil && !p.running() {
		err = fmt.Errorf("it ended: %v", p.err)
	}
	return at, err
}

func (s *stack) connect(url, token string) {
	if s.api != nil {
		s.api.Close()
	}
	s.url, s.api = url, client.New(url, token)
}

func (s *stack) awaitMachines() {
	s.t.Helper()
	until(s.t, "machines are ready", func(ctx context.Context) error {
		page, err := s.api.Machines(ctx)
		if err != nil {
			return err
		}
		ready := 0
		for _, m := range page.Items {
			if m.State == berth.MachineReady {
				ready++
			}
		}
		if ready < s.machines {
			return fmt.Errorf("%d of %d are: %+v", ready, s.machines, page.Items)
		}
		return nil
	})
}

// clear ends the stack and removes all of it, after any result of the test.
func (s *stack) clear() {
	var errs []error
	s.verify()
	for _, p := range slices.Backward(s.others) {
		errs = append(errs, p.end(syscall.SIGTERM))
	}
	if s.dev != nil {
		errs = append(errs, s.dev.end(syscall.SIGINT))
	}
	if s.api != nil {
		s.api.Close()
	}
	if s.t.Failed() {
		logs, _ := filepath.Glob(filepath.Join(s.dir, "*.log")) // the pattern is well-formed
		agents, _ := filepath.Glob(filepath.Join(s.dir, "machines", "*", "agent.log"))
		for _, path := range append(logs, agents...) {
			s.t.Logf("%s:\n%s", path, tail(path))
		}
	} else if err := errors.Join(errs...); err != nil {
		s.t.Errorf("a program did not end in order: %v", err)
	}
	if err := removeStack(s.dir, filepath.Join(shop, "bin", "berth-dev")); err != nil {
		s.t.Errorf("clean up: %v", err)
	}
}

// verify checks that the test's history keeps every promise. It reads the live stack, as the
// program does in production; after a test that has ended its database there is nothing to check.
func (s *stack) verify() {
	if s.dev == nil || !s.dev.running() || s.at.DatabaseURL == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	h, err := db.OpenHistory(ctx, s.at.DatabaseURL)
	if err != nil {
		s.t.Errorf("read the history: %v", err)
		return
	}
	r, err := check.Run(ctx, h, nil, nil, check.Options{})
	if err := errors.Join(err, h.Close()); err != nil {
		s.t.Errorf("read the history: %v", err)
	}
	for _, b := range r.Breaches {
		s.t.Errorf("%s\n%s", b, b.Rows)
	}
}

// awaitAPI waits until the process answers calls.
func (s *stack) awaitAPI(p *process) {
	s.t.Helper()
	until(s.t, "the API answers", func(ctx context.Context) error {
		if !p.running() {
			s.t.Fatalf("berthd ended: %v", p.err)
		}
		_, err := s.api.Machines(ctx)
		return err
	})
}

// freeAddress is a loopback address for a program that is started again.
func freeAddress(t testing.TB) string {
	t.Helper()
	address, err := commands.Address()
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// testImage puts the test program into the machine's own engine.
func testImage(t *testing.T) string {
	t.Helper()
	return runtimetest.Image(t, "")
}
