package gpu_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"berth"
	"berth/internal/machine/gpu"
	"berth/internal/machine/kernellog"
)

// feed is a kernel log that a test writes, as /dev/kmsg would show it: from the
// oldest record, one a read.
type feed struct {
	mu      sync.Mutex
	records []string
	more    chan struct{}
}

func newFeed() *feed { return &feed{more: make(chan struct{})} }

func (*feed) Now() time.Duration { return time.Hour }

// say adds a record that was written so long after the boot.
func (f *feed) say(after time.Duration, text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.records = append(f.records, fmt.Sprintf("4,%d,%d,-;%s\n SUBSYSTEM=pci\n", len(f.records), after.Microseconds(), text))
	close(f.more)
	f.more = make(chan struct{})
}

func (f *feed) Open() (io.ReadCloser, error) {
	return &feedReader{feed: f, closed: make(chan struct{})}, nil
}

type feedReader struct {
	*feed
	at     int
	closed chan struct{}
}

func (r *feedReader) Read(p []byte) (int, error) {
	for {
		r.mu.Lock()
		if r.at < len(r.records) {
			r.at++
			defer r.mu.Unlock()
			return copy(p, r.records[r.at-1]), nil
		}
		more := r.more
		r.mu.Unlock()
		select {
		case <-more:
		case <-r.closed:
			return 0, os.ErrClosed
		}
	}
}

func (r *feedReader) Close() error { close(r.closed); return nil }

// rack is an inventory of four devices whose driver the test plays.
type rack struct {
	mu   sync.Mutex
	xids []gpu.Event
}

func (*rack) Devices(context.Context) ([]berth.GPU, error) {
	var list []berth.GPU
	for i := range 4 {
		list = append(list, berth.GPU{Index: i, UUID: fmt.Sprintf("GPU-%d", i), Model: "H100", MemoryMiB: 81920, Healthy: true})
	}
	return list, nil
}
func (*rack) Declared() bool { return false }
func (*rack) Close() error   { return nil }

func (r *rack) TakeXids() []gpu.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.xids
	r.xids = nil
	return list
}

func (r *rack) Located(pci string) []string {
	var bus int
	if _, err := fmt.Sscanf(pci, "0000:%02x:00", &bus); err != nil || bus > 3 {
		return nil
	}
	return []string{fmt.Sprintf("GPU-%d", bus)}
}

func watch(t *testing.T, r *rack, f *feed, file, boot string) *gpu.Watch {
	t.Helper()
	w, err := gpu.OpenWatch(r, gpu.WatchOptions{File: file, Boot: boot, Kernel: f})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return w
}

// state lists the devices as healthy, sick or quarantine, with the reason.
func state(t *testing.T, w *gpu.Watch) (list []string, reasons string) {
	t.Helper()
	gpus, err := w.Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range gpus {
		s := "healthy"
		switch {
		case g.Quarantine && !g.Healthy:
			s = "quarantine"
		case !g.Healthy:
			s = "sick"
		}
		list = append(list, s)
		reasons += g.Reason
	}
	return list, reasons
}

func awaitState(t *testing.T, w *gpu.Watch, want string) string {
	t.Helper()
	limit := time.After(3 * time.Minute)
	for {
		list, reasons := state(t, w)
		if got := strings.Join(list, " "); got == want {
			return reasons
		}
		select {
		case <-w.Changes():
		case <-time.After(5 * time.Millisecond):
		case <-limit:
			t.Fatalf("devices are %s (%s), want %s", strings.Join(list, " "), reasons, want)
		}
	}
}

// F38: a message of the kernel about a device has the effect in the table.
func TestF38KernelLogCondemnsDevices(t *testing.T) {
	t.Parallel()
	f := newFeed()
	file := filepath.Join(t.TempDir(), "agent", "gpu-faults.json")
	f.say(time.Minute, "NVRM: Xid (PCI:0000:01:00): 48, an error from before we were here")
	w := watch(t, &rack{}, f, file, "boot-1")
	began := time.Now().Add(-time.Second)
	for _, line := range []string{
		"usb 1-1: new device",
		"NVRM: Xid (PCI:0000:09:00): 79, a device that is not ours",
		"NVRM: Xid (PCI:0000:01:00): 31, pid=77, name=python, Ch 00000010, MMU Fault",
		"NVRM: Xid (PCI:0000:00:00): 48, pid=1, DBE",
	} {
		f.say(time.Hour+time.Second, line)
	}
	if reasons := awaitState(t, w, "sick healthy healthy healthy"); !strings.Contains(reasons, "XID 48") || !strings.Contains(reasons, "reset") {
		t.Errorf("the reason is %q", reasons)
	}
	if x := w.ApplicationXid([]string{"GPU-1"}, began); x != 31 {
		t.Errorf("the application's XID on GPU-1 is %d", x)
	}
	if x := w.ApplicationXid([]string{"GPU-0", "GPU-2"}, began) + w.ApplicationXid([]string{"GPU-1"}, time.Now().Add(time.Hour)); x != 0 {
		t.Errorf("XID %d where and when there was none", x)
	}
	f.say(time.Hour+2*time.Second, "NVRM: Xid (PCI:0000:02:00.0): 79, pid=1, GPU has fallen off the bus.")
	f.say(time.Hour+2*time.Second, "NVRM: Xid (PCI:0000:03:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
	awaitState(t, w, "sick healthy quarantine sick")

	// A new process of the agent still knows the error, a new boot of the host clears it.
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	f.say(time.Hour+3*time.Second, "NVRM: Xid (PCI:0000:01:00): 74, NVLink, said while no agent ran")
	w = watch(t, &rack{}, f, file, "boot-1")
	awaitState(t, w, "sick quarantine quarantine sick")
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	w = watch(t, &rack{}, newFeed(), file, "boot-2")
	awaitState(t, w, "healthy healthy healthy healthy")
}

func TestF38DriverEventsCondemnDevicesForGood(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "gpu-faults.json")
	r := &rack{}
	w := watch(t, r, newFeed(), file, "boot-1")
	r.mu.Lock()
	r.xids = []gpu.Event{{At: time.Now(), UUID: "GPU-3", Xid: 94}, {At: time.Now(), UUID: "GPU-2", Xid: 95}}
	r.mu.Unlock()
	awaitState(t, w, "healthy healthy sick healthy")
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	awaitState(t, watch(t, &rack{}, newFeed(), file, "boot-1"), "healthy healthy sick healthy")
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := gpu.OpenWatch(&rack{}, gpu.WatchOptions{File: file, Boot: "boot-1"}); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a damaged file: %v", err)
	}
}

func TestTheHostsKernelLogCanBeFollowedAndClosed(t *testing.T) {
	t.Parallel()
	if (kernellog.Kmsg{}).Now() <= 0 {
		t.Error("the host has no uptime")
	}
	w, err := gpu.OpenWatch(&rack{}, gpu.WatchOptions{File: filepath.Join(t.TempDir(), "f"), Boot: "b", Kernel: kernellog.Kmsg{}})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}
