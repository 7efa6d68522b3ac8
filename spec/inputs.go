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

// maxInputs is how many a job may have.
const maxInputs = 64

// Bounds of one fetched input.
const (
	MaxInputBytes = 128 << 30
	MaxInputFiles = 200_000 // entries, folders included
)

// InputKind is the kind of an input's source.
type InputKind int

// The kinds of inputs.
const (
	InputFolder  InputKind = iota // a folder of the user's, or the address of one that was sent
	InputOutput                   // an output of another job
	InputS3                       // an object, or all that lie below a prefix, of a server that speaks S3
	InputGS                       // the same, of Google Cloud Storage
	InputAzure                    // the same, of Azure Blob Storage
	InputHTTPS                    // one file
	InputFile                     // a file, or all that is in a folder, of a volume of the machine
	InputUnknown                  // nothing that this version fetches
)

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

// Objects reports whether the kind is of objects in a bucket or a container.
func (k InputKind) Objects() bool { return k == InputS3 || k == InputGS || k == InputAzure }

// Listed reports whether all that is in a folder of its kind can be named: such
// an input is a list of things that have versions.
func (k InputKind) Listed() bool { return k.Objects() || k == InputFile }

// OneFile reports whether the input is a file at To, and no folder.
func (i Input) OneFile() bool {
	kind := i.Kind()
	return kind == InputHTTPS || kind.Listed() && !strings.HasSuffix(i.From, "/")
}

// OutputRef names an output of another job: by the job's id or, from one step of
// a pipeline to another, by the step's name: train, or train.fit for a step of a
// nested pipeline.
type OutputRef struct {
	Job  berth.JobID // "": of a step
	Step string      // "": of a job
	Name string
}

// ParseOutputRef reads job:ID/NAME, job:STEP/NAME and job:STEP.STEP/NAME. A text in
// the form of an id is an id, and not a step.
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
		return OutputRef{}, berth.Errorf(berth.CodeInvalid, "%.200q names no output of a job", from)
	}
	return ref, nil
}

func (o OutputRef) String() string { return outputPrefix + string(o.Job) + o.Step + "/" + o.Name }

// NamedOutput is an output of another job that an input names.
type NamedOutput struct {
	Input int // its place among the inputs
	OutputRef
}

// OutputsNamed returns the outputs that the inputs name, in their order.
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
	return all
}

// OfJobs returns the spec with steps in its inputs replaced by the ids of their jobs.
func (s Job) OfJobs(steps map[string]berth.JobID) Job {
	s.Inputs = slices.Clone(s.Inputs)
	for _, o := range s.OutputsNamed() {
		if id, ok := steps[o.Step]; ok && o.Step != "" {
			s.Inputs[o.Input].From = OutputRef{Job: id, Name: o.Name}.String()
		}
	}
	return s
}

func (s Job) validateInputs(v *validation) {
	v.require(len(s.Inputs) <= maxInputs, "inputs", "too many", fmt.Sprintf("at most %d", maxInputs))
	taken := []string{"/workspace", SecretsPath}
	if s.Checkpoint != nil {
		taken = append(taken, s.Checkpoint.Path)
	}
	for i, in := range s.Inputs {
		field := fmt.Sprintf("inputs[%d]", i)
		in.validate(v, field)
		ok := path.IsAbs(in.To) && path.Clean(in.To) == in.To && in.To != "/" && len(in.To) <= 1024 &&
			!strings.ContainsRune(in.To, 0)
		for _, r := range reservedPaths[1:] {
			ok = ok && !inside(in.To, r)
		}
		v.require(ok, field+".to", fmt.Sprintf("%.200q cannot be an input's place", in.To),
			"a clean absolute path such as /data, not under "+strings.Join(reservedPaths[1:], ", "))
		clash := slices.ContainsFunc(taken, func(t string) bool { return inside(in.To, t) || inside(t, in.To) })
		v.require(!ok || !clash, field+".to",
			fmt.Sprintf("%.200q and another folder that is mounted lie in each other", in.To),
			"places apart from each other, from the checkpoint's and from "+SecretsPath)
		taken = append(taken, in.To)
	}
}

const knownInputs = "a folder of yours, job:ID/OUTPUT, s3://BUCKET/PREFIX/, gs://BUCKET/PREFIX/, " +
	"azblob://ACCOUNT/CONTAINER/PREFIX/, https://HOST/FILE or, where the operator allows it, file:///FOLDER/PATH/"

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
		v.require(err == nil, field+".from", fmt.Sprintf("%.200q names no output of a job", i.From),
			"job:ID/OUTPUT, or job:STEP/OUTPUT among the steps of a pipeline")
		v.require(err != nil || ref.Step == "", field+".from",
			fmt.Sprintf("%.200q names a step, and this job is in no pipeline", ref.Step),
			"job: and the whole id of a job, then / and the name of its output")
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
			"is no address of a file, or has a login or a fragment",
			"https://HOST/PATH; a login is named by "+field+".secret")
	case InputFile:
		_, _, err := ParseFile(i.From)
		v.require(err == nil, field+".from", fmt.Sprintf("%.200q: %v", i.From, err),
			"file:///FOLDER/PATH for one file, or file:///FOLDER/PATH/ for all in a folder, of a FOLDER that the "+
				"operator of the cluster has given a name")
	case InputUnknown:
		scheme, _, _ := strings.Cut(i.From, "://")
		v.require(false, field+".from", fmt.Sprintf("%.40s:// is not supported by this version", scheme), knownInputs)
	default:
		panic(fmt.Sprintf("unknown kind of input %d", kind))
	}
	i.validateOptions(v, field, kind)
}

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
		v.require(o.ok || o.value == "", field+"."+o.name, "says nothing of such an input", "with "+o.of+" only")
	}
	if i.Secret != "" {
		v.secretName(field+".secret", i.Secret)
	}
	if i.Endpoint != "" {
		server := i.isServer(i.Endpoint)
		v.require(!server || i.Secret == "" || MayCarryLogin(i.Endpoint), field+".endpoint",
			fmt.Sprintf("%.200q would have the login travel by plain http", i.Endpoint),
			"https://; or http:// without "+field+".secret, or to a private address that is no name, such as "+
				"http://10.0.0.1:9000")
		v.require(server, field+".endpoint", fmt.Sprintf("%.200q is no address of a server", i.Endpoint),
			"such as https://storage.example.com; of azblob:// the account's own, or its server's and then /ACCOUNT")
	}
	v.require(len(i.Region) <= 63 && strings.Trim(i.Region, lowerName) == "", field+".region",
		fmt.Sprintf("%.100q is no region", i.Region), "such as eu-west-1")
	if i.SHA256 != "" {
		_, err := hex.DecodeString(i.SHA256)
		v.require(err == nil && len(i.SHA256) == 64 && strings.ToLower(i.SHA256) == i.SHA256, field+".sha256",
			fmt.Sprintf("%.100q is no sha256", i.SHA256), "64 hexadecimal digits")
	}
}

// inside reports whether a clean path is the folder or lies in it.
func inside(p, folder string) bool { return p == folder || strings.HasPrefix(p, folder+"/") }
