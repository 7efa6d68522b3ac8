package dockerd

import (
	"fmt"
	"hash/fnv"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
)

// Options configure an engine. Only Dir is required. The folder's path is the machine's identity:
// bridge, cgroup and socket are named after the path.
type Options struct {
	// Dir holds images, containers, configuration and the engine's log.
	Dir string

	// StorageDriver such as overlay2, fuse-overlayfs or vfs; empty lets the
	// engine find the best one that works here.
	StorageDriver string

	// Wipe starts on an empty machine: an engine that still runs on Dir is
	// killed, and its containers and images are deleted.
	Wipe bool

	// LiveRestore lets containers outlive their engine, so that KillDaemon and
	// Restart leave them running.
	LiveRestore bool

	// Tied ends the engine, in order, when this process ends, however it ends.
	Tied bool

	// Logger receives the manager's own lines; the engine's lines go to dockerd.log in Dir. Nil
	// discards.
	Logger *slog.Logger
}

// machine names everything that belongs to one engine.
type machine struct {
	id  string // from the folder's path
	dir string
}

// newMachine returns the machine of a folder. Its id is a hash of the absolute path.
func newMachine(dir string) (machine, error) {
	if dir == "" {
		return machine{}, fmt.Errorf("dockerd: Dir is empty: name the folder that holds the engine's data")
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return machine{}, err
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(abs)) // a hash never fails to write
	return machine{id: fmt.Sprintf("%08x", h.Sum32()), dir: abs}, nil
}

// Files in Dir survive a reboot; files in the run folder do not.
func (m machine) data() string       { return filepath.Join(m.dir, "data") }
func (m machine) config() string     { return filepath.Join(m.dir, "daemon.json") }
func (m machine) log() string        { return filepath.Join(m.dir, "dockerd.log") }
func (m machine) lock() string       { return filepath.Join(m.dir, "lock") }
func (m machine) subnetFile() string { return filepath.Join(m.dir, "subnet") }

// run returns a short path for any Dir: a socket's path may have 107 bytes, and containerd's
// socket lies deep below.
func (m machine) run() string     { return filepath.Join("/run/berth", m.id) }
func (m machine) socket() string  { return filepath.Join(m.run(), "docker.sock") }
func (m machine) execDir() string { return filepath.Join(m.run(), "exec") }
func (m machine) pidFile() string { return filepath.Join(m.run(), "docker.pid") }

func (m machine) bridge() string { return "bd-" + m.id } // a device's name may have 15 bytes
func (m machine) tag() string    { return "berth-" + m.id }

// commandPath is searched for the engine's helpers, and is the engine's own PATH: containerd,
// runc and iptables live in sbin.
const commandPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// lookUp finds a program in commandPath, regardless of the caller's PATH.
func lookUp(program, debianPackage string) (string, error) {
	for _, dir := range filepath.SplitList(commandPath) {
		path := filepath.Join(dir, program)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	if path, err := exec.LookPath(program); err == nil {
		return path, nil
	}
	return "", fmt.Errorf("find %s: not in %s: apt-get install %s", program, commandPath, debianPackage)
}
