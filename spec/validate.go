package spec

import (
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode"

	"berth"
)

// Limits of a job file. They bound the size of one row, not the capacity of a
// cluster.
const (
	MaxSpecBytes   = 256 << 10 // length of the JSON form
	maxEnv         = 1024      // variables
	maxCommandArgs = 4096      // entrypoint and command together
	MaxLabels      = 64
	MaxGPUs        = 64 // GPUs of one member
	MaxMembers     = 512
)

// reservedEnv lists prefixes of variables that Berth or the container hooks set. A job that
// sets such a variable itself could reach devices that it was not granted.
var reservedEnv = []string{"NVIDIA_", "LD_PRELOAD", "LD_LIBRARY_PATH_NVIDIA", "BERTH_", "MASTER_ADDR", "MASTER_PORT",
	"NODE_RANK", "NNODES"}

// reservedPaths lists paths in the container that no mount may hide. Except for the root,
// no mount may lie below them either.
var reservedPaths = []string{"/", "/proc", "/sys", "/dev", "/etc", "/workspace"}

// Validate checks a spec after WithDefaults and returns all faults at once, or nil. It does
// not compile the CEL constraint; see placement.CompileConstraint. A spec without
// defaults filled in makes it panic.
func (s Job) Validate() []berth.FieldError {
	v := &validation{}
	v.name("name", s.Name)
	v.require(s.Image != "", "image", "required", "for example python:3.12-slim")
	v.require(len(s.Image) <= 512 && !strings.ContainsAny(s.Image, " \t\r\n\x00"),
		"image", fmt.Sprintf("%q is not an image reference", s.Image), "a reference such as python:3.12-slim")
	v.require(len(s.Command)+len(s.Entrypoint) <= maxCommandArgs, "command", "too many arguments",
		fmt.Sprintf("at most %d", maxCommandArgs))
	s.validateEnv(v)
	validateUser(v, s)
	s.Resources.validate(v, "resources")
	validateAlternatives(v, s)
	validateGroups(v, s)
	s.validatePlacement(v)
	s.Network.validate(v)
	s.validateTimes(v)
	s.Stall.validate(v, s)
	validateHold(v, s)
	s.validateRetry(v)
	s.validateCheckpoint(v)
	v.require(s.Members >= 1 && s.Members <= MaxMembers, "members", fmt.Sprintf("%d is out of range", s.Members),
		fmt.Sprintf("1 to %d", MaxMembers))
	s.validateArray(v)
	v.require(len(s.Labels) <= MaxLabels, "labels", "too many labels", fmt.Sprintf("at most %d", MaxLabels))
	for _, k := range sortedKeys(s.Labels) {
		v.label(k, s.Labels[k])
	}
	v.require(*s.Priority >= 0 && *s.Priority <= 1000, "priority", fmt.Sprintf("%d is out of range", *s.Priority),
		"low, normal, high or 0 to 1000")
	v.oneOf("execution", string(s.Execution), string(AtLeastOnce), string(AtMostOne))
	v.require(len(s.Workdir) <= 4096 && !strings.ContainsRune(s.Workdir, 0), "workdir",
		"is too long, or contains a NUL byte",
		"a folder, or the address of an upload")
	s.validateSecrets(v)
	s.validateInputs(v)
	s.validateOutputs(v)
	v.notify(s.Notify)
	s.validateUnbuilt(v)
	return v.faults
}

// validateUnbuilt refuses fields without effect: fields of pipelines on a job. To accept a field would
// promise its effect.
func (s Job) validateUnbuilt(v *validation) {
	validateNeeds(v, s)
	v.require(s.OnFailure == "", "on_failure", "is only for pipelines and nested pipelines", "leave it out")
	v.require(s.Jobs == nil, "jobs", "is only for pipelines and their steps",
		"leave it out, or submit a file with kind: pipeline")
	v.require(!s.Cache, "cache", "is only for steps of a pipeline",
		"leave it out, or submit a file with kind: pipeline")
	v.require(!s.Final, "final", "is only for steps of a pipeline",
		"leave it out, or submit a file with kind: pipeline")
}

// validateEnv checks the variables of the environment and the arguments of the command.
func (s Job) validateEnv(v *validation) {
	v.require(len(s.Env) <= maxEnv, "env", "too many variables", fmt.Sprintf("at most %d", maxEnv))
	for _, k := range sortedKeys(s.Env) {
		v.variable("env."+k, k, s.Env[k])
	}
	v.arguments("entrypoint", s.Entrypoint)
	v.arguments("command", s.Command)
}

// validate checks the range of each resource and that GPU fields come with GPUs. at is the path of the
// resources in the file.
func (r Resources) validate(v *validation, at string) {
	v.require(*r.CPUs >= 10 && *r.CPUs <= 4096_000, at+".cpus", fmt.Sprintf("%s is out of range", r.CPUs),
		"0.01 to 4096 cores")
	v.require(*r.Memory >= 4 && *r.Memory <= 1<<26, at+".memory", fmt.Sprintf("%s is out of range", r.Memory),
		"4MiB to 64TiB")
	v.require(r.Disk >= 0 && r.Disk <= 1<<30, at+".disk", fmt.Sprintf("%s is out of range", r.Disk), "0 to 1PiB")
	v.require(r.ShmSize >= 0 && r.ShmSize <= *r.Memory,
		at+".shm_size", fmt.Sprintf("%s is more than %s.memory", r.ShmSize, at), "at most "+at+".memory")
	v.require(r.GPUs >= 0 && r.GPUs <= MaxGPUs*1000, at+".gpus", fmt.Sprintf("%s is out of range", r.GPUs),
		fmt.Sprintf("0 to %d", MaxGPUs))
	v.require(r.GPUs < 1000 || r.GPUs%1000 == 0,
		at+".gpus", fmt.Sprintf("%s is neither a whole number nor a share of one GPU", r.GPUs),
		"a whole number, or a share below 1")
	v.require(r.GPUs > 0 || len(r.GPUType) == 0, at+".gpu_type", "is set, but "+at+".gpus is not",
		"set "+at+".gpus, or leave it out")
	v.require(r.GPUs > 0 || r.GPUMemory == 0, at+".gpu_memory", "is set, but "+at+".gpus is not",
		"set "+at+".gpus, or leave it out")
	v.require(r.GPUMemory >= 0 && r.GPUMemory <= 1<<22,
		at+".gpu_memory", fmt.Sprintf("%s is out of range", r.GPUMemory), "0 to 4TiB")
	for i, t := range r.GPUType {
		v.require(t != "" && len(t) <= 63, fmt.Sprintf("%s.gpu_type[%d]", at, i),
			fmt.Sprintf("%q is not a GPU model", t), "a model such as H100")
	}
}

// validatePlacement checks the conditions on machines. It does not check that any machine
// meets them.
func (s Job) validatePlacement(v *validation) {
	p := s.Placement
	v.oneOf("placement.site", p.Site, SiteAny, SitePreferOnPrem, SiteOnPrem, SiteCloud)
	validateCloud(v, p, s.Inputs)
	v.oneOf("placement.strategy", p.Strategy, "pack", "spread")
	v.require(len(p.Constraint) <= 4096, "placement.constraint", "too long", "at most 4096 bytes")
	v.require(len(p.Regions) <= 64 && len(p.Labels) <= MaxLabels && len(p.AvoidMachines) <= 256,
		"placement", "too many entries", "at most 64 regions, 64 labels and 256 avoided machines")
	for _, k := range sortedKeys(p.Labels) {
		v.machineLabel("placement.labels", k)
	}
	v.tolerations("placement.tolerations", p.Tolerations)
	v.require(len(p.SameLabel) <= 63, "placement.same_label", "too long", "at most 63 bytes")
	for i, r := range p.Regions {
		v.require(r != "" && len(r) <= 63, fmt.Sprintf("placement.regions[%d]", i),
			fmt.Sprintf("%q is not a region", r), "1 to 63 bytes")
	}
	for i, m := range p.AvoidMachines {
		v.require(isName(string(m)), fmt.Sprintf("placement.avoid_machines[%d]", i),
			fmt.Sprintf("%q is not a valid machine name", m), "1 to 63 of a-z, 0-9 and '-'")
	}
}

// validateTimes checks the timeouts. An unset timeout is 0 and always allowed.
func (s Job) validateTimes(v *validation) {
	within := func(field string, d Duration, lo, hi time.Duration) {
		ok := d == 0 || time.Duration(d) >= lo && time.Duration(d) <= hi
		v.require(ok, field, fmt.Sprintf("%s is out of range", d), fmt.Sprintf("%s to %s", Duration(lo), Duration(hi)))
	}
	const year = 8760 * time.Hour
	within("queue_timeout", s.QueueTimeout, time.Second, year)
	within("time_limit", s.TimeLimit, time.Second, year)
	within("stall_timeout", s.StallTimeout, 10*time.Second, year)
	within("lost_after", s.LostAfter, 2*time.Second, 24*time.Hour)
	v.require(*s.StopGrace >= 0 && s.StopGrace.Std() <= time.Hour,
		"stop_grace", fmt.Sprintf("%s is out of range", s.StopGrace), "0s to 1h")
}

func (s Job) validateRetry(v *validation) {
	r := s.Retry
	v.require(r.MaxAttempts >= 1 && r.MaxAttempts <= 100,
		"retry.max_attempts", fmt.Sprintf("%d is out of range", r.MaxAttempts), "1 to 100")
	v.oneOf("retry.on_oom", r.OnOOM, "fail", "grow")
	if r.OnTimeLimit != "" {
		v.oneOf("retry.on_time_limit", r.OnTimeLimit, "fail", OnTimeLimitRequeue)
	}
	if r.OnTimeLimit == OnTimeLimitRequeue {
		v.require(s.TimeLimit > 0 && s.Checkpoint != nil, "retry.on_time_limit",
			"requeue needs time_limit and checkpoint", "set both, or leave it out")
	}
	v.require(r.MaxRequeues >= 0 && r.MaxRequeues <= 1000,
		"retry.max_requeues", fmt.Sprintf("%d is out of range", r.MaxRequeues), "1 to 1000")
	v.require(r.MaxRequeues == 0 || r.OnTimeLimit == OnTimeLimitRequeue, "retry.max_requeues",
		"has no effect without retry.on_time_limit: requeue", "set retry.on_time_limit, or leave it out")
	v.require(r.Backoff.Factor >= 1 && r.Backoff.Factor <= 10,
		"retry.backoff.factor", fmt.Sprintf("%g is out of range", r.Backoff.Factor), "1 to 10")
	v.require(r.Backoff.Initial >= 0 && r.Backoff.Max.Std() <= 24*time.Hour && r.Backoff.Initial <= r.Backoff.Max,
		"retry.backoff", "initial is above max, or max above 24h", "0s <= initial <= max <= 24h")
	v.require(len(r.Rules) <= 64, "retry.rules", "too many rules", "at most 64")
	for i, rule := range r.Rules {
		_, err := ParseExitCodes(string(rule.ExitCodes))
		v.require(err == nil, fmt.Sprintf("retry.rules[%d].exit_codes", i),
			fmt.Sprintf("%q is not a set of exit codes", rule.ExitCodes),
			"numbers and ranges from 1 to 255, such as 42,100-110")
		v.oneOf(fmt.Sprintf("retry.rules[%d].action", i), rule.Action, ActionRetry, ActionRetryElsewhere, ActionFail)
	}
}

// validateCheckpoint checks the checkpoint policy. An interval needs a signal, by which Berth
// requests each checkpoint from the job.
func (s Job) validateCheckpoint(v *validation) {
	c := s.Checkpoint
	if c == nil {
		return
	}
	ok := path.IsAbs(c.Path) && path.Clean(c.Path) == c.Path && !slices.Contains(reservedPaths, c.Path)
	for _, r := range reservedPaths[1:] {
		ok = ok && !strings.HasPrefix(c.Path, r+"/")
	}
	v.require(ok, "checkpoint.path", fmt.Sprintf("%q cannot be a checkpoint folder", c.Path),
		"a clean absolute path such as /checkpoint, not under "+strings.Join(reservedPaths[1:], ", "))
	v.require(c.Keep >= 1 && c.Keep <= 100, "checkpoint.keep", fmt.Sprintf("%d is out of range", c.Keep), "1 to 100")
	if b := c.Best; b != nil {
		v.require(ValidMetricName(b.Metric), "checkpoint.keep_best.metric",
			fmt.Sprintf("%.100q cannot be the name of a value in the progress file", b.Metric),
			fmt.Sprintf("1 to %d letters, digits, and _ - . /", MaxMetricName))
		v.oneOf("checkpoint.keep_best.mode", b.Mode, BestIsMax, BestIsMin)
		v.require(b.Count >= 1 && b.Count <= 20, "checkpoint.keep_best.count",
			fmt.Sprintf("%d is out of range", b.Count), "1 to 20")
	}
	v.require(c.Interval == 0 || c.Interval.Std() >= time.Second,
		"checkpoint.interval", fmt.Sprintf("%s is out of range", c.Interval), "at least 1s")
	if c.Signal != "" {
		v.oneOf("checkpoint.signal", c.Signal, "SIGUSR1", "SIGUSR2", "SIGHUP", "SIGINT", "SIGTERM")
	}
	v.require(c.Interval == 0 || c.Signal != "", "checkpoint.interval", "has no effect without checkpoint.signal",
		"set checkpoint.signal, or leave it out")
	_, _, ok = CutStep(c.From)
	v.require(c.From == "" || ok, "checkpoint.from", fmt.Sprintf("%.200q is not a checkpoint of a job", c.From),
		"a job, or a job and a step: JOB@STEP")
	if c.Reshard != "" {
		v.oneOf("checkpoint.reshard", c.Reshard, ReshardAll)
	}
}

// UnsourcedReshard returns the fault of a file with checkpoint.reshard that names no checkpoint to start from. The file
// of a retry needs none: the retry names the checkpoint.
func UnsourcedReshard(s Job) []berth.FieldError {
	if s.Checkpoint == nil || s.Checkpoint.Reshard == "" || s.Checkpoint.From != "" {
		return nil
	}
	return []berth.FieldError{{Field: "checkpoint.reshard",
		Detail:  "has no effect: the job starts from no checkpoint of another job",
		Allowed: "with checkpoint.from, or in the file of a retry; otherwise leave it out"}}
}

// ExplicitZero returns the fault of a zero in a user's file, for a field with a default
// other than zero. Berth would apply the default instead of the zero that the user wrote.
// The tag `zero` of such a field lists the allowed values. The caller fills in the fault's
// Field. ok is false for other fields and values.
func ExplicitZero(field reflect.StructField, value reflect.Value) (fault berth.FieldError, ok bool) {
	allowed := field.Tag.Get("zero")
	if allowed == "" || !value.IsZero() {
		return berth.FieldError{}, false
	}
	return berth.FieldError{Detail: fmt.Sprintf("%v is out of range", value), Allowed: allowed}, true
}

// validation collects the faults of a value.
type validation struct{ faults []berth.FieldError }

// require adds a fault unless ok.
func (v *validation) require(ok bool, field, detail, allowed string) {
	if !ok {
		v.faults = append(v.faults, berth.FieldError{Field: field, Detail: detail, Allowed: allowed})
	}
}

// arguments checks the arguments of a command.
func (v *validation) arguments(field string, list []string) {
	for i, a := range list {
		v.require(len(a) <= 128<<10 && !strings.Contains(a, "\x00"), fmt.Sprintf("%s[%d]", field, i),
			"too long, or contains a NUL byte", "at most 128KiB each")
	}
}

// variable checks one variable of the environment.
func (v *validation) variable(field, name, value string) {
	ok := name != "" && len(name) <= 256 && !strings.ContainsAny(name, "=\x00 \t\r\n") && len(value) <= 32<<10 &&
		!strings.Contains(value, "\x00")
	v.require(ok, field, "is not a valid variable", "a name without '=' or blanks, and a value of at most 32KiB")
	reserved := slices.ContainsFunc(reservedEnv, func(p string) bool { return strings.HasPrefix(name, p) })
	v.require(!reserved, field, "is set by Berth or the GPU runtime", "another name")
}

// label checks one label. A key with = would be unusable in filters, which have the form
// key=value.
func (v *validation) label(key, value string) {
	v.require(key != "" && len(key) <= 63 && len(value) <= 256, "labels."+key, "key or value has a wrong length",
		"keys of 1 to 63 and values of at most 256 bytes")
	odd := func(r rune) bool { return r == '=' || unicode.IsSpace(r) || unicode.IsControl(r) }
	v.require(!strings.ContainsFunc(key, odd), "labels."+key, "has a key with invalid characters",
		"keys without =, blanks and control characters")
}

// oneOf adds a fault unless got is one of the allowed values.
func (v *validation) name(field, got string) {
	detail := fmt.Sprintf("%q is not a valid name", got)
	if got == "" {
		detail = "required"
	}
	v.require(isName(got), field, detail, nameForm)
}
func (v *validation) oneOf(field, got string, allowed ...string) {
	v.require(slices.Contains(allowed, got), field, fmt.Sprintf("%q is not known", got), strings.Join(allowed, ", "))
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
