// Package kernellog reads the log of a machine's kernel, /dev/kmsg.
package kernellog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Kmsg is the host's kernel log, /dev/kmsg.
type Kmsg struct{}

// RecordSize is the size of a buffer that holds each record (printk.c: PRINTK_MESSAGE_MAX is 2 KiB).
const RecordSize = 16 << 10

// Open returns the log from the oldest record that the kernel has; each read gives one record, and
// waits for one. Closing it ends a read that waits. Opening takes root.
func (Kmsg) Open() (io.ReadCloser, error) {
	f, err := os.OpenFile("/dev/kmsg", os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open kernel log: %w", err)
	}
	return f, nil
}

// Now is the log's clock: the time since the host's boot, 0 if the kernel does not report the time.
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

// Overwritten reports whether a read failed because the kernel has dropped records before they were
// read. The next read continues after the gap.
func Overwritten(err error) bool { return errors.Is(err, syscall.EPIPE) }

// Record is one message of the kernel.
type Record struct {
	Since time.Duration // the boot
	Text  string        // its first line
}

// Parse reads a record of /dev/kmsg. Its form is "priority,number,microseconds,flags;text", with
// details in further lines (Linux, Documentation/ABI/testing/dev-kmsg). ok is false for other text
// and for messages that processes wrote into the log, which have a facility above 0.
func Parse(record []byte) (r Record, ok bool) {
	head, text, ok := bytes.Cut(record, []byte{';'})
	fields := strings.Split(string(head), ",")
	if !ok || len(fields) < 3 {
		return r, false
	}
	priority, err := strconv.ParseUint(fields[0], 10, 32)
	if err != nil || priority > 7 {
		return r, false
	}
	micros, err := strconv.ParseInt(fields[2], 10, 64)
	if err != nil || micros < 0 || micros > math.MaxInt64/int64(time.Microsecond) {
		return r, false
	}
	line, _, _ := strings.Cut(string(text), "\n")
	return Record{time.Duration(micros) * time.Microsecond, line}, true
}

// OutOfMemory reports whether the log says that the kernel killed a process because the control
// group of that name, or one below it, was at its memory limit. The answer "no" is not certain: the
// kernel writes only some of many such messages, and drops old ones. A read takes some milliseconds.
func (k Kmsg) OutOfMemory(group string) (bool, error) {
	fd, err := syscall.Open("/dev/kmsg", syscall.O_RDONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		return false, fmt.Errorf("open kernel log: %w", err)
	}
	defer func() { _ = syscall.Close(fd) }() // nothing was written
	return outOfMemory(group, func(b []byte) (int, error) { return syscall.Read(fd, b) })
}

// outOfMemory looks through the records that read gives until it has no more.
func outOfMemory(group string, read func([]byte) (int, error)) (bool, error) {
	buf := make([]byte, RecordSize)
	for {
		n, err := read(buf)
		switch {
		case errors.Is(err, syscall.EAGAIN):
			return false, nil
		case Overwritten(err), errors.Is(err, syscall.EINTR):
			continue
		case err != nil:
			return false, fmt.Errorf("read kernel log: %w", err)
		case n == 0:
			return false, nil
		}
		if r, ok := Parse(buf[:n]); ok && names(r.Text, group) {
			return true, nil
		}
	}
}

// names reports whether a message of the kernel is about a process that was killed for the limit of
// a control group, such as
//
//	oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=…,mems_allowed=0,
//	oom_memcg=/docker/312c05…,task_memcg=/docker/312c05…,task=python,pid=16020,uid=0
//
// in one line. A kill for want of memory in the whole machine has no oom_memcg.
func names(text, group string) bool {
	rest, ok := strings.CutPrefix(text, "oom-kill:")
	if !ok {
		return false
	}
	_, rest, ok = strings.Cut(rest, ",oom_memcg=")
	path, _, _ := strings.Cut(rest, ",")
	return ok && group != "" && strings.Contains(path, group)
}
