package gpu_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/internal/machine/gpu"
	"berth/wire"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// devices lists the devices with blank UUIDs, and returns the UUIDs separately.
func devices(t *testing.T, d *gpu.Declared) (list []berth.GPU, uuids []string) {
	t.Helper()
	list, err := d.Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range list {
		uuids = append(uuids, list[i].UUID)
		list[i].UUID = ""
	}
	return list, uuids
}

func TestDeclaredInventoryIsReadFromYAMLAndJSON(t *testing.T) {
	t.Parallel()
	want := []berth.GPU{
		{Index: 0, Model: "H100", MemoryMiB: 81920, Healthy: true},
		{Index: 1, Model: "H100", MemoryMiB: 81920, Healthy: true},
		{Index: 2, Model: "A100", MemoryMiB: 40960, Reason: "XID 79"},
	}
	for _, text := range []string{
		"- {model: H100, memory: 80GiB, count: 2}\n- model: A100\n  memory: 40GiB\n  unhealthy: [0]\n  reason: XID 79\n",
		`[{"model":"H100","memory":"80GiB","count":2},{"model":"A100","memory":42949672960,"unhealthy":[0],"reason":"XID 79"}]`,
	} {
		path := filepath.Join(t.TempDir(), "gpus")
		write(t, path, text)
		d, err := gpu.OpenDeclared(path, "m1", nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := devices(t, d); !cmp.Equal(got, want) {
			t.Errorf("%s\n%s", text, cmp.Diff(want, got))
		}
		if !d.Declared() {
			t.Error("the inventory passes for real")
		}
	}
}

func TestDeclaredUUIDsBelongToMachineAndIndex(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "gpus.yaml")
	write(t, path, "- {model: H100, memory: 80GiB, count: 8}")
	seen := make(map[string]bool)
	for _, machine := range []berth.MachineID{"m1", "m2", "m"} {
		d, err := gpu.OpenDeclared(path, machine, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, first := devices(t, d)
		again, err := gpu.OpenDeclared(path, machine, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, second := devices(t, again); !cmp.Equal(first, second) {
			t.Errorf("machine %s has other devices the second time: %s", machine, cmp.Diff(first, second))
		}
		for _, uuid := range first {
			if seen[uuid] || !strings.HasPrefix(uuid, "declared-") {
				t.Errorf("uuid %s is not the machine's own", uuid)
			}
			seen[uuid] = true
		}
	}
}

func TestDeclaredFileIsReadAgainWhenItChanges(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "gpus.yaml")
	write(t, path, "- {model: H100, memory: 80GiB, count: 2}")
	var log bytes.Buffer
	d, err := gpu.OpenDeclared(path, "m1", slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	before, uuids := devices(t, d)

	write(t, path, "- {model: H100, memory: 80GiB, count: 2, unhealthy: [1]}")
	got, same := devices(t, d)
	if !got[0].Healthy || got[1].Healthy || got[1].Reason != "declared unhealthy" || !cmp.Equal(same, uuids) {
		t.Errorf("after the edit: %+v", got)
	}

	write(t, path, "- {model: H100, memory: 80GiB, count: 2, unhealthy: [")
	for range 3 {
		if broken, _ := devices(t, d); !cmp.Equal(broken, got) {
			t.Errorf("a broken edit changed the inventory: %+v", broken)
		}
	}
	if n := strings.Count(log.String(), "cannot reload declared GPUs"); n != 1 {
		t.Errorf("the broken edit was logged %d times, want once:\n%s", n, log.String())
	}

	write(t, path, "- {model: H100, memory: 80GiB, count: 2}")
	if healed, _ := devices(t, d); !cmp.Equal(healed, before) {
		t.Errorf("after the repair: %+v", healed)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if left, _ := devices(t, d); !cmp.Equal(left, before) {
		t.Errorf("without the file: %+v", left)
	}
}

func TestDeclaredFileErrorsSayWhere(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"- {memory: 80GiB}":                                            "entry 1 has no model",
		"- {model: H100}":                                              "entry 1 (H100) has no memory",
		"- {model: H100, memory: 80GiB, count: -1}":                    "count -1",
		"- {model: H100, memory: 80GiB, count: 99999}":                 "up to 1024",
		"- {model: H100, memory: 80GiB, colour: red}":                  "colour",
		"- {model: H100, memory: 80GiB}\n- {model: A, memory: plenty}": "plenty",
		"- {model: H100, memory: 80GiB, count: 2, unhealthy: [2]}":     "allowed are 0 to 1",
		"model: H100": "[1:",
	} {
		path := filepath.Join(t.TempDir(), "gpus.yaml")
		write(t, path, text)
		if _, err := gpu.OpenDeclared(path, "m1", nil); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: error is %v, want one with %q and the path", text, err, want)
		}
	}
	if _, err := gpu.OpenDeclared("/no/such/file", "m1", nil); err == nil {
		t.Error("a missing file is no error")
	}
}

func TestDeclaredUseIsWhatTheFileSays(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "gpus.yaml")
	write(t, path, "- {model: H100, memory: 80GiB, count: 2, utilization: 0.9, memory_used: 30GiB}\n- {model: L4, memory: 24GiB}\n- {model: L4, memory: 24GiB, utilization: 0}\n- {model: L4, memory: 24GiB, utilization: 1, memory_busy: 0.01, power: 30, power_limit: 72}")
	d, err := gpu.OpenDeclared(path, "m1", nil)
	if err != nil {
		t.Fatal(err)
	}
	_, uuids := devices(t, d)
	got, err := d.Use(t.Context(), append(uuids[1:], "another"))
	memory, power, limit := 0.01, 30.0, 72.0
	want := []wire.GPUUse{
		{UUID: uuids[1], Utilization: 0.9, MemoryBytes: 30 << 30}, {UUID: uuids[3], MemoryBytes: -1},
		{UUID: uuids[4], Utilization: 1, MemoryBytes: -1, MemoryBusy: &memory, Watts: &power, LimitWatts: &limit},
	}
	if err != nil || !cmp.Equal(got, want) {
		t.Errorf("%v %s", err, cmp.Diff(want, got))
	}
	for _, bad := range []string{"utilization: 1.5", "utilization: -1", "utilization: .nan", "memory_used: 81GiB", "memory_busy: 2", "memory_busy: .nan", "power: -1", "power_limit: 1e9"} {
		write(t, path, "- {model: H100, memory: 80GiB, "+bad+"}")
		if _, err := gpu.OpenDeclared(path, "m1", nil); err == nil || !strings.Contains(err.Error(), "allowed") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
