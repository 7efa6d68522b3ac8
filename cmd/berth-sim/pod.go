package main

import (
	"fmt"
	"slices"
	"strings"

	"berth"
	"berth/placement"
	"berth/spec"
)

// Bounds of the numbers in a file: far beyond any machine, and far from overflow.
const (
	maxMilli = 1 << 40 // CPU milli or MiB
	maxGPUs  = 1024    // per machine or pod
)

// pod is one arrival, with the columns of Alibaba's openb list.
type pod struct {
	name    string
	shape   string // equal for equal requests
	request spec.Request
}

// Columns of a pod. Its GPU models are in gpuSpec.
var podColumns = []string{"cpu_milli", "memory_mib", "num_gpu", "gpu_milli"}

const gpuSpec = "gpu_spec"

// readArrivals reads the arrivals, one pod per row, with unique names.
func readArrivals(path string) ([]pod, error) {
	return readPods(path, "pod", slices.Concat([]string{"pod"}, podColumns, []string{gpuSpec}))
}

// readMix reads the pods of a mix, with unique names. Without the column gpu_spec every pod
// may use any GPU model.
func readMix(path string) ([]pod, error) {
	return readPods(path, "name", slices.Concat([]string{"name"}, podColumns))
}

// readPods reads one pod per row. name is the column of the pod's name, and columns are the
// required columns.
func readPods(path, name string, columns []string) ([]pod, error) {
	var list []pod
	seen := map[string]bool{}
	err := eachRow(path, columns, func(t *table) error {
		p, err := readPod(t, name)
		if err != nil {
			return err
		}
		if seen[p.name] {
			return fmt.Errorf("%s %q appears twice", name, p.name)
		}
		seen[p.name] = true
		list = append(list, p)
		return nil
	})
	return list, err
}

// readPod converts one row. A pod requests whole GPUs, or a part of a single one.
func readPod(t *table, name string) (pod, error) {
	p := pod{name: t.text(name)}
	if p.name == "" {
		return p, fmt.Errorf("%s is empty", name)
	}
	// An empty field is 0: the pod uses none of the resource.
	var n [4]int64
	for i, c := range []struct {
		column string
		most   int64
	}{{"cpu_milli", maxMilli}, {"memory_mib", maxMilli}, {"num_gpu", maxGPUs}, {"gpu_milli", 1000}} {
		var err error
		if n[i], err = t.number(c.column, 0, c.most); err != nil {
			return p, err
		}
	}
	p.request = spec.Request{CPUMilli: n[0], MemoryMiB: n[1], Members: 1, Execution: spec.AtLeastOnce}
	switch gpus, milli := n[2], n[3]; {
	case gpus == 0:
	case milli == 0:
		return p, fmt.Errorf("gpu_milli is 0 for %d GPUs: allowed are 1 to 1000", gpus)
	case gpus > 1 && milli < 1000:
		return p, fmt.Errorf("gpu_milli %d for %d GPUs: only one GPU can be shared, several are whole (1000)", milli,
			gpus)
	default:
		p.request.GPUs, p.request.GPUMilli = int(gpus), milli
		if models := t.text(gpuSpec); models != "" {
			// One of several models will do.
			p.request.GPUTypes = strings.Split(models, "|")
		}
	}
	// The columns of the request, as text: a map key for equal requests.
	p.shape = fmt.Sprint(n, p.request.GPUTypes)
	return p, nil
}

// readNodes reads the machines; their serial numbers must be unique.
func readNodes(path string) ([]placement.Machine, error) {
	var list []placement.Machine
	seen := map[string]bool{}
	err := eachRow(path, []string{"sn", "cpu_milli", "memory_mib", "gpu", "model"}, func(t *table) error {
		m, err := readNode(t)
		if err != nil {
			return err
		}
		if seen[string(m.ID)] {
			return fmt.Errorf("sn %q appears twice", m.ID)
		}
		seen[string(m.ID)] = true
		list = append(list, m)
		return nil
	})
	return list, err
}

// readNode converts one row to a ready machine with healthy GPUs of one model.
func readNode(t *table) (placement.Machine, error) {
	m := placement.Machine{ID: berth.MachineID(t.text("sn")), Epoch: 1, State: berth.MachineReady}
	if m.ID == "" {
		return m, fmt.Errorf("sn is empty")
	}
	var err error
	if m.Total.CPUMilli, err = t.number("cpu_milli", 0, maxMilli); err != nil {
		return m, err
	}
	if m.Total.MemoryMiB, err = t.number("memory_mib", 0, maxMilli); err != nil {
		return m, err
	}
	gpus, err := t.number("gpu", 0, maxGPUs)
	if err != nil {
		return m, err
	}
	// The lists name no disks; a pod's request has none either.
	m.Total.GPUMilli = gpus * 1000
	for i := range int(gpus) {
		m.GPUs = append(m.GPUs, placement.Device{Index: i, Model: t.text("model"), Healthy: true})
	}
	return m, nil
}
