package docker

import (
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/docker/docker/client"
	"golang.org/x/sys/unix"
)

// pidFile holds the process id of an engine whose socket was opened by systemd.
const pidFile = "/run/docker.pid"

// processStart returns the start of the engine behind a socket, or zero if the engine's process
// cannot be found. The engine's API does not report the start; but the kernel knows the listening
// process and its start.
func processStart(socket string) time.Time {
	pid := listener(socket)
	if name(pid) != "dockerd" {
		b, err := os.ReadFile(pidFile)
		if err != nil || "unix://"+socket != client.DefaultDockerHost {
			return time.Time{}
		}
		if pid, err = strconv.Atoi(strings.TrimSpace(string(b))); err != nil || name(pid) != "dockerd" {
			return time.Time{}
		}
	}
	return began(pid)
}

// listener is the process that listens on a socket, 0 if unknown.
func listener(socket string) int {
	conn, err := net.DialTimeout("unix", socket, time.Second)
	if err != nil {
		return 0
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	_ = raw.Control(func(fd uintptr) {
		if c, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(c.Pid)
		}
	})
	return pid
}

// name returns the name of a process, "" for one that has ended.
func name(pid int) string {
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	return strings.TrimSpace(string(b))
}

// ticks is the unit of /proc: a hundredth of a second on every Linux.
const ticks = 100

// began is when a process was started, on the wall's clock of now.
func began(pid int) time.Time {
	stat, err1 := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	up, err2 := os.ReadFile("/proc/uptime")
	_, rest, ok := strings.Cut(string(stat), ") ") // the name may contain anything
	fields := strings.Fields(rest)
	if err1 != nil || err2 != nil || !ok || len(fields) < 20 {
		return time.Time{}
	}
	start, err1 := strconv.ParseFloat(fields[19], 64)
	uptime, _, _ := strings.Cut(string(up), " ")
	now, err2 := strconv.ParseFloat(uptime, 64)
	if err1 != nil || err2 != nil {
		return time.Time{}
	}
	return time.Now().Add(-time.Duration((now - start/ticks) * float64(time.Second)))
}
