package spec

import (
	"fmt"
	"reflect"
	"time"
)

// MaxAlternatives bounds the alternatives of a job, besides resources.
const MaxAlternatives = 8

// EnvAlternative is the variable with the number of the hardware that the container got: 0 for
// resources, and 1 for the first alternative. Jobs without alternatives do not have it.
const EnvAlternative = "BERTH_ALTERNATIVE"

// Alternative is hardware that a job may take instead of its resources, once it has waited for a time.
// A field that is left out has the value of resources; see Job.ResourcesOf.
type Alternative struct {
	After     Duration    `json:"after,omitempty" doc:"wait before the job may take it; default: none"`
	CPUs      *MilliCPU   `json:"cpus,omitempty" doc:"cores, such as 0.5; default as in resources, also below"`
	Memory    *MiB        `json:"memory,omitempty" doc:"memory limit: 4GiB, 512MiB or bytes"`
	Disk      *MiB        `json:"disk,omitempty" doc:"disk space, reserved and enforced; 0: no limit"`
	ShmSize   *MiB        `json:"shm_size,omitempty" doc:"size of /dev/shm; 0: the engine's default"`
	GPUs      *MilliGPU   `json:"gpus,omitempty" doc:"a whole number, or a share of one GPU such as 0.25"`
	GPUType   *StringList `json:"gpu_type,omitempty" doc:"any of these models; []: any model"`
	GPUMemory *MiB        `json:"gpu_memory,omitempty" doc:"minimum memory of each GPU; 0: any"`
}

// ResourcesOf returns the hardware with a number: resources for 0, and the alternatives from 1.
// A number that the job does not have means resources.
func (s Job) ResourcesOf(number int) Resources {
	r := s.Resources
	if number < 1 || number > len(s.Alternatives) {
		return r
	}
	return s.Alternatives[number-1].resources(r)
}

// resources returns the resources with the fields that the alternative names.
func (a Alternative) resources(r Resources) Resources {
	if a.CPUs != nil {
		r.CPUs = a.CPUs
	}
	if a.Memory != nil {
		r.Memory = a.Memory
	}
	if a.Disk != nil {
		r.Disk = *a.Disk
	}
	if a.ShmSize != nil {
		r.ShmSize = *a.ShmSize
	}
	if a.GPUs != nil {
		r.GPUs = *a.GPUs
	}
	if r.GPUs == 0 { // hardware without GPUs inherits no conditions on them
		r.GPUType, r.GPUMemory = nil, 0
	}
	if a.GPUType != nil {
		r.GPUType = *a.GPUType
	}
	if a.GPUMemory != nil {
		r.GPUMemory = *a.GPUMemory
	}
	if len(r.GPUType) == 0 {
		r.GPUType = nil // equal to a list that is left out
	}
	return r
}

// Choose returns the spec of a job that got the hardware with a number, as if the file had listed
// nothing else. The container has the variable EnvAlternative if the job has alternatives.
func Choose(s Job, number int) Job {
	if len(s.Alternatives) == 0 {
		return s
	}
	env := make(map[string]string, len(s.Env)+1)
	for k, v := range s.Env {
		env[k] = v
	}
	env[EnvAlternative] = fmt.Sprint(number)
	s.Resources, s.Env, s.Alternatives = s.ResourcesOf(number), env, nil
	return s
}

// RequestsOf returns the placement requests of the resources and of each alternative, in this order. The
// spec must have its defaults filled in.
func RequestsOf(s Job) []Request {
	list := make([]Request, 1+len(s.Alternatives))
	for i := range list {
		one := s
		one.Resources = s.ResourcesOf(i)
		list[i] = one.Request()
	}
	return list
}

// validateAlternatives checks the waits of the alternatives and their resources.
func validateAlternatives(v *validation, s Job) {
	v.require(len(s.Alternatives) <= MaxAlternatives, "alternatives", "too many entries",
		fmt.Sprintf("at most %d", MaxAlternatives))
	const year = 8760 * time.Hour
	least, since := Duration(0), ""
	for i, a := range s.Alternatives {
		at := fmt.Sprintf("alternatives[%d]", i)
		v.require(a.After >= 0 && a.After.Std() <= year, at+".after", fmt.Sprintf("%s is out of range", a.After),
			fmt.Sprintf("0s to %s", Duration(year)))
		v.require(a.After >= least, at+".after",
			fmt.Sprintf("%s is before the %s of %s; each counts from the start of the wait", a.After, least, since),
			fmt.Sprintf("%s or more", least))
		v.require(s.QueueTimeout == 0 || a.After < s.QueueTimeout, at+".after",
			fmt.Sprintf("%s is not before the queue_timeout of %s, when the job fails", a.After, s.QueueTimeout),
			"less than queue_timeout")
		least, since = max(least, a.After), at
		r := s.ResourcesOf(i + 1)
		r.validate(v, at)
		for n := range i + 1 {
			if reflect.DeepEqual(r, s.ResourcesOf(n)) {
				v.require(false, at, "has the same resources as "+alternativeName(n),
					"other resources, such as another gpu_type")
				break
			}
		}
	}
}

// alternativeName returns the field of the file with the hardware of a number.
func alternativeName(number int) string {
	if number == 0 {
		return "resources"
	}
	return fmt.Sprintf("alternatives[%d]", number-1)
}
