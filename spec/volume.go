package spec

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"berth"
)

// Volume is the name of a folder that operators let jobs read on machines, such as
// datasets in file:///datasets/train/. Only the machine knows the folder's path on its
// host: no job contains a path of a host.
type Volume string

// String returns the name with its slash, as in files and options.
func (v Volume) String() string { return "/" + string(v) }

// maxVolume is the largest length of a name, in bytes. Together with volumeLabel, a name
// does not exceed the largest length of a label's key.
const maxVolume = 48

// volumeForm describes the allowed names, for errors.
const volumeForm = "a / and 1 to 48 of a-z, A-Z, 0-9, '-', '_' and '.', starting with a letter or a digit"

// systemFolders lists names that are refused, since users would take such a volume for
// the machine's own folder.
var systemFolders = []string{"bin", "boot", "dev", "etc", "lib", "lib64", "proc", "root", "run", "sbin", "sys",
	"tmp", "usr", "var"}

// ParseVolume parses a name with its slash, such as /datasets. The error has
// berth.CodeInvalid.
func ParseVolume(text string) (Volume, error) {
	name, ok := strings.CutPrefix(text, "/")
	odd := func(r rune) bool { return !strings.ContainsRune(lowerName+"ABCDEFGHIJKLMNOPQRSTUVWXYZ_.", r) }
	if !ok || name == "" || len(name) > maxVolume || strings.ContainsFunc(name, odd) ||
		strings.ContainsRune("-_.", rune(name[0])) {
		return "", berth.Errorf(berth.CodeInvalid, "%.100q is not a valid name of a folder (allowed: %s)", text,
			volumeForm)
	}
	if slices.Contains(systemFolders, name) {
		const format = "%s is a system folder and cannot be shared with jobs"
		return "", berth.Errorf(berth.CodeInvalid, format, text)
	}
	return Volume(name), nil
}

// ParseVolumeOptions parses options of operators: /NAME or /NAME=VALUE, each name once;
// semicolons separate several in one text. valueForm describes a value in errors.
// ParseVolumeOptions calls each with every valid name and its value; given reports whether
// there is a value. It returns all faults, joined, including the errors of each.
func ParseVolumeOptions(list []string, valueForm string, each func(v Volume, value string, given bool) error) error {
	seen := map[Volume]bool{}
	var faults []error
	for text := range strings.SplitSeq(strings.Join(list, ";"), ";") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		name, value, given := strings.Cut(text, "=")
		v, err := ParseVolume(name)
		switch {
		case err != nil:
			err = fmt.Errorf("%w; write /NAME or /NAME=%s", err, valueForm)
		case seen[v]:
			err = fmt.Errorf("%s is listed twice", v)
		default:
			seen[v] = true
			err = each(v, value, given)
		}
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

// volumeLabel is the prefix of labels for the volumes of a machine. Only the agent
// sets these labels: neither operators nor users can.
const volumeLabel = "berth.volume."

// Label returns the key of the label that machines with the volume have.
func (v Volume) Label() string { return volumeLabel + string(v) }

// VolumeOf is the inverse of Label. ok is false for any other label.
func VolumeOf(key string) (Volume, bool) {
	name, ok := strings.CutPrefix(key, volumeLabel)
	return Volume(name), ok
}

// mountLabel is the prefix of labels for the volumes that a machine's agent can mount into
// containers. Agents of earlier versions, which would copy the folder, do not set it.
const mountLabel = "berth.mount."

// MountLabel returns the key of the label that machines have whose agent can mount the volume.
func (v Volume) MountLabel() string { return mountLabel + string(v) }

// MountOf is the inverse of MountLabel. ok is false for any other label.
func MountOf(key string) (Volume, bool) {
	name, ok := strings.CutPrefix(key, mountLabel)
	return Volume(name), ok
}

// IsVolumeLabel reports whether a label's key is one of Label or MountLabel. Only agents set
// such labels.
func IsVolumeLabel(key string) bool {
	return strings.HasPrefix(key, volumeLabel) || strings.HasPrefix(key, mountLabel)
}

// HasVolume is the value of a volume's labels on machines with the volume.
const HasVolume = "yes"

// ParseFile parses file:///VOLUME/PATH for one file, or file:///VOLUME/PATH/ for a folder
// with all its content. The path is relative to the volume, without a first slash, and has
// no parts . or .. and no escapes, so that it cannot leave the volume. The error has
// berth.CodeInvalid.
func ParseFile(from string) (v Volume, path string, err error) {
	rest, ok := strings.CutPrefix(from, "file://")
	switch {
	case !ok || rest == "":
		return "", "", berth.Errorf(berth.CodeInvalid, "the folder is missing")
	case rest[0] != '/':
		return "", "", berth.Errorf(berth.CodeInvalid, "a host is not allowed, since each machine reads its own files")
	}
	name, path, below := strings.Cut(rest[1:], "/")
	if v, err = ParseVolume("/" + name); err != nil {
		return "", "", err
	}
	if !below {
		return "", "", berth.Errorf(berth.CodeInvalid, "%s is a folder, so the address must end with a /", v)
	}
	if path == "" {
		return v, "", nil
	}
	for part := range strings.SplitSeq(strings.TrimSuffix(path, "/"), "/") {
		switch {
		case part == "" || part == "." || part == "..":
			return "", "", berth.Errorf(berth.CodeInvalid, "the path contains %q", part)
		case len(part) > 255:
			return "", "", berth.Errorf(berth.CodeInvalid, "a part of the path has %d bytes (allowed: at most 255)",
				len(part))
		case strings.ContainsRune(part, 0) || strings.ContainsRune(part, '\\') || isEscaped(part):
			return "", "", berth.Errorf(berth.CodeInvalid,
				"%.100q contains an escape; write names without escapes", part)
		}
	}
	return v, path, nil
}

// isEscaped reports whether a part of a path contains a percent-encoded octet such as %2e.
func isEscaped(part string) bool {
	const digits = "0123456789abcdefABCDEF"
	for i := 0; i+2 < len(part); i++ {
		if part[i] == '%' && strings.IndexByte(digits, part[i+1]) >= 0 && strings.IndexByte(digits, part[i+2]) >= 0 {
			return true
		}
	}
	return false
}

// NamedVolume is a volume that an input names.
type NamedVolume struct {
	Input int // index in Job.Inputs
	Volume
}

// VolumesNamed returns the volumes of the inputs, in the order of the inputs. Malformed
// inputs are skipped.
func (s Job) VolumesNamed() []NamedVolume {
	var all []NamedVolume
	for i, in := range s.Inputs {
		if in.Kind() != InputFile {
			continue
		}
		if v, _, err := ParseFile(in.From); err == nil {
			all = append(all, NamedVolume{i, v})
		}
	}
	return all
}

// machineLabels returns the labels that a machine must have to run the job: the job's own
// conditions, the labels of the volumes in its inputs, and the labels of its egress policy.
func (s Job) machineLabels() map[string]string {
	named := s.VolumesNamed()
	if len(named) == 0 && !s.Network.Strict() {
		return s.Placement.Labels
	}
	labels := maps.Clone(s.Placement.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	for _, v := range named {
		key := v.Label()
		if s.Inputs[v.Input].Mounted() {
			key = v.MountLabel()
		}
		labels[key] = HasVolume
	}
	switch {
	case !s.Network.Strict():
	case s.Members > 1:
		labels[EgressGangLabel] = EgressHeld
	default:
		labels[EgressLabel] = EgressHeld
	}
	if s.Network.Named() {
		labels[NamesLabel] = EgressHeld
	}
	return labels
}

// machineLabel checks the key of a label in a join token or in a job's placement. Labels
// that only agents set are refused.
func (v *validation) machineLabel(field, key string) {
	v.require(!IsEgressLabel(key), field+"."+key, "is reserved for machines that enforce egress policies",
		"other keys")
	v.require(key != GroupsLabel, field+"."+key, "is reserved for readers that do not know groups", "other keys")
	v.require(!IsVolumeLabel(key), field+"."+key, "is reserved for the shared folders of machines",
		fmt.Sprintf("keys that do not start with %s or %s", volumeLabel, mountLabel))
}
