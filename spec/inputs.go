package spec

import (
	"encoding/hex"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"berth"
)

// maxInputs is the largest number of inputs of a job.
const maxInputs = 64

// Bounds of one fetched input.
const (
	MaxInputBytes = 128 << 30
	MaxInputFiles = 200_000 // number of files and folders
)

// InputKind is the kind of an input's source.
type InputKind int

// The kinds of inputs.
const (
	InputFolder  InputKind = iota // a local folder of the user, or the address of an uploaded folder
	InputOutput                   // an output of another job
	InputS3                       // an object, or all objects below a prefix, of an S3 server
	InputGS                       // an object or a prefix of Google Cloud Storage
	InputAzure                    // a blob or a prefix of Azure Blob Storage
	InputHTTPS                    // one file of a web server
	InputFile                     // a file, or a folder with all its content, of a volume of the machine
	InputUnknown                  // a scheme that this version does not support
)

// Modes of inputs. Only folders of volumes can be mounted.
const (
	InputCopy  = "copy"  // the default: the machine's cache has a version of the content
	InputMount = "mount" // the container reads the shared folder itself, in its present state
)

// Mounted reports whether the container reads the shared folder itself instead of a copy.
func (i Input) Mounted() bool { return i.Mode == InputMount }

// outputPrefix starts the From of an input that is an output of another job.
const (
	outputPrefix = "job:"
)

// Kind returns the kind of the input's source, from the form of From alone.
func (i Input) Kind() InputKind {
	scheme, _, found := strings.Cut(i.From, "://")
	switch {
	case strings.HasPrefix(i.From, outputPrefix):
		return InputOutput
	case !found:
		return InputFolder
	case scheme == "s3":
		return InputS3
	case scheme == "gs":
		return InputGS
	case scheme == "azblob":
		return InputAzure
	case scheme == "https":
		return InputHTTPS
	case scheme == "file":
		return InputFile
	default:
		return InputUnknown
	}
}

// Objects reports whether inputs of the kind are objects in a bucket or a container.
func (k InputKind) Objects() bool { return k == InputS3 || k == InputGS || k == InputAzure }

// Listed reports whether a source of the kind can be listed. Such an input may be a folder,
// and consists of versioned entries.
func (k InputKind) Listed() bool { return k.Objects() || k == InputFile }

// OneFile reports whether the input is a single file at To instead of a folder.
func (i Input) OneFile() bool {
	kind := i.Kind()
	return kind == InputHTTPS || kind.Listed() && !strings.HasSuffix(i.From, "/")
}

// OutputRef names an output of another job: by the job's id or, between steps of a
// pipeline, by the step's name: train, or train.fit for a step of a nested pipeline.
// Exactly one of Job and Step is set.
type OutputRef struct {
	Job  berth.JobID
	Step string
	Name string // of the output
}

// ParseOutputRef parses job:ID/NAME, job:STEP/NAME and job:STEP.STEP/NAME. A text in
// the form of an id is an id, even if a step has this name. The error has
// berth.CodeInvalid.
func ParseOutputRef(from string) (OutputRef, error) {
	of, name, ok := strings.Cut(strings.TrimPrefix(from, outputPrefix), "/")
	ref := OutputRef{Name: name}
	id, err := berth.ParseJobID(of)
	if err == nil {
		ref.Job = id
	} else {
		ref.Step = of
	}
	steps := !slices.ContainsFunc(strings.Split(ref.Step, "."), func(step string) bool { return !isName(step) })
	if !ok || !strings.HasPrefix(from, outputPrefix) || !isName(name) || ref.Step != "" && !steps ||
		ref.Job == "" && ref.Step == "" {
		return OutputRef{}, berth.Errorf(berth.CodeInvalid, "%.200q is not an output of a job", from)
	}
	return ref, nil
}

// String returns the reference in the form of ParseOutputRef.
func (o OutputRef) String() string { return outputPrefix + string(o.Job) + o.Step + "/" + o.Name }

// NamedOutput is an output of another job that an input names, or the list of an array.
type NamedOutput struct {
	Input int // index in Job.Inputs; -1: array.from
	OutputRef
}

// Field is the field of the job's file that names the output.
func (o NamedOutput) Field() string {
	if o.Input < 0 {
		return "array.from"
	}
	return fmt.Sprintf("inputs[%d].from", o.Input)
}

// OutputsNamed returns the outputs of other jobs that the inputs name, in the order of the
// inputs, and then the list of the array. Malformed references are skipped.
func (s Job) OutputsNamed() []NamedOutput {
	var all []NamedOutput
	for i, in := range s.Inputs {
		if in.Kind() != InputOutput {
			continue
		}
		if ref, err := ParseOutputRef(in.From); err == nil {
			all = append(all, NamedOutput{i, ref})
		}
	}
	if ref, ok := s.Array.ListOf(); ok {
		all = append(all, NamedOutput{-1, ref})
	}
	return all
}

// OfJobs returns the spec with the steps in its inputs and its array replaced by the ids of these steps'
// jobs. Steps that the map does not contain stay.
func (s Job) OfJobs(steps map[string]berth.JobID) Job {
	s.Inputs = slices.Clone(s.Inputs)
	for _, o := range s.OutputsNamed() {
		id, ok := steps[o.Step]
		switch from := (OutputRef{Job: id, Name: o.Name}).String(); {
		case !ok || o.Step == "":
		case o.Input < 0:
			a := *s.Array
			a.From = from
			s.Array = &a
		default:
			s.Inputs[o.Input].From = from
		}
	}
	return s
}

// validateInputs checks the inputs and their paths in the container. No input may lie in
// another one or in another mounted folder, since the order of mounts would decide which
// one the container sees.
func (s Job) validateInputs(v *validation) {
	v.require(len(s.Inputs) <= maxInputs, "inputs", "too many", fmt.Sprintf("at most %d", maxInputs))
	taken := []string{"/workspace", SecretsPath}
	if s.Checkpoint != nil {
		taken = append(taken, s.Checkpoint.Path)
	}
	for i, in := range s.Inputs {
		field := fmt.Sprintf("inputs[%d]", i)
		in.validate(v, field)
		// A container that waits for a dead file server cannot be killed, not even by the fence.
		v.require(!in.Mounted() || s.Execution != AtMostOne, field+".mode",
			"mount is not available for jobs with execution at_most_one", "copy, or execution at_least_once")
		ok := path.IsAbs(in.To) && path.Clean(in.To) == in.To && in.To != "/" && len(in.To) <= 1024 &&
			!strings.ContainsRune(in.To, 0)
		for _, r := range reservedPaths[1:] {
			ok = ok && !inside(in.To, r)
		}
		v.require(ok, field+".to", fmt.Sprintf("%.200q cannot be the path of an input", in.To),
			"a clean absolute path such as /data, not under "+strings.Join(reservedPaths[1:], ", "))
		clash := slices.ContainsFunc(taken, func(t string) bool { return inside(in.To, t) || inside(t, in.To) })
		v.require(!ok || !clash, field+".to",
			fmt.Sprintf("%.200q overlaps another mounted folder", in.To),
			"paths outside each other, the checkpoint path and "+SecretsPath)
		taken = append(taken, in.To)
	}
}

// knownInputs lists the supported forms of From, for faults.
const knownInputs = "a local folder, job:ID/OUTPUT, s3://BUCKET/PREFIX/, gs://BUCKET/PREFIX/, " +
	"azblob://ACCOUNT/CONTAINER/PREFIX/, https://HOST/FILE or, where the operator allows it, file:///FOLDER/PATH/"

// validate checks the source of an input, by its kind.
func (i Input) validate(v *validation, field string) {
	ok := i.From != "" && len(i.From) <= 4096 && utf8.ValidString(i.From) &&
		!strings.ContainsFunc(i.From, func(r rune) bool { return r < ' ' || r == 0x7f })
	v.require(ok, field+".from", "is empty, too long, or has control characters", knownInputs)
	if !ok {
		return
	}
	kind := i.Kind()
	switch kind {
	case InputFolder:
	case InputOutput:
		ref, err := ParseOutputRef(i.From)
		v.require(err == nil, field+".from", fmt.Sprintf("%.200q is not an output of a job", i.From),
			"job:ID/OUTPUT, or job:STEP/OUTPUT in a pipeline")
		v.require(err != nil || ref.Step == "", field+".from",
			fmt.Sprintf("%.200q is a step, but this job is not part of a pipeline", ref.Step),
			"job:ID/OUTPUT with the full id of a job")
	case InputS3:
		_, _, err := ParseS3(i.From)
		v.require(err == nil, field+".from", fmt.Sprintf("%.200q: %v", i.From, err),
			"s3://BUCKET/KEY for one object, or s3://BUCKET/PREFIX/ for all below it")
	case InputGS:
		_, _, err := ParseGS(i.From)
		v.require(err == nil, field+".from", fmt.Sprintf("%.200q: %v", i.From, err),
			"gs://BUCKET/KEY for one object, or gs://BUCKET/PREFIX/ for all below it")
	case InputAzure:
		_, err := ParseAzure(i.From)
		v.require(err == nil, field+".from", fmt.Sprintf("%.200q: %v", i.From, err),
			"azblob://ACCOUNT/CONTAINER/KEY for one blob, or azblob://ACCOUNT/CONTAINER/PREFIX/ for all below it")
	case InputHTTPS:
		u, err := url.Parse(i.From)
		v.require(err == nil && u.Hostname() != "" && u.User == nil && u.Fragment == "", field+".from",
			"is not the URL of a file, or has a login or a fragment",
			"https://HOST/PATH; put a login into "+field+".secret")
	case InputFile:
		_, _, err := ParseFile(i.From)
		v.require(err == nil, field+".from", fmt.Sprintf("%.200q: %v", i.From, err),
			"file:///FOLDER/PATH for one file, or file:///FOLDER/PATH/ for a whole folder; FOLDER is "+
				"a name that an operator has configured")
	case InputUnknown:
		scheme, _, _ := strings.Cut(i.From, "://")
		v.require(false, field+".from", fmt.Sprintf("%.40s:// is not supported by this version", scheme), knownInputs)
	default:
		panic(fmt.Sprintf("unknown kind of input %d", kind))
	}
	i.validateOptions(v, field, kind)
}

// validateOptions checks the fields that only some kinds of inputs have.
func (i Input) validateOptions(v *validation, field string, kind InputKind) {
	for _, o := range []struct {
		name, value, of string
		ok              bool
	}{
		{"secret", i.Secret, "s3://, gs://, azblob:// and https://", kind.Objects() || kind == InputHTTPS},
		{"endpoint", i.Endpoint, "s3://, gs:// and azblob://", kind.Objects()},
		{"region", i.Region, "s3://", kind == InputS3},
		{"sha256", i.SHA256, "https://", kind == InputHTTPS},
	} {
		v.require(o.ok || o.value == "", field+"."+o.name, "is not available for this kind of input",
			"inputs from "+o.of)
	}
	i.validateMode(v, field, kind)
	if i.Secret != "" {
		v.secretName(field+".secret", i.Secret)
	}
	if i.Endpoint != "" {
		server := i.isServer(i.Endpoint)
		v.require(!server || i.Secret == "" || MayCarryLogin(i.Endpoint), field+".endpoint",
			fmt.Sprintf("%.200q would send the login over plain http", i.Endpoint),
			"https://; or http:// without "+field+".secret, or with a private IP address such as "+
				"http://10.0.0.1:9000")
		v.require(server, field+".endpoint", fmt.Sprintf("%.200q is not the URL of a server", i.Endpoint),
			"a URL such as https://storage.example.com; for azblob:// that of the account, or a server with /ACCOUNT")
	}
	v.require(len(i.Region) <= 63 && strings.Trim(i.Region, lowerName) == "", field+".region",
		fmt.Sprintf("%.100q is not a region", i.Region), "a name such as eu-west-1")
	if i.SHA256 != "" {
		_, err := hex.DecodeString(i.SHA256)
		v.require(err == nil && len(i.SHA256) == 64 && strings.ToLower(i.SHA256) == i.SHA256, field+".sha256",
			fmt.Sprintf("%.100q is not a SHA-256 checksum", i.SHA256), "64 hexadecimal digits")
	}
}

// validateMode checks that only folders of volumes are mounted. A mounted file would not follow a
// replacement of the file, so files are copied.
func (i Input) validateMode(v *validation, field string, kind InputKind) {
	if i.Mode == "" {
		return
	}
	v.oneOf(field+".mode", i.Mode, InputCopy, InputMount)
	v.require(kind == InputFile, field+".mode", "is not available for this kind of input", "inputs from file://")
	v.require(!i.Mounted() || kind != InputFile || strings.HasSuffix(i.From, "/"), field+".mode",
		"a single file cannot be mounted", "copy, or a folder: from with a / at the end")
}

// inside reports whether a clean path is the folder itself or a path below the folder.
func inside(p, folder string) bool { return p == folder || strings.HasPrefix(p, folder+"/") }
