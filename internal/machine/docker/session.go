package docker

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth/activities/node"
)

// signalSession signals a process of a container and all processes of the session that it leads.
// A process id may be given again at any time: each process is held by a descriptor, and then
// compared with the container and the session, before the signal goes to the descriptor.
func signalSession(leader int, c node.Container, number unix.Signal) error {
	own := cgroupOf(c.PID)
	if own == "" {
		return nil // the container has ended, and every process of it
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return fmt.Errorf("list processes: %w", err)
	}
	var faults []error
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		// Most processes of the host are dropped here, before a descriptor is opened.
		if err != nil || pid != leader && sessionOf(pid) != leader {
			continue
		}
		// One failure does not spare the other processes.
		faults = append(faults, signalMember(pid, leader, c, own, number))
	}
	return errors.Join(faults...)
}

// signalMember signals one process if it is of the container and the session.
func signalMember(pid, leader int, c node.Container, own string, number unix.Signal) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	group := cgroupOf(pid)
	if group == "" || group != own && !strings.Contains(group, c.ID) {
		return nil // another process has the id by now
	}
	if pid != leader && sessionOf(pid) != leader {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, number, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signal process %d: %w", pid, err)
	}
	return nil
}

// cgroupOf returns the control groups of a process, "" for a process that has ended.
func cgroupOf(pid int) string {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return ""
	}
	return string(text)
}

// sessionOf returns the session of a process, 0 for a process that has ended.
func sessionOf(pid int) int {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	end := strings.LastIndex(string(stat), ") ") // of the name, which may contain anything
	if err != nil || end < 0 {
		return 0
	}
	// The fields after the name: state, parent, process group, session.
	fields := strings.Fields(string(stat[end+2:]))
	if len(fields) < 4 {
		return 0
	}
	n, _ := strconv.Atoi(fields[3])
	return n
}
