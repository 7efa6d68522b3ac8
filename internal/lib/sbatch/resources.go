package sbatch

import (
	"errors"
	"fmt"
	"strings"

	"berth/spec"
)

// shape is the division of a job into nodes and tasks. A node of Slurm becomes a member.
type shape struct {
	nodes, tasksPerNode, cpusPerTask int
	gpusPerNode, gpusPerTask         int
}

// resources sets the members and the resources of each.
func (t *translation) resources() {
	t.tasks()
	t.gpus()
	s, r := &t.shape, &t.out.Job.Resources
	if s.nodes > 1 {
		t.out.Job.Members = s.nodes
	}
	cpus := s.tasksPerNode * s.cpusPerTask
	if o, ok := t.given["cpus-per-gpu"]; ok {
		n := parse(t, "cpus-per-gpu", number)
		switch {
		case t.has("cpus-per-task"):
			t.faultOption(o, "cannot be combined with --cpus-per-task")
		case s.gpusPerNode == 0:
			t.faultOption(o, "the job requests no GPUs")
		default:
			cpus = n * s.gpusPerNode
			s.cpusPerTask = max(cpus/s.tasksPerNode, 1)
		}
	}
	milli := spec.MilliCPU(1000 * cpus)
	r.CPUs = &milli
	t.memory(cpus)
	if t.has("tmp") {
		r.Disk = parse(t, "tmp", memory)
		t.noteOption(t.given["tmp"], "Berth reserves this disk space, and also limits the job's files to it")
	}
}

// tasks finds the number of nodes, and of tasks on each.
func (t *translation) tasks() {
	s := &t.shape
	s.cpusPerTask = max(parse(t, "cpus-per-task", number), 1)
	tasks, perNode := parse(t, "ntasks", number), parse(t, "ntasks-per-node", number)
	s.nodes = parse(t, "nodes", func(text string) (int, error) {
		low, high, ranged := strings.Cut(text, "-")
		if ranged && low != high {
			return 0, fmt.Errorf("a job of Berth has a fixed number of members; write one number")
		}
		return number(low)
	})
	if s.nodes == 0 && tasks > 0 && perNode > 0 {
		s.nodes = (tasks + perNode - 1) / perNode
	}
	s.nodes, s.tasksPerNode = max(s.nodes, 1), max(perNode, 1)
	if perNode == 0 && tasks > 0 {
		s.tasksPerNode = max(tasks/s.nodes, 1)
	}
	if tasks > 0 && s.nodes*s.tasksPerNode != tasks {
		t.faultOption(t.given["ntasks"], fmt.Sprintf("%d nodes with %d tasks each have %d tasks; members are equal, "+
			"so state a multiple of the nodes", s.nodes, s.tasksPerNode, s.nodes*s.tasksPerNode))
	}
	if tasks > 1 && perNode == 0 && !t.has("nodes") {
		t.noteOption(t.given["ntasks"], "all tasks run in one container on one machine, where Slurm may use several "+
			"nodes; state --nodes for several members")
	}
}

// gpus finds the number of GPUs of each node. All options that state it must agree.
func (t *translation) gpus() {
	s := &t.shape
	var from Option
	model := ""
	for _, name := range []string{"gres", "gpus-per-node", "gpus", "gpus-per-task"} {
		o, ok := t.given[name]
		if !ok {
			continue
		}
		parser := gpus
		if name == "gres" {
			parser = gres
		}
		m, n, err := parser(o.Value)
		switch {
		case errors.Is(err, errNoGPUs):
			t.refuseOption(o, err.Error())
			continue
		case err != nil:
			t.faultOption(o, err.Error())
			continue
		case name == "gpus" && n%s.nodes != 0:
			t.faultOption(o, fmt.Sprintf("%d GPUs do not divide among %d equal members", n, s.nodes))
			continue
		case name == "gpus":
			n /= s.nodes
		case name == "gpus-per-task":
			s.gpusPerTask = n
			n *= s.tasksPerNode
		}
		if from.Name != "" && n != s.gpusPerNode {
			t.faultOption(o, fmt.Sprintf("requests %d GPUs per node, but %s requests %d", n, from, s.gpusPerNode))
		}
		if m != "" && model != "" && !strings.EqualFold(m, model) {
			t.faultOption(o, fmt.Sprintf("names another GPU type than %s", from))
		}
		s.gpusPerNode, from = n, o
		if m != "" {
			model = m
		}
	}
	t.out.Job.Resources.GPUs = spec.MilliGPU(1000 * s.gpusPerNode)
	if model != "" && s.gpusPerNode > 0 {
		t.out.Job.Resources.GPUType = spec.StringList{model}
	}
}

// memory sets the memory of each member, and the variable of Slurm for it.
func (t *translation) memory(cpus int) {
	var found *Option
	for _, one := range []struct {
		option, variable string
		times            int
	}{
		{"mem", "SLURM_MEM_PER_NODE", 1},
		{"mem-per-cpu", "SLURM_MEM_PER_CPU", cpus},
		{"mem-per-gpu", "SLURM_MEM_PER_GPU", t.shape.gpusPerNode},
	} {
		o, ok := t.given[one.option]
		if !ok {
			continue
		}
		each, err := memory(o.Value)
		switch {
		case err != nil:
			t.faultOption(o, err.Error())
		case found != nil:
			t.faultOption(o, fmt.Sprintf("cannot be combined with %s", found))
		case one.times == 0:
			t.faultOption(o, "the job requests no GPUs")
		case each == 0:
			t.refuseOption(o, "Slurm gives the job all memory of the node; state the memory that it uses")
		default:
			sum := each * spec.MiB(one.times)
			t.out.Job.Resources.Memory = &sum
			t.lines = append(t.lines, fmt.Sprintf("export %s=%d", one.variable, int64(each)))
		}
		found = &o
	}
	if found == nil {
		t.note(0, t.Script.Name, fmt.Sprintf("requests no memory, so each member has Berth's default of %s; state "+
			"--mem",
			spec.DefaultMemory))
	}
}
