package berth

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// JobSpec is what a user asks for: the job file of docs/guide/job-file.md, field by field.
// The zero value of a field means its default; Defaults fills them in.
type JobSpec struct {
	Name       string            `json:"name" doc:"a DNS label; unique only by id"`
	Image      string            `json:"image" doc:"container image; resolved to a digest when it is first pulled"`
	Entrypoint []string          `json:"entrypoint,omitempty" doc:"overrides the image's entrypoint"`
	Command    []string          `json:"command,omitempty" doc:"exec form, no shell"`
	Env        map[string]string `json:"env,omitempty"`
	Workdir    string            `json:"workdir,omitempty"`
	Resources  Resources         `json:"resources,omitzero" doc:"per member"`
	Members    int               `json:"members,omitempty" zero:"1 to 512; leave it out for 1" doc:"containers placed together, all or nothing"`
	Placement  Placement         `json:"placement,omitzero"`
	Priority   *Priority         `json:"priority,omitempty" doc:"low, normal, high, or 0 to 1000"`

	Preemptible  *bool     `json:"preemptible,omitempty"`
	Execution    Execution `json:"execution,omitempty" doc:"at_least_once or at_most_one"`
	QueueTimeout Duration  `json:"queue_timeout,omitempty"`
	TimeLimit    Duration  `json:"time_limit,omitempty"`
	StallTimeout Duration  `json:"stall_timeout,omitempty"`
	StopGrace    *Duration `json:"stop_grace,omitempty" doc:"from SIGTERM to SIGKILL"`
	LostAfter    Duration  `json:"lost_after,omitempty" zero:"2s to 24h; leave it out for 90s" doc:"silence after which the machine counts as lost"`

	Retry      RetryPolicy       `json:"retry,omitzero"`
	Checkpoint *CheckpointPolicy `json:"checkpoint,omitempty"`
	ImageAuth  string            `json:"image_auth,omitempty" doc:"name of a secret, USER:PASSWORD, used only to pull"`
	Inputs     []Input           `json:"inputs,omitempty"`
	Outputs    []Output          `json:"outputs,omitempty"`
	Secrets    []string          `json:"secrets,omitempty" doc:"names of secrets that the container gets"`
	SecretsAs  string            `json:"secrets_as,omitempty" doc:"file, env or both (default)"`
	Array      *Array            `json:"array,omitempty"`
	Needs      []string          `json:"needs,omitempty" doc:"of a step of a pipeline: steps that must have succeeded"`
	Cache      bool              `json:"cache,omitempty" doc:"of a step of a pipeline: skip it when it has succeeded before with the same spec, image, code and inputs"`
	Labels     map[string]string `json:"labels,omitempty"`
	Notify     []Notify          `json:"notify,omitempty"`

	// Of a step that is a pipeline itself, which has no other fields but name,
	// needs and labels.
	OnFailure string             `json:"on_failure,omitempty" doc:"of a step with jobs: fail_fast (default) or continue"`
	Jobs      map[string]JobSpec `json:"jobs,omitempty" doc:"of a step of a pipeline: it is a pipeline of these steps, in place of a job"`
}

// Resources is what one member needs of one machine.
type Resources struct {
	CPUs      *MilliCPU  `json:"cpus,omitempty" doc:"decimal cores"`
	Memory    *MiB       `json:"memory,omitempty" doc:"4GiB, 512MiB or bytes"`
	Disk      MiB        `json:"disk,omitempty"`
	ShmSize   MiB        `json:"shm_size,omitempty"`
	GPUs      MilliGPU   `json:"gpus,omitempty" doc:"a whole number, or a share of one GPU such as 0.25"`
	GPUType   StringList `json:"gpu_type,omitempty" doc:"any of these models"`
	GPUMemory MiB        `json:"gpu_memory,omitempty" doc:"per GPU, at least"`
}

// Placement narrows which machines may run the job.
type Placement struct {
	Regions         []string          `json:"regions,omitempty" doc:"any of"`
	Site            string            `json:"site,omitempty" doc:"any, on_prem or cloud"`
	Labels          map[string]string `json:"labels,omitempty" doc:"machine labels that must match"`
	Constraint      string            `json:"constraint,omitempty" doc:"CEL over machine and gpu"`
	Strategy        string            `json:"strategy,omitempty" doc:"pack or spread"`
	SameLabel       string            `json:"same_label,omitempty"`
	AvoidMachines   []MachineID       `json:"avoid_machines,omitempty"`
	MaxPricePerHour float64           `json:"max_price_per_hour,omitempty" doc:"USD"`
}

// RetryPolicy says what happens after a run that failed by the user's own fault.
type RetryPolicy struct {
	MaxAttempts int         `json:"max_attempts,omitempty" zero:"1 to 100; 1, or leaving it out, for no retry" doc:"runs that may end by user failure, the first included"`
	Backoff     Backoff     `json:"backoff,omitzero"`
	Rules       []RetryRule `json:"rules,omitempty" doc:"first match wins"`
	OnOOM       string      `json:"on_oom,omitempty" doc:"fail or grow (memory x1.5, once)"`
}

// RetryRule overrides the policy for some exit codes.
type RetryRule struct {
	ExitCodes ExitCodes `json:"exit_codes" doc:"such as 42,100-110"`
	Action    string    `json:"action" doc:"retry, retry_elsewhere or fail"`
}

// CheckpointPolicy tells where a job writes checkpoints and how they are kept.
type CheckpointPolicy struct {
	Path     string   `json:"path" doc:"absolute folder in the container"`
	Interval Duration `json:"interval,omitempty" doc:"how often signal is sent; unset, the job decides"`
	Keep     int      `json:"keep,omitempty" zero:"1 to 100; leave it out for 2"`
	Signal   string   `json:"signal,omitempty" doc:"such as SIGUSR1"`
}

// Input is data put into the container before it starts.
type Input struct {
	From     string `json:"from" doc:"a folder, job:ID/OUTPUT (in a pipeline job:STEP/OUTPUT), s3:// or gs:// with BUCKET/PREFIX/ or BUCKET/KEY, azblob:// with ACCOUNT/CONTAINER/PREFIX/ or ACCOUNT/CONTAINER/KEY, https://HOST/FILE, or where the operator allows it file:///FOLDER/PATH/ or file:///FOLDER/PATH"`
	To       string `json:"to" doc:"where it is in the container"`
	Secret   string `json:"secret,omitempty" doc:"name of a secret to fetch it with: of s3 KEY_ID:SECRET_KEY, of gs the JSON key of a service account, of azblob a SAS token or an account key, of https a token"`
	Endpoint string `json:"endpoint,omitempty" doc:"of a server other than Amazon's, Google's or Azure's; of azblob the account's own"`
	Region   string `json:"region,omitempty" doc:"of the S3 bucket; default us-east-1"`
	SHA256   string `json:"sha256,omitempty" doc:"that an https file must have"`
}

// Output is a file or folder collected after the container has ended.
type Output struct {
	Name string `json:"name"`
	Path string `json:"path"`
}

// Array makes many jobs of one file.
type Array struct {
	Size        int                 `json:"size,omitempty" zero:"1 to 100000, or each: with as many entries" doc:"how many elements; each has its index from 0 in BERTH_ARRAY_INDEX"`
	Parallel    int                 `json:"parallel,omitempty" zero:"1 to 100000; leave it out for no limit" doc:"how many may hold capacity at once; unset, as many as there is room for"`
	MaxFailures *int                `json:"max_failures,omitempty" doc:"how many may fail; one more, and the rest is canceled"`
	Each        []map[string]string `json:"each,omitempty" doc:"in place of size: variables of each element"`
}

// Execution is the promise about how often the work runs at once.
type Execution string

// The execution modes (docs: fenced and exclusive).
const (
	AtLeastOnce Execution = "at_least_once"
	AtMostOne   Execution = "at_most_one"
)

// Priority orders jobs, 0 to 1000; low, normal and high name 200, 500 and 800.
type Priority int

// The named priorities.
const (
	PriorityLow    Priority = 200
	PriorityNormal Priority = 500
	PriorityHigh   Priority = 800
)

func (p Priority) String() string {
	switch p {
	case PriorityLow:
		return "low"
	case PriorityNormal:
		return "normal"
	case PriorityHigh:
		return "high"
	}
	return strconv.Itoa(int(p))
}

// MarshalJSON writes a named priority by its name, any other as a number.
func (p Priority) MarshalJSON() ([]byte, error) {
	s := p.String()
	if s[0] >= '0' && s[0] <= '9' || s[0] == '-' {
		return []byte(s), nil
	}
	return json.Marshal(s)
}

func (p *Priority) UnmarshalJSON(b []byte) error {
	v, err := ParsePriority(unquote(b))
	if err != nil {
		return err
	}
	*p = v
	return nil
}

// ParsePriority reads low, normal, high or a number from 0 to 1000.
func ParsePriority(s string) (Priority, error) {
	switch s {
	case "low":
		return PriorityLow, nil
	case "normal":
		return PriorityNormal, nil
	case "high":
		return PriorityHigh, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n > 1000 {
		return 0, fmt.Errorf("priority %q: allowed are low, normal, high or 0 to 1000", s)
	}
	return Priority(n), nil
}

// StringList is a list that may be written as a single string.
type StringList []string

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

// ExitCodes is a set of exit codes written as 42,100-110.
type ExitCodes string

// ParseExitCodes checks the syntax and the range 1 to 255.
func ParseExitCodes(s string) (ExitCodes, error) {
	for part := range strings.SplitSeq(s, ",") {
		lo, hi, err := exitRange(part)
		if err != nil || lo < 1 || hi > 255 || lo > hi {
			return "", fmt.Errorf("exit codes %q: write numbers and ranges from 1 to 255, such as 42,100-110", s)
		}
	}
	return ExitCodes(s), nil
}

// Contains reports whether code is in the set.
func (e ExitCodes) Contains(code int) bool {
	for part := range strings.SplitSeq(string(e), ",") {
		if lo, hi, err := exitRange(part); err == nil && lo <= code && code <= hi {
			return true
		}
	}
	return false
}

func exitRange(part string) (lo, hi int, err error) {
	from, to, ranged := strings.Cut(strings.TrimSpace(part), "-")
	if lo, err = strconv.Atoi(from); err != nil || !ranged {
		return lo, lo, err
	}
	hi, err = strconv.Atoi(to)
	return lo, hi, err
}

// UnmarshalJSON accepts a bare number as well: exit_codes: 42.
func (e *ExitCodes) UnmarshalJSON(b []byte) error {
	v, err := ParseExitCodes(unquote(b))
	if err != nil {
		return err
	}
	*e = v
	return nil
}
