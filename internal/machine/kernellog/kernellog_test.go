package kernellog_test

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"berth/internal/machine/kernellog"
)

const container = "312c0509966533e99128b4065c62512a68ac94e35ad8a2fe0a886affe272276a"

// line is a message of the kernel about a process that it killed.
func line(priority, constraint, group, task string) string {
	return priority + ",1234,5678901,-;oom-kill:constraint=" + constraint + ",nodemask=(null),cpuset=" + container +
		",mems_allowed=0," + group + ",task_memcg=/docker/" + container + ",task=" + task + ",pid=16020,uid=0\n"
}

func TestOutOfMemoryIsReadFromTheKernelsMessages(t *testing.T) {
	t.Parallel()
	const limit = "CONSTRAINT_MEMCG"
	for name, c := range map[string]struct {
		record string
		want   bool
	}{
		"version 1":           {line("6", limit, "oom_memcg=/docker/"+container, "python"), true},
		"version 2":           {line("6", limit, "oom_memcg=/system.slice/docker-"+container+".scope", "python"), true},
		"group below":         {line("6", limit, "oom_memcg=/docker/"+container+"/loader", "python"), true},
		"limit of all":        {line("6", limit, "oom_memcg=/docker", "python"), false},
		"whole machine":       {line("6", "CONSTRAINT_NONE", "global_oom", "python"), false},
		"another container":   {line("6", limit, "oom_memcg=/docker/0000", "python"), false},
		"written by somebody": {line("14", limit, "oom_memcg=/docker/"+container, "python"), false},
		"another message":     {"6,1,2,-;usb " + container + "\n", false},
		"no message":          {"6,1", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := kernellog.OutOfMemory(container, records("4,1,2,-;first\n", "", c.record))
			if err != nil || got != c.want {
				t.Errorf("got %v, %v, want %v", got, err, c.want)
			}
		})
	}
	failing := func([]byte) (int, error) { return 0, syscall.EINVAL }
	if got, err := kernellog.OutOfMemory(container, failing); got || !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a log that fails: %v, %v", got, err)
	}
	if got, err := kernellog.OutOfMemory("", records(line("6", limit, "oom_memcg=/docker/x", "a"))); got || err != nil {
		t.Errorf("a container without an id: %v, %v", got, err)
	}
}

// records reads as /dev/kmsg does: one record at a time, EPIPE for one that was dropped (""), and
// EAGAIN at the end.
func records(all ...string) func([]byte) (int, error) {
	return func(b []byte) (int, error) {
		if len(all) == 0 {
			return 0, syscall.EAGAIN
		}
		r := all[0]
		all = all[1:]
		if r == "" {
			return 0, syscall.EPIPE
		}
		return copy(b, r), nil
	}
}

func TestParseReadsTheClock(t *testing.T) {
	t.Parallel()
	r, ok := kernellog.Parse([]byte("4,1234,5678901,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1234\n SUBSYSTEM=pci\n"))
	if want := (kernellog.Record{Since: 5678901 * time.Microsecond, Text: "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234"}); !ok ||
		r != want {
		t.Errorf("got %+v, %v", r, ok)
	}
}

func TestTheHostsKernelLogIsRead(t *testing.T) {
	t.Parallel()
	got, err := kernellog.Kmsg{}.OutOfMemory(container)
	if got || err != nil && !errors.Is(err, syscall.EPERM) && !errors.Is(err, syscall.EACCES) && !errors.Is(err, syscall.ENOENT) {
		t.Errorf("got %v, %v", got, err)
	}
}
