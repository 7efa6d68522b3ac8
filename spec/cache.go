package spec

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"berth"
)

// Standing resolves the names in the spec of a cached step, as of the time at which the
// step was unblocked.
type Standing struct {
	Inputs  map[int]berth.Address // content of inputs that are outputs of jobs, by index in Job.Inputs
	Secrets map[string]string     // version of each secret that the container gets; never the value
}

// cacheKey contains every part of a spec that a container can notice. It leaves out the
// step's name and the fields for time, place, urgency and repetition of the run: two steps
// with equal keys compute the same result. A new field, or another encoding, changes
// every key.
type cacheKey struct {
	Form       int               `json:"form"`
	Image      string            `json:"image"` // as written; the digest is not part of the key
	Entrypoint []string          `json:"entrypoint"`
	Command    []string          `json:"command"`
	Env        map[string]string `json:"env"`
	Workdir    string            `json:"workdir"`
	Resources  Resources         `json:"resources"`
	Members    int               `json:"members"`
	Checkpoint *CheckpointPolicy `json:"checkpoint"`
	Inputs     []cachedInput     `json:"inputs"`  // by place in the container
	Outputs    []Output          `json:"outputs"` // by name
	Secrets    []cachedSecret    `json:"secrets"` // by name
	SecretsAs  string            `json:"secrets_as"`
	Network    Network           `json:"network,omitzero"` // zero for the default policy, however written

	User         string `json:"user,omitempty"` // as written, also if it is the default
	ReadOnlyRoot bool   `json:"read_only_root,omitempty"`
	Tmp          MiB    `json:"tmp,omitempty"`

	// Alternatives lists the other hardware that the file allows. The key thus depends on the file alone, and
	// not on the hardware that the step has got.
	Alternatives []Resources `json:"alternatives,omitempty"`

	Groups []Group `json:"groups,omitempty"`
}

// cachedInput is an input as the container notices it: its path and content.
type cachedInput struct {
	To      string `json:"to"`
	Content string `json:"content"`
}

// cachedSecret is a secret by name and version, see Standing.
type cachedSecret struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// CacheKey returns a SHA-256 hash that is equal for two specs of steps with
// indistinguishable containers. ok is false if the content of an input or the version of
// a secret is unknown, and for a gang with members that may run different images.
func (s Job) CacheKey(at Standing) (key []byte, ok bool) {
	s = s.WithDefaults()
	if !s.oneImage() {
		return nil, false
	}
	k := cacheKey{
		Form: 1, Image: s.Image, Entrypoint: s.Entrypoint, Command: s.Command, Env: s.Env, Workdir: s.Workdir,
		Resources: s.Resources, Members: s.Members, Checkpoint: s.Checkpoint, Outputs: slices.Clone(s.Outputs),
		User: s.User, ReadOnlyRoot: s.ReadOnlyRoot, Tmp: TmpOf(s), Groups: s.Groups,
	}
	for i, in := range s.Inputs {
		content := in.fixedContent()
		if in.Kind() == InputOutput && at.Inputs[i] != "" {
			content = "archive " + string(at.Inputs[i])
		}
		if content == "" {
			return nil, false
		}
		k.Inputs = append(k.Inputs, cachedInput{in.To, content})
	}
	for _, name := range s.Secrets {
		if at.Secrets[name] == "" {
			return nil, false
		}
		k.Secrets = append(k.Secrets, cachedSecret{name, at.Secrets[name]})
	}
	if len(s.Secrets) > 0 {
		k.SecretsAs = s.SecretsAs
	}
	if s.Network.Strict() {
		k.Network = s.Network
	}
	for i := range s.Alternatives {
		k.Alternatives = append(k.Alternatives, s.ResourcesOf(i+1))
	}
	slices.SortFunc(k.Inputs, func(a, b cachedInput) int { return strings.Compare(a.To, b.To) })
	for i := range k.Outputs {
		k.Outputs[i].When = "" // the container does not notice it
	}
	slices.SortFunc(k.Outputs, func(a, b Output) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(k.Secrets, func(a, b cachedSecret) int { return cmp.Compare(a.Name, b.Name) })
	raw, err := json.Marshal(k)
	if err != nil {
		panic(fmt.Sprintf("a spec that was stored cannot be written: %v", err))
	}
	sum := sha256.Sum256(raw)
	return sum[:], true
}

// fixedContent identifies the content of an input by the spec alone. It returns "" if the
// content depends on a fetch or on another job's row. A folder and an output with equal
// content differ, since the container may write to its copy of a folder only.
func (i Input) fixedContent() string {
	switch i.Kind() {
	case InputFolder:
		if a, err := berth.ParseAddress(i.From); err == nil {
			return "folder " + string(a)
		}
	case InputHTTPS:
		if i.SHA256 != "" {
			return "file " + i.SHA256
		}
	case InputOutput, InputS3, InputGS, InputAzure, InputFile, InputUnknown:
	default:
		panic(fmt.Sprintf("unknown kind of input %d", i.Kind()))
	}
	return ""
}

// PinnedImage reports whether an image is named by its digest, so that every machine
// resolves it to the same content at any time.
func PinnedImage(ref string) bool {
	_, digest, found := strings.Cut(ref, "@")
	_, err := berth.ParseAddress(digest)
	return found && err == nil
}

// oneImage reports whether all members are certain to run the same image. Agents older than ADR 61
// resolve a name on each machine separately, but a job records only one digest.
func (s Job) oneImage() bool { return s.Members <= 1 || PinnedImage(s.Image) }

// validateCache checks a step with cache: true. It rejects inputs that may change without
// a change of the spec, since a cached result of such a step could be outdated.
func (s Job) validateCache(v *validation, at string) {
	if !s.Cache {
		return
	}
	v.require(s.Array == nil, at+".cache", "is not available for arrays, since each element has its own result",
		"steps that are not arrays")
	v.require(s.Image == "" || s.oneImage(), at+".image",
		fmt.Sprintf("%.200q may resolve to different images on the machines of the gang, but the step has cache: true",
			s.Image), "an image with its digest: NAME@sha256:…")
	if s.Checkpoint != nil && s.Checkpoint.From != "" {
		job, step, _ := CutStep(s.Checkpoint.From)
		v.require(step != nil, at+".checkpoint.from",
			fmt.Sprintf("job %.200s may write newer checkpoints, but the step has cache: true", job),
			"the checkpoint with its step: JOB@STEP")
	}
	for i, in := range s.Inputs {
		unknown := in.Kind().Listed() || in.Kind() == InputHTTPS && in.SHA256 == ""
		v.require(!unknown, fmt.Sprintf("%s.inputs[%d].from", at, i),
			fmt.Sprintf("%.200q may change unnoticed, but the step has cache: true", in.From),
			"a folder, job:STEP/OUTPUT, or https with a sha256; otherwise fetch it in a step without cache, and use "+
				"its output")
	}
}
