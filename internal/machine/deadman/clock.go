package deadman

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Instant is a moment of this boot: nanoseconds on CLOCK_BOOTTIME. No process can set that clock,
// and it counts the time in which the machine sleeps.
type Instant int64

// Now reads the clock.
func Now() Instant {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic("CLOCK_BOOTTIME: " + err.Error()) // Linux has it since 2.6.39
	}
	return Instant(t.Nano())
}

// Sub is the time from u to i.
func (i Instant) Sub(u Instant) time.Duration { return time.Duration(i - u) }

// BootID is the kernel's name of this boot.
func BootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}
