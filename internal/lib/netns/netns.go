// Package netns runs a function in a network namespace of Linux. It is for child processes and
// sockets: both take the namespace of the thread that creates them. The function must not start
// goroutines that create sockets, since they run on threads of the process's own namespace.
package netns

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// Do calls do in the network namespace of a path, such as /proc/PID/ns/net; "" stands for the
// process's own. It returns the error of do, or the reason why do was not called.
func Do(path string, do func() error) error {
	if path == "" {
		return do()
	}
	done := make(chan error, 1)
	go func() { // never unlocked, so the thread ends with the goroutine
		runtime.LockOSThread()
		done <- enter(path, do)
	}()
	return <-done
}

// enter moves the calling thread into the namespace for good.
func enter(path string, do func() error) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open network namespace %s: %w", path, err)
	}
	err = unix.Setns(fd, unix.CLONE_NEWNET)
	_ = unix.Close(fd)
	if err != nil {
		return fmt.Errorf("enter network namespace %s: %w", path, err)
	}
	return do()
}
