// Command testprog is the only program of the test image: package prog's commands as a
// process. It is static and has no dependencies, so an image needs no other file.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"berth/activities/node/runtimetest/prog"
)

func main() {
	dir, _ := os.Getwd() // a process without a folder still runs
	os.Exit(prog.Run(context.Background(), &prog.Process{
		Args:      os.Args[1:],
		Env:       os.LookupEnv,
		Stdin:     os.Stdin,
		Stdout:    os.Stdout,
		Stderr:    os.Stderr,
		Dir:       dir,
		ReadPath:  samePath,
		WritePath: samePath,
		Catch:     catch,
		Hog:       hog,
		Spin:      spin,
		Halt:      halt,
		User:      func() string { return fmt.Sprintf("%d:%d", os.Geteuid(), os.Getegid()) },
		Spawn:     spawn,
		Attack:    attack,
	}))
}

// samePath returns the path unchanged: the process is inside its container.
func samePath(path string) (string, error) { return path, nil }

// catch replaces the default action of the named signals for the rest of the process's
// life.
func catch(names ...string) <-chan string {
	numbers := map[string]syscall.Signal{
		"SIGTERM": syscall.SIGTERM, "SIGINT": syscall.SIGINT, "SIGHUP": syscall.SIGHUP,
		"SIGUSR1": syscall.SIGUSR1, "SIGUSR2": syscall.SIGUSR2,
	}
	byNumber := make(map[os.Signal]string)
	raw := make(chan os.Signal, 16)
	for _, name := range names {
		byNumber[numbers[name]] = name
		signal.Notify(raw, numbers[name])
	}
	named := make(chan string)
	go func() { // lives as long as the process
		for s := range raw {
			named <- byNumber[s]
		}
	}()
	return named
}

// hog touches one byte of every page, since memory that was never written to
// is not charged to the container.
func hog(_ context.Context, mib int64) {
	for range mib {
		block := make([]byte, 1<<20)
		for i := 0; i < len(block); i += 4096 {
			block[i] = 1
		}
		held = append(held, block)
	}
}

// spin keeps one core busy. The default action of a signal ends the process.
func spin(ctx context.Context) {
	for ctx.Err() == nil {
	}
}

// halt stops the process, and again each time it is continued.
func halt(ctx context.Context) {
	for ctx.Err() == nil {
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	}
}

// held keeps the blocks of hog alive until the process ends.
var held [][]byte

// spawn runs this program as a child. A child killed by a signal has exit code 128 plus its
// number, as in a shell.
func spawn(ctx context.Context, args ...string) (int, error) {
	err := exec.CommandContext(ctx, "/proc/self/exe", args...).Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return 128 + int(status.Signal()), nil
		}
		return exit.ExitCode(), nil
	}
	return 0, err
}
