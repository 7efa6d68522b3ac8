package main

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// attacks are the attempts of a program to break out of its container, by name. Some of them use
// the argument. A nil error means that the attack succeeded.
var attacks = map[string]func(argument string) error{
	// Privileges. The test image has no other user, so its program is root without capabilities.
	"setuid": func(string) error { return rawError(unix.RawSyscall(unix.SYS_SETUID, 1000, 0, 0)) },
	"chroot": func(string) error { return unix.Chroot("/") },
	"mknod":  func(string) error { return unix.Mknod("/device", unix.S_IFBLK|0o600, int(unix.Mkdev(8, 0))) },
	// Namespaces and mounts.
	"unshare": func(string) error { return unix.Unshare(unix.CLONE_NEWNS) },
	"userns": func(string) error {
		child := exec.Command("/proc/self/exe", "exit", "0")
		child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}
		return child.Run()
	},
	"mount":   func(string) error { return unix.Mount("none", "/tmp", "tmpfs", 0, "") },
	"remount": func(string) error { return unix.Mount("", "/proc/sys", "", unix.MS_REMOUNT|unix.MS_BIND, "") },
	"pivot":   func(string) error { return unix.PivotRoot("/", "/") },
	// The kernel.
	"keyctl": func(string) error {
		_, err := unix.KeyctlInt(unix.KEYCTL_GET_KEYRING_ID, unix.KEY_SPEC_SESSION_KEYRING, 1, 0, 0)
		return err
	},
	"bpf": func(string) error {
		attributes := [128]byte{4: 4, 8: 4, 12: 1} // create an array of one element
		return rawError(unix.RawSyscall(unix.SYS_BPF, 0, uintptr(unsafe.Pointer(&attributes)),
			unsafe.Sizeof(attributes)))
	},
	"perf": func(string) error {
		_, err := unix.PerfEventOpen(&unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Size: unix.PERF_ATTR_SIZE_VER0},
			0, -1, -1, 0)
		return err
	},
	"module": func(string) error { return unix.InitModule([]byte{0}, "") },
	"sysctl": func(string) error { return os.WriteFile("/proc/sys/kernel/core_pattern", []byte("|/attack"), 0) },
	"sysrq":  func(string) error { return os.WriteFile("/proc/sysrq-trigger", []byte("h"), 0) },
	// Other processes, by their number on the host.
	"ptrace": func(pid string) error { return onProcess(pid, unix.PtraceAttach) },
	"kill":   func(pid string) error { return onProcess(pid, func(n int) error { return unix.Kill(n, 0) }) },
	"memory": func(pid string) error { _, err := os.ReadFile("/proc/" + pid + "/environ"); return err },
}

// attack carries out one attack and returns the kernel's error.
func attack(name, argument string) error {
	try, ok := attacks[name]
	if !ok {
		return fmt.Errorf("unknown attack %q", name)
	}
	return try(argument)
}

// rawError converts the results of a raw system call to an error.
func rawError(_, _ uintptr, e syscall.Errno) error {
	if e != 0 {
		return e
	}
	return nil
}

// onProcess calls act with the process id in the text pid.
func onProcess(pid string, act func(int) error) error {
	n, err := strconv.Atoi(pid)
	if err != nil {
		return err
	}
	return act(n)
}
