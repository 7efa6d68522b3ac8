package cgroupstats_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/machine/cgroupstats"
	"berth/wire"
)

const devices = `Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:    5000      10    0    0    0     0          0         0     5000      10    0    0    0     0       0          0
  eth0: 1234567     100    0    0    0     0          0         0   765432      90    0    0    0     0       0          0
  eth1:     100       1    0    0    0     0          0         0       11       1    0    0    0     0       0          0
`

// host lays out the files of a kernel, with process 42 in a container.
func host(t *testing.T, namespace string, files map[string]string) cgroupstats.Host {
	t.Helper()
	root := t.TempDir()
	files["proc/42/net/dev"] = devices
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for pid, ns := range map[string]string{"self": "net:[1]", "42": namespace} {
		if err := os.MkdirAll(filepath.Join(root, "proc", pid, "ns"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(ns, filepath.Join(root, "proc", pid, "ns/net")); err != nil {
			t.Fatal(err)
		}
	}
	return cgroupstats.Host{Proc: filepath.Join(root, "proc"), Cgroup: filepath.Join(root, "cgroup")}
}

func sample(cpu, memory, read, written float64) cgroupstats.Reading {
	return cgroupstats.Reading{
		wire.MetricCPU: cpu, wire.MetricMemory: memory,
		wire.MetricDiskRead: read, wire.MetricDiskWritten: written,
		wire.MetricReceived: 1234667, wire.MetricSent: 765443,
	}
}

func TestBothVersionsOfControlGroupsAreRead(t *testing.T) {
	t.Parallel()
	one := host(t, "net:[2]", map[string]string{
		"proc/42/cgroup": "11:blkio:/docker/abc\n4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n0::/system.slice\n",
		"cgroup/cpu,cpuacct/docker/abc/cpuacct.usage":             "1500000000\n",
		"cgroup/memory/docker/abc/memory.usage_in_bytes":          "1000000\n",
		"cgroup/memory/docker/abc/memory.stat":                    "cache 900\ninactive_file 5\ntotal_inactive_file 400000\n",
		"cgroup/blkio/docker/abc/blkio.throttle.io_service_bytes": "8:0 Read 4096\n8:0 Write 100\n8:0 Sync 0\n8:0 Total 4196\n8:16 Read 4\n8:16 Write 20\nTotal 4320\n",
	})
	two := host(t, "net:[2]", map[string]string{
		"proc/42/cgroup": "0::/system.slice/docker-abc.scope\n",
		"cgroup/system.slice/docker-abc.scope/cpu.stat":       "usage_usec 2500000\nuser_usec 1\n",
		"cgroup/system.slice/docker-abc.scope/memory.current": "700000\n",
		"cgroup/system.slice/docker-abc.scope/memory.stat":    "anon 1\ninactive_file 100000\nactive_file 5\n",
		"cgroup/system.slice/docker-abc.scope/io.stat":        "8:0 rbytes=8192 wbytes=7 rios=2 wios=1 dbytes=0 dios=0\n8:16 rbytes=8 wbytes=1\n",
	})
	for name, c := range map[string]struct {
		host cgroupstats.Host
		want cgroupstats.Reading
		cpu  time.Duration
	}{
		"version 1": {one, sample(1.5, 600000, 4100, 120), 1500 * time.Millisecond},
		"version 2": {two, sample(2.5, 600000, 8200, 8), 2500 * time.Millisecond},
	} {
		g := c.host.Open(42)
		if diff := cmp.Diff(c.want, g.Read()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if cpu, ok := g.CPU(); !ok || cpu != c.cpu {
			t.Errorf("%s: CPU is %s, %v, want %s", name, cpu, ok, c.cpu)
		}
	}
}

func TestWhatIsNotKnownIsLeftOut(t *testing.T) {
	t.Parallel()
	h := host(t, "net:[1]", map[string]string{ // the host's own network
		"proc/42/cgroup":       "0::/c\n",
		"cgroup/c/cpu.stat":    "garbage\n",
		"cgroup/c/memory.stat": "inactive_file 1\n",
		"cgroup/c/io.stat":     "\n",
	})
	want := cgroupstats.Reading{wire.MetricDiskRead: 0, wire.MetricDiskWritten: 0}
	if diff := cmp.Diff(want, h.Open(42).Read()); diff != "" {
		t.Errorf("a host that tells little (-want +got):\n%s", diff)
	}
	for _, pid := range []int{0, -1, 43} {
		if s := h.Open(pid).Read(); len(s) > 0 {
			t.Errorf("process %d, which is not there, has used %v", pid, s)
		}
	}
	if s := (cgroupstats.Gauge{}).Read(); len(s) > 0 {
		t.Errorf("the zero gauge reads %v", s)
	}
}
