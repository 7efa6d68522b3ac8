package gpuproof_test

import (
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"berth"
	"berth/activities/node"
	"berth/internal/machine/gpu"
)

var (
	really = flag.Bool("gpu", false, "use the first GPU of this machine for four minutes")
	python = flag.String("python", "python3", "interpreter with PyTorch")
	out    = flag.String("out", "", "folder for results.jsonl; empty: print only")
)

//go:embed workload.py
var workload string

var recording sync.Mutex

// record prints a result as a line of JSON, and appends the line to the file.
func record(t testing.TB, what string, values map[string]any) {
	t.Helper()
	line := maps.Clone(values)
	line["test"], line["what"] = t.Name(), what
	b, err := json.Marshal(line)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(string(b))
	if *out == "" {
		return
	}
	recording.Lock()
	defer recording.Unlock()
	f, err := os.OpenFile(filepath.Join(*out, "results.jsonl"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := fmt.Fprintln(f, string(b)); err != nil {
		t.Fatal(err)
	}
}

// site is the first device of this machine.
type site struct {
	lib    nvml.Interface
	inv    *gpu.NVML
	gpus   []berth.GPU
	uuid   string
	device nvml.Device
}

// open opens the inventory as the agent does. The test is skipped on a machine without NVML, and
// without the flag -gpu.
func open(t *testing.T) site {
	t.Helper()
	lib := nvml.New()
	inv, err := gpu.OpenNVML(gpu.NVMLOptions{Library: lib})
	if errors.Is(err, gpu.ErrNoNVML) {
		t.Skip("no NVML on this machine: it has no NVIDIA driver")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := inv.Close(); err != nil {
			t.Error(err)
		}
	})
	if !*really {
		t.Skip("uses a GPU for four minutes: run make proof-gpu, on a machine whose GPU is free")
	}
	gpus, err := inv.Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(gpus) == 0 {
		t.Skip("NVML lists no GPU on this machine")
	}
	device, ret := lib.DeviceGetHandleByUUID(gpus[0].UUID)
	if ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	return site{lib: lib, inv: inv, gpus: gpus, uuid: gpus[0].UUID, device: device}
}

// holding returns the present holders of the device.
func (s site) holding(t *testing.T) node.GPUHolding {
	t.Helper()
	list, err := s.inv.Holders(t.Context(), []string{s.uuid})
	if err != nil {
		t.Fatal(err)
	}
	if list[0].Problem != "" {
		t.Fatalf("cannot list processes: %s", list[0].Problem)
	}
	return list[0]
}

func TestInventoryIsThatOfNvidiaSMI(t *testing.T) {
	s := open(t)
	driver, _ := s.lib.SystemGetDriverVersion()
	library, _ := s.lib.SystemGetNVMLVersion()
	current, next, ret := s.device.GetMigMode()
	persistence, pret := s.device.GetPersistenceMode()
	record(t, "inventory", map[string]any{"gpus": s.gpus, "driver": driver, "nvml": library,
		"mig": []any{current, next, ret.Error()}, "persistence": []any{persistence, pret.Error()}})
	b, err := exec.Command("nvidia-smi", "--query-gpu=uuid,name,memory.total,driver_version,mig.mode.current",
		"--format=csv,noheader,nounits").Output()
	if err != nil {
		t.Skipf("nvidia-smi: %v", err)
	}
	record(t, "nvidia-smi", map[string]any{"csv": string(b)})
	rows := strings.Split(strings.TrimSpace(string(b)), "\n")
	for i, row := range rows {
		f := strings.Split(row, ", ")
		if len(f) != 5 {
			t.Fatalf("nvidia-smi printed %q", row)
		}
		if f[4] == "Enabled" {
			t.Skip("a GPU is cut into MIG slices, which nvidia-smi lists as one")
		}
		if i >= len(s.gpus) {
			t.Fatalf("nvidia-smi lists %d devices, Berth %d", len(rows), len(s.gpus))
		}
		g := s.gpus[i]
		mib, _ := strconv.ParseInt(f[2], 10, 64)
		if g.UUID != f[0] || g.Model != gpu.ShortModel(f[1]) || g.MemoryMiB != mib || f[3] != driver {
			t.Errorf("Berth has %+v with driver %s, nvidia-smi %q", g, driver, row)
		}
		if !g.Healthy {
			t.Errorf("%s is unhealthy: %s", g.UUID, g.Reason)
		}
	}
}

// tolerance is the memory that a device without processes may have in use.
const tolerance = 64 << 20

func TestHoldersAreFoundAndGoneAfterTheirEnd(t *testing.T) {
	s := open(t)
	before := s.holding(t)
	record(t, "before", map[string]any{"holding": before})
	if len(before.Processes) > 0 {
		t.Skipf("another program uses the GPU: %+v", before.Processes)
	}
	if before.MemoryBytes > tolerance {
		t.Errorf("%d bytes are in use without a process, more than %d", before.MemoryBytes, tolerance)
	}
	workers := map[string]*worker{"end": startWorker(t), "kill": startWorker(t), "large": startWorker(t)}
	for _, how := range slices.Sorted(maps.Keys(workers)) {
		w := workers[how]
		w.ready(t)
		if imported := s.holding(t); len(imported.Processes) > 0 {
			t.Errorf("the import of PyTorch alone holds the device: %+v", imported)
		}
		gib := map[string]int64{"end": 4, "kill": 4, "large": s.gpus[0].MemoryMiB * 3 / 4 / 1024}[how]
		if _, err := w.begin(t, fmt.Sprintf("hold %d", gib)); err != nil {
			t.Fatal(err)
		}
		h := s.holding(t)
		cgroup, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", w.pid))
		record(t, "held", map[string]any{"how": how, "gib": gib, "pid": w.pid, "holding": h,
			"cgroup": string(cgroup)})
		at := slices.IndexFunc(h.Processes, func(p node.GPUProcess) bool { return p.PID == w.pid })
		switch {
		case len(h.Processes) == 0:
			t.Errorf("the driver lists no process while one holds %d GiB", gib)
		case at < 0:
			t.Errorf("process %d is not among %+v: the driver has ids of another namespace", w.pid, h.Processes)
		case h.Processes[at].Bytes >= 0 && h.Processes[at].Bytes < gib<<30:
			t.Errorf("process %d holds %d bytes, want at least %d GiB", w.pid, h.Processes[at].Bytes, gib)
		}
		if h.MemoryBytes < gib<<30 {
			t.Errorf("%d bytes are in use, want at least %d GiB", h.MemoryBytes, gib)
		}
		s.end(t, w, how)
	}
}

// end ends a worker and measures the time until the driver reports the device as free.
func (s site) end(t *testing.T, w *worker, how string) {
	t.Helper()
	asked := time.Now()
	if how == "end" {
		_ = w.in.Close()
	} else if err := w.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for range w.answers { // the reader must end before Wait
	}
	_ = w.cmd.Wait()
	ended := time.Now()
	var listed, free time.Duration = -1, -1
	var h node.GPUHolding
	for deadline := ended.Add(20 * time.Second); (listed < 0 || free < 0) && time.Now().Before(deadline); {
		h = s.holding(t)
		if listed < 0 && len(h.Processes) == 0 {
			listed = time.Since(ended)
		}
		if free < 0 && h.MemoryBytes <= tolerance {
			free = time.Since(ended)
		}
	}
	record(t, "ended", map[string]any{"how": how, "reaped_ms": ended.Sub(asked).Milliseconds(),
		"unlisted_ms": float64(listed.Microseconds()) / 1000, "free_ms": float64(free.Microseconds()) / 1000,
		"after": h})
	if listed < 0 || free < 0 {
		t.Errorf("20 s after the process has ended: %+v", h)
	}
}

func TestHealthIsReadable(t *testing.T) {
	s := open(t)
	d, answers := s.device, map[string]any{}
	add := func(name string, ret nvml.Return, values ...any) {
		if ret != nvml.SUCCESS {
			answers[name] = ret.Error()
			return
		}
		answers[name] = values
	}
	for name, kind := range map[string]nvml.MemoryErrorType{
		"corrected": nvml.MEMORY_ERROR_TYPE_CORRECTED, "uncorrected": nvml.MEMORY_ERROR_TYPE_UNCORRECTED} {
		now, ret := d.GetTotalEccErrors(kind, nvml.VOLATILE_ECC)
		add("ecc "+name, ret, now)
		ever, ret := d.GetTotalEccErrors(kind, nvml.AGGREGATE_ECC)
		add("ecc "+name+" ever", ret, ever)
	}
	ecc, pending, ret := d.GetEccMode()
	add("ecc mode", ret, ecc, pending)
	cor, unc, waits, failed, ret := d.GetRemappedRows()
	add("remapped rows", ret, cor, unc, waits, failed)
	retired, ret := d.GetRetiredPagesPendingStatus()
	add("retired pages pending", ret, retired)
	reasons, ret := d.GetCurrentClocksEventReasons()
	add("throttle reasons", ret, fmt.Sprintf("%#x", reasons))
	temperature, ret := d.GetTemperature(nvml.TEMPERATURE_GPU)
	add("temperature", ret, temperature)
	mps, ret := d.GetMPSComputeRunningProcesses()
	add("mps processes", ret, len(mps))
	graphics, ret := d.GetGraphicsRunningProcesses()
	add("graphics processes", ret, len(graphics))
	types, ret := d.GetSupportedEventTypes()
	add("event types", ret, fmt.Sprintf("%#x", types))
	if set, ret := s.lib.EventSetCreate(); ret == nvml.SUCCESS {
		for name, kind := range map[string]uint64{"xid": nvml.EventTypeXidCriticalError,
			"single bit": nvml.EventTypeSingleBitEccError, "double bit": nvml.EventTypeDoubleBitEccError} {
			add("register "+name, d.RegisterEvents(kind, set))
		}
		_, ret := set.Wait(100)
		add("wait for an event", ret)
		_ = set.Free()
	} else {
		answers["event set"] = ret.Error()
	}
	_, kmsg := os.Stat("/dev/kmsg")
	answers["kernel log"] = kmsg == nil
	record(t, "health", answers)
	if !s.gpus[0].Healthy {
		t.Errorf("the device is unhealthy: %s", s.gpus[0].Reason)
	}
}

func TestFaultOfAProgramArrivesAsXid31(t *testing.T) {
	s := open(t)
	events, err := s.inv.Events(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w := startWorker(t)
	w.ready(t)
	a, err := w.begin(t, "fault")
	if err != nil {
		t.Fatal(err)
	}
	if a.Error == "" {
		t.Fatal("the write to an address that is not mapped succeeded")
	}
	asked := time.Now()
	select {
	case e := <-events:
		record(t, "xid", map[string]any{"event": e, "program": a.Error})
		if e.Xid != 31 || e.Fatal || e.UUID != s.uuid {
			t.Errorf("event is %+v, want XID 31 of %s, not fatal", e, s.uuid)
		}
	case <-time.After(10 * time.Second):
		record(t, "xid", map[string]any{"event": nil, "waited": time.Since(asked).String(), "program": a.Error})
		t.Errorf("no event 10 s after the program's fault: %s", a.Error)
	}
}
