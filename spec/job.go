package spec

import (
	"encoding/json"
	"fmt"

	"berth"
)

// Job is the content of a job file, field by field; see docs/guide/job-file.md. The zero
// value of a field stands for the field's default; WithDefaults fills in the defaults.
type Job struct {
	Name       string            `json:"name" doc:"name for people; need not be unique, unlike the id"`
	Image      string            `json:"image" doc:"container image; the first pull resolves it to a digest"`
	Entrypoint []string          `json:"entrypoint,omitempty" doc:"overrides the image's entrypoint"`
	Command    []string          `json:"command,omitempty" doc:"command, passed without a shell"`
	Env        map[string]string `json:"env,omitempty" doc:"variables of the container"`
	Workdir    string            `json:"workdir,omitempty" doc:"local folder, copied to /workspace"`
	User       string            `json:"user,omitempty" doc:"tenant, image, or UID[:GID]; default: set by the cluster"`
	Resources  Resources         `json:"resources,omitzero" doc:"resources of each member"`

	ReadOnlyRoot bool `json:"read_only_root,omitempty" doc:"whether the container may write to mounts and /tmp alone"`
	TmpSize      MiB  `json:"tmp_size,omitempty" zero:"default 64MiB" doc:"read_only_root: size of /tmp, in memory"`

	Alternatives []Alternative `json:"alternatives,omitempty" doc:"other hardware, in order, if resources have no room"`

	Members   int       `json:"members,omitempty" zero:"1 to 512; default 1" doc:"members of the gang"`
	Groups    []Group   `json:"groups,omitempty" doc:"groups of unlike members of a gang, instead of members"`
	Placement Placement `json:"placement,omitzero" doc:"conditions on the machines"`
	Network   Network   `json:"network,omitzero" doc:"egress policy of the containers"`
	Priority  *Priority `json:"priority,omitempty" doc:"low, normal, high, or 0 to 1000"`

	Preemptible  *bool     `json:"preemptible,omitempty" doc:"whether a job of higher priority may preempt this one"`
	Execution    Execution `json:"execution,omitempty" doc:"at_least_once or at_most_one"`
	QueueTimeout Duration  `json:"queue_timeout,omitempty" doc:"longest wait for a start; then the job fails"`
	TimeLimit    Duration  `json:"time_limit,omitempty" doc:"longest run of each attempt; then the job fails"`
	StallTimeout Duration  `json:"stall_timeout,omitempty" doc:"longest time without activity; then the job fails"`
	StopGrace    *Duration `json:"stop_grace,omitempty" doc:"time from SIGTERM to SIGKILL"`
	LostAfter    Duration  `json:"lost_after,omitempty" zero:"2s to 24h; default 90s" doc:"lost after this silence"`

	HoldOnFailure Duration `json:"hold_on_failure,omitempty" doc:"keep a failed attempt's files and a shell so long"`

	Stall      *StallPolicy      `json:"stall,omitempty" doc:"when the job counts as hung; instead of stall_timeout"`
	Retry      RetryPolicy       `json:"retry,omitzero" doc:"further runs after failures"`
	Checkpoint *CheckpointPolicy `json:"checkpoint,omitempty" doc:"saved state from which the next attempt continues"`
	ImageAuth  string            `json:"image_auth,omitempty" doc:"secret with USER:PASSWORD for the image pull"`
	Inputs     []Input           `json:"inputs,omitempty" doc:"data that the container reads"`
	Outputs    []Output          `json:"outputs,omitempty" doc:"results that are stored after success"`
	Secrets    []string          `json:"secrets,omitempty" doc:"names of secrets that the container receives"`
	SecretsAs  string            `json:"secrets_as,omitempty" doc:"file, env or both; default: set by the cluster"`
	Array      *Array            `json:"array,omitempty" doc:"creates many jobs from this file"`
	Needs      []string          `json:"needs,omitempty" doc:"jobs (job:ID) or steps that must end first"`
	When       string            `json:"when,omitempty" doc:"condition on needs: success (default), failure or always"`
	Final      bool              `json:"final,omitempty" doc:"pipelines: start after all other steps have ended"`
	Cache      bool              `json:"cache,omitempty" doc:"pipelines: skip a step that ran unchanged before"`
	Labels     map[string]string `json:"labels,omitempty" doc:"labels for searches"`
	Notify     []Notify          `json:"notify,omitempty" doc:"calls to your servers about the job's status"`

	// Fields of a step that is a nested pipeline. Such a step has no other fields
	// except name, needs, when, final and labels.
	OnFailure string         `json:"on_failure,omitempty" doc:"nested pipelines: fail_fast (default) or continue"`
	Jobs      map[string]Job `json:"jobs,omitempty" doc:"pipelines: steps of a nested pipeline"`
}

// Resources is the request of one member to its machine.
type Resources struct {
	CPUs      *MilliCPU  `json:"cpus,omitempty" doc:"cores, such as 0.5"`
	Memory    *MiB       `json:"memory,omitempty" doc:"memory limit: 4GiB, 512MiB or bytes"`
	Disk      MiB        `json:"disk,omitempty" doc:"disk space, reserved and enforced; 0: no limit"`
	ShmSize   MiB        `json:"shm_size,omitempty" doc:"size of /dev/shm; default: the engine's"`
	GPUs      MilliGPU   `json:"gpus,omitempty" doc:"a whole number, or a share of one GPU such as 0.25"`
	GPUType   StringList `json:"gpu_type,omitempty" doc:"any of these models"`
	GPUMemory MiB        `json:"gpu_memory,omitempty" doc:"minimum memory of each GPU"`
}

// Placement restricts the machines of a job. All conditions must hold.
type Placement struct {
	Regions       []string          `json:"regions,omitempty" doc:"any of these regions"`
	Site          string            `json:"site,omitempty" doc:"any, prefer_on_prem, on_prem or cloud"`
	Labels        map[string]string `json:"labels,omitempty" doc:"labels that the machine must have"`
	Constraint    string            `json:"constraint,omitempty" doc:"CEL condition over machine and gpu"`
	Strategy      string            `json:"strategy,omitempty" doc:"pack fills machines, spread takes the emptiest"`
	SameLabel     string            `json:"same_label,omitempty" doc:"label with one value for all members"`
	AvoidMachines []berth.MachineID `json:"avoid_machines,omitempty" doc:"excluded machines"`
	Tolerations   []string          `json:"tolerations,omitempty" doc:"taints of machines that the job accepts"`
	Spot          SpotRule          `json:"spot,omitempty" doc:"spot machines of clouds: never, prefer or only"`

	// MaxPricePerHour bounds the price of one machine, in US dollars. It concerns machines of clouds alone.
	MaxPricePerHour float64 `json:"max_price_per_hour,omitempty" zero:"above 0" doc:"USD of one machine of a cloud"`
}

// CheckpointPolicy names the folder of a job's checkpoints, the number to keep, and the
// checkpoint of another job to start from.
type CheckpointPolicy struct {
	Path     string    `json:"path" doc:"absolute folder in the container"`
	Interval Duration  `json:"interval,omitempty" doc:"interval of the signal; without it the job decides"`
	Keep     int       `json:"keep,omitempty" zero:"1 to 100; default 2" doc:"number of stored checkpoints"`
	Best     *KeepBest `json:"keep_best,omitempty" doc:"checkpoints to keep in addition, by a metric of the job"`
	Signal   string    `json:"signal,omitempty" doc:"signal that requests a checkpoint, such as SIGUSR1"`
	From     string    `json:"from,omitempty" doc:"checkpoint of another job to start from: JOB or JOB@STEP"`
	Reshard  string    `json:"reshard,omitempty" doc:"all: each member gets the checkpoint parts of all members"`
}

// ReshardAll is the value of CheckpointPolicy.Reshard of a job that may start from a checkpoint of another number of
// members, or of other groups: each member then gets the parts of all members.
const ReshardAll = "all"

// KeepBest names the metric of a job by which Berth keeps the best checkpoints, in addition to
// the newest ones. The metric is a value of the progress file.
type KeepBest struct {
	Metric string `json:"metric" doc:"name of a value in the progress file, such as accuracy"`
	Mode   string `json:"mode" doc:"max if greater values are better, min if smaller ones are"`
	Count  int    `json:"count,omitempty" zero:"1 to 20; default 1" doc:"number of best checkpoints"`
}

// Modes of KeepBest.
const (
	BestIsMax = "max"
	BestIsMin = "min"
)

// Input is data that a machine puts into the container before the start.
type Input struct {
	From     string `json:"from" doc:"folder, job output or URL; docs/guide/job-file.md lists the forms"`
	To       string `json:"to" doc:"path in the container"`
	Secret   string `json:"secret,omitempty" doc:"secret with the login; docs/guide/job-file.md shows its forms"`
	Endpoint string `json:"endpoint,omitempty" doc:"server of the bucket; default: Amazon's, Google's or Azure's"`
	Region   string `json:"region,omitempty" doc:"region of the S3 bucket; default us-east-1"`
	SHA256   string `json:"sha256,omitempty" doc:"expected SHA-256 of an https input"`
	Mode     string `json:"mode,omitempty" doc:"shared folders: copy (default), or mount: read-only and in place"`

	// Residency limits the machines of the job, see ResidencyOf.
	Residency []string `json:"residency,omitempty" doc:"the machine's region begins with one of these, such as eu"`
}

// Output is a file or folder that a machine stores after the container has ended.
type Output struct {
	Name string `json:"name" doc:"name of the output"`
	Path string `json:"path" doc:"path in the container, a file or a folder"`
	When string `json:"when,omitempty" doc:"success (default), or always: also after a failure or a stop"`
}

// OutputAlways is the value of When of an output that is stored after each end of the container.
const OutputAlways = "always"

// Always reports whether the output is stored also after an end that is no success.
func (o Output) Always() bool { return o.When == OutputAlways }

// Array creates many jobs from one file.
type Array struct {
	Size        int                 `json:"size,omitempty" zero:"1 to 100000, or array.each" doc:"number of elements"`
	Parallel    int                 `json:"parallel,omitempty" zero:"1 to 100000" doc:"elements at once; default all"`
	MaxFailures *int                `json:"max_failures,omitempty" doc:"failures allowed; one more cancels the rest"`
	Each        []map[string]string `json:"each,omitempty" doc:"variables of each element, instead of size"`
	Grid        map[string][]string `json:"grid,omitempty" doc:"lists of values: an element for each combination"`
	From        string              `json:"from,omitempty" doc:"steps: output with a JSON list, as job:STEP/OUTPUT"`
}

// Execution is the guarantee about containers of a job that run at the same time.
type Execution string

// The guarantees: with AtLeastOnce, a container on an unreachable machine may overlap its
// replacement on another machine. With AtMostOne, two containers never overlap.
const (
	AtLeastOnce Execution = "at_least_once"
	AtMostOne   Execution = "at_most_one"
)

// StringList is a list that may be written as a single string.
type StringList []string

// UnmarshalJSON implements json.Unmarshaler for a string or a list of strings.
func (l *StringList) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		*l = StringList{unquote(b)}
		return nil
	}
	var list []string
	if err := json.Unmarshal(b, &list); err != nil {
		return fmt.Errorf("want a string or a list of strings")
	}
	*l = list
	return nil
}
