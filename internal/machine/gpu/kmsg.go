package gpu

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// KernelLog is the log of the kernel.
type KernelLog interface {
	// Open returns the log from the oldest record that the kernel has; each read
	// gives one record, and waits for one. Closing it ends a read that waits.
	Open() (io.ReadCloser, error)
	// Now is the log's clock: the time since the boot.
	Now() time.Duration
}

// Kmsg is the host's kernel log, /dev/kmsg.
type Kmsg struct{}

// Open opens /dev/kmsg, which takes root.
func (Kmsg) Open() (io.ReadCloser, error) {
	f, err := os.OpenFile("/dev/kmsg", os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open kernel log: %w", err)
	}
	return f, nil
}

// Now returns the time since the host's boot, 0 if the kernel does not report the time.
func (Kmsg) Now() time.Duration {
	b, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return 0
	}
	text, _, _ := strings.Cut(string(b), " ")
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0
	}
	return time.Duration(seconds * float64(time.Second))
}

// overwritten reports whether the kernel has dropped records before they were read. The next read
// continues after the gap.
func overwritten(err error) bool { return errors.Is(err, syscall.EPIPE) }
