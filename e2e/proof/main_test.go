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
	"sync"
	"syscall"
	"testing"
	"time"

	"berth/e2e/commands"
	"berth/e2e/rig"
	"berth/internal/lib/poll"
	"berth/internal/machine/firewall"
)

// workshops is where runs keep everything; PostgreSQL's own user must be able
// to walk there, so it is not the test's private folder.
const workshops = "/var/tmp"

// shop is this run's folder:
//
//	lock       held as long as the run lives
//	bin/       the programs
//	template/  a stack with PostgreSQL and Temporal set up, to be copied
//	s-*/       one stack each
var shop string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if err := sweep(); err != nil {
		fmt.Fprintln(os.Stderr, "proof: tidy up after an earlier run:", err)
		return 1
	}
	dir, err := os.MkdirTemp(workshops, "berth-proof-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "proof:", err)
		return 1
	}
	shop = dir
	defer os.RemoveAll(dir)
	lock, err := lockShop(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, "proof:", err)
		return 1
	}
	defer lock.Close()
	if err := os.Chmod(dir, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, "proof:", err)
		return 1
	}
	return m.Run()
}

// programs are the folder of the built programs; the first caller builds them.
var programs = sync.OnceValues(func() (string, error) {
	bin := filepath.Join(shop, "bin")
	return bin, commands.Build(bin, commands.Shipped, "berth-dev", "berthd", "berth-agent", "berth-deadman", "berth", "e2e/faultcloud")
})

func program(t testing.TB, name string) string {
	t.Helper()
	bin, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(bin, name)
}

// programOf is a program of a folder; of this repository where that is empty.
func programOf(t testing.TB, folder, name string) string {
	t.Helper()
	if folder == "" {
		return program(t, name)
	}
	return filepath.Join(folder, name)
}

// template is the folder of a stopped stack in which PostgreSQL and Temporal's
// schema are set up; there is nothing of Berth in it yet. Copying it spares each
// test that work.
var template = sync.OnceValues(func() (string, error) {
	bin, err := programs()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(shop, "template")
	p, err := startProcess(dir+".log", nil, filepath.Join(bin, "berth-dev"),
		"--dir", dir, "--temporal-port", "0", "--ui-port", "-1", "--only", "postgres,temporal")
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err = awaitAddresses(ctx, dir, p)
	if err := errors.Join(err, p.end(syscall.SIGINT)); err != nil {
		return "", fmt.Errorf("set up PostgreSQL and Temporal: %w: %s", err, tail(dir+".log"))
	}
	return dir, nil
})

// lockShop locks a run's folder; it fails while that run lives.
func lockShop(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// sweep removes the leftovers of killed runs: their processes died with the test, their
// containers and private engines did not.
func sweep() error {
	found, err := filepath.Glob(filepath.Join(workshops, "berth-proof-*"))
	if err != nil {
		return err
	}
	for _, dir := range found {
		lock, err := lockShop(dir)
		if err != nil {
			continue // that run lives
		}
		stacks, err := filepath.Glob(filepath.Join(dir, "s-*"))
		for _, s := range stacks {
			err = errors.Join(err, removeStack(s, filepath.Join(dir, "bin", "berth-dev")))
		}
		err = errors.Join(err, os.RemoveAll(dir), lock.Close())
		if err != nil {
			return err
		}
	}
	return nil
}

// removeStack removes all that a stack whose processes have ended leaves behind.
func removeStack(dir, berthDev string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var errs []error
	errs = append(errs, endDeadmen(dir))
	for _, cluster := range clustersOf(dir) {
		errs = append(errs, rig.RemoveOfCluster(ctx, cluster))
	}
	engines, err := filepath.Glob(filepath.Join(dir, "machines", "*", "docker"))
	errs = append(errs, err)
	if len(engines) > 0 {
		if out, err := exec.CommandContext(ctx, berthDev, "down", "--dir", dir).CombinedOutput(); err != nil {
			errs = append(errs, fmt.Errorf("berth-dev down: %w: %s", err, out))
		}
	}
	machines, err := filepath.Glob(filepath.Join(dir, "machines", "*"))
	errs = append(errs, err)
	for _, m := range machines { // the agents name their tables so
		errs = append(errs, firewall.Delete(ctx, filepath.Join(m, "agent")+"/"+filepath.Base(m), ""))
	}
	return errors.Join(append(errs, os.RemoveAll(dir))...)
}

// clustersOf returns the clusters whose machines' credentials lie in a stack's
// folder: containers with their labels are the stack's.
func clustersOf(dir string) []string {
	files, _ := filepath.Glob(filepath.Join(dir, "machines", "*", "agent", "credential.json")) // the pattern is well-formed
	var found []string
	for _, f := range files {
		var c struct {
			Cluster string `json:"cluster"`
		}
		if b, err := os.ReadFile(f); err == nil && json.Unmarshal(b, &c) == nil && c.Cluster != "" && !slices.Contains(found, c.Cluster) {
			found = append(found, c.Cluster)
		}
	}
	return found
}

// patience bounds every wait. It is longer than Temporal takes to miss a waiter's
// heartbeats, and than a container engine has been seen to stand still on a
// machine without free I/O: 5 minutes.
const patience = 12 * time.Minute

// usualPause is the longest pause between two quick checks.
const usualPause = 150 * time.Millisecond

// until waits until check returns nil; its last error names the missing condition.
func until(t testing.TB, what string, check func(context.Context) error) {
	t.Helper()
	untilEvery(t, usualPause, what, check)
}

// untilEvery is until with another longest pause between two checks: a check that reads hundreds of rows is itself a
// load.
func untilEvery(t testing.TB, pause time.Duration, what string, check func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := poll.For(ctx, pause, check); err != nil {
		t.Fatalf("never: %s: %v", what, err)
	}
}

func await(ctx context.Context, check func(context.Context) error) error {
	return poll.For(ctx, usualPause, check)
}
