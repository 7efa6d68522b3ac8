package day

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"berth/e2e/commands"
	"berth/e2e/rig"
)

// names are the programs of a day.
var names = []string{"berth", "berth-dev", "berth-agent", "berth-deadman"}

// images are the names under which the jobs of the day ask for the image of the guide.
var images = []string{"debian:12", "python:3.12-slim"}

// cluster is a running berth-dev with two machines.
type cluster struct {
	programs string // folder
	dir      string
	cmd      *exec.Cmd
	exited   chan error // receives the end of cmd
	URL      string     `json:"api"`
	Token    string     `json:"-"`
	File     string     `json:"token_file"`
}

// openPrograms returns a folder with the programs. Without a folder it builds them from this repository.
func openPrograms(tb testing.TB, folder string) string {
	tb.Helper()
	if folder == "" {
		folder = tb.TempDir()
		if err := commands.Build(folder, commands.Shipped, names...); err != nil {
			tb.Fatal(err)
		}
	}
	folder, err := filepath.Abs(folder)
	if err != nil {
		tb.Fatal(err)
	}
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(folder, name)); err != nil {
			tb.Fatalf("folder of programs: %v; it must hold %s", err, strings.Join(names, ", "))
		}
	}
	return folder
}

// startCluster starts a berth-dev in dir and waits until its machines are ready.
func startCluster(ctx context.Context, tb testing.TB, programs, dir string) *cluster {
	tb.Helper()
	image, err := exec.Command("../../scripts/example-image.sh", "guide").Output()
	if err != nil {
		tb.Fatalf("make the image: %v", err)
	}
	c := &cluster{programs: programs, dir: dir, exited: make(chan error, 1)}
	args := []string{"--dir", dir, "--agents", "2", "--engines", "private", "--cpus", "2", "--memory", "2GiB",
		"--listen", "127.0.0.1:0", "--temporal-port", "0", "--ui-port", "-1"}
	for _, name := range images {
		args = append(args, "--image", name+"="+strings.TrimSpace(string(image)))
	}
	log, err := os.Create(filepath.Join(dir, "berth-dev.log"))
	if err != nil {
		tb.Fatal(err)
	}
	defer log.Close()
	c.cmd = exec.Command(filepath.Join(programs, "berth-dev"), args...)
	c.cmd.Stdout, c.cmd.Stderr = log, log
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C ends the day first, and the cluster then
	tb.Cleanup(func() {
		if err := c.stop(); err != nil {
			tb.Error(err)
		}
	})
	if err := c.cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	go func() { c.exited <- c.cmd.Wait() }()
	if err := c.ready(ctx); err != nil {
		tb.Fatalf("%v\n%s", err, rig.Tail(log.Name()))
	}
	return c
}

// ready waits for the addresses, which berth-dev writes once its machines have joined.
func (c *cluster) ready(ctx context.Context) error {
	return rig.Await(ctx, rig.Patience, func(context.Context) error {
		select {
		case err := <-c.exited:
			c.exited <- err
			return nil // the caller's next read fails
		default:
		}
		b, err := os.ReadFile(filepath.Join(c.dir, "stack.json"))
		if err == nil {
			err = json.Unmarshal(b, c)
		}
		if err != nil {
			return err
		}
		token, err := os.ReadFile(c.File)
		c.Token = strings.TrimSpace(string(token))
		return err
	})
}

// stop ends the cluster, its engines and their containers.
func (c *cluster) stop() error {
	var errs []error
	if c.cmd.Process != nil {
		errs = append(errs, c.cmd.Process.Signal(syscall.SIGINT), <-c.exited)
	}
	out, err := exec.Command(filepath.Join(c.programs, "berth-dev"), "down", "--dir", c.dir).CombinedOutput()
	if err != nil {
		errs = append(errs, fmt.Errorf("berth-dev down: %w: %s", err, out))
	}
	return errors.Join(errs...)
}

// takes reports whether the help of a command lists a word, such as a flag.
func (c *cluster) takes(word string, command ...string) bool {
	out, err := exec.Command(filepath.Join(c.programs, "berth"), append(command, "--help")...).CombinedOutput()
	return err == nil && strings.Contains(string(out), word)
}

// operator runs a command in a folder that is no part of the user's day.
func (c *cluster) operator(folder string, args ...string) error {
	cmd := exec.Command(filepath.Join(c.programs, "berth"), args...)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "BERTH_URL="+c.URL, "BERTH_TOKEN="+c.Token,
		"BERTH_CONFIG="+filepath.Join(c.dir, "none"))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("berth %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}
