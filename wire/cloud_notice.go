package wire

import (
	"regexp"
	"strings"
	"time"

	"berth"
)

// HeaderCloudNotice carries a CloudNotice on calls to sync, until an answer confirms the notice.
// Servers that do not know the header ignore it and confirm nothing.
const HeaderCloudNotice = "Berth-Cloud-Notice"

// NoticeKind is the origin of a notice.
type NoticeKind string

// The kinds of notices.
const (
	NoticeSpot NoticeKind = "spot" // an interruption notice of a spot instance
	NoticeFile NoticeKind = "file" // a file on the machine that names the end
	// NoticeMaintenance announces that the machine ends for maintenance of its host.
	NoticeMaintenance NoticeKind = "maintenance"
)

// kindForm is the form of a kind. A server takes kinds that it does not know: a newer agent must not
// lose its lease for one.
var kindForm = regexp.MustCompile(`^[a-z][a-z_]{0,19}$`)

// text describes the kind, for reasons of drains.
func (k NoticeKind) text() string {
	switch k {
	case NoticeFile:
		return "notice file"
	case NoticeMaintenance:
		return "maintenance of the host"
	}
	return strings.ReplaceAll(string(k), "_", " ")
}

// CloudNotice is the announcement of a cloud that it ends a machine. Two notices are the same if
// kind and deadline are equal.
type CloudNotice struct {
	Kind     NoticeKind `json:"kind"`
	Deadline time.Time  `json:"deadline"` // when the machine ends, in whole seconds and UTC
}

// String returns the value of HeaderCloudNotice, which also identifies the notice.
func (n CloudNotice) String() string {
	return string(n.Kind) + " " + n.Deadline.UTC().Format(time.RFC3339)
}

// Reason describes the end of the machine, for people.
func (n CloudNotice) Reason() string {
	return "the cloud ends this machine at " + n.Deadline.UTC().Format(time.TimeOnly) + " (" + n.Kind.text() + ")"
}

// NoticeMargin is the time before the end of a machine at which its jobs must have stopped.
const NoticeMargin = 10 * time.Second

// StopBy returns the time at which the jobs of the machine must stop.
func (n CloudNotice) StopBy() time.Time { return n.Deadline.Add(-NoticeMargin) }

// ParseCloudNotice reads the value of HeaderCloudNotice. Other values are errors of code invalid.
func ParseCloudNotice(value string) (CloudNotice, error) {
	kind, at, _ := strings.Cut(value, " ")
	deadline, err := time.Parse(time.RFC3339, at)
	n := CloudNotice{Kind: NoticeKind(kind), Deadline: deadline.UTC().Truncate(time.Second)}
	if err != nil || !kindForm.MatchString(kind) {
		return n, berth.Errorf(berth.CodeInvalid,
			"%s %.60q: allowed are a kind such as spot, a space and a time such as 2026-11-26T12:31:04Z",
			HeaderCloudNotice, value)
	}
	return n, nil
}
