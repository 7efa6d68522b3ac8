package unfinished

import (
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// killTimer is a timer of the kernel that kills this process. It needs no thread of this process, so it also ends a
// process that is stopped.
type killTimer struct{ id int32 }

// sigevent is the kernel's struct sigevent on 64-bit machines: 64 bytes.
type sigevent struct {
	value  uint64
	signal int32
	notify int32
	_      [48]byte
}

// itimerspec is the kernel's struct itimerspec.
type itimerspec struct{ interval, value unix.Timespec }

// newKillTimer creates the timer, which does not run yet. A process starts without one: exec removes timers.
func newKillTimer() (killTimer, error) {
	var t killTimer
	event := sigevent{signal: int32(unix.SIGKILL)} // notify 0: SIGEV_SIGNAL
	if _, _, e := unix.Syscall(unix.SYS_TIMER_CREATE, unix.CLOCK_MONOTONIC,
		uintptr(unsafe.Pointer(&event)), uintptr(unsafe.Pointer(&t.id))); e != 0 {
		return t, fmt.Errorf("create a timer of the kernel: %w", e)
	}
	return t, nil
}

// set makes the timer kill this process after d, instead of at the time set before.
func (t killTimer) set(d time.Duration) error {
	spec := itimerspec{value: unix.NsecToTimespec(d.Nanoseconds())}
	if _, _, e := unix.Syscall6(unix.SYS_TIMER_SETTIME, uintptr(t.id), 0,
		uintptr(unsafe.Pointer(&spec)), 0, 0, 0); e != 0 {
		return fmt.Errorf("set a timer of the kernel: %w", e)
	}
	return nil
}
