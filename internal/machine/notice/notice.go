package notice

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"berth/wire"
)

// State is the present content of a source.
type State struct {
	End *wire.CloudNotice // the cloud ends the machine; nil: no notice
	// Rebalance is the time of the cloud's advice that the machine is more likely to end soon;
	// zero: no advice.
	Rebalance time.Time
}

// Reader reads notices. One goroutine calls it.
type Reader interface {
	// Look returns the present notices. It takes a few seconds at most. An error that wraps
	// ErrMalformed reports an answer that is no notice; any other error reports that the source did
	// not answer.
	Look(ctx context.Context) (State, error)
}

// ErrMalformed reports an answer that differs from the documented form.
var ErrMalformed = errors.New("the answer is not a notice")

// maxAnswer bounds an answer in bytes. The documented ones have about 60.
const maxAnswer = 4 << 10

// expired is the age at which a notice that did not come true is ignored. A file may be left over from
// an earlier boot.
const expired = 10 * time.Minute

// Off is the setting without a source.
const Off = "off"

// Open returns the source of a setting: "off" (nil), "ec2", "gce", or "file=PATH" with an absolute path.
// Tests use "ec2=URL" and "gce=URL" for another address of the metadata service.
func Open(setting string) (Reader, error) {
	kind, value, given := strings.Cut(setting, "=")
	switch {
	case setting == Off:
		return nil, nil
	case setting == "ec2":
		return NewEC2(EC2Address), nil
	case setting == "gce":
		return NewGCE(GCEAddress), nil
	case (kind == "ec2" || kind == "gce") && given:
		u, err := url.Parse(value)
		if err != nil || u.Scheme != "http" || u.Host == "" || u.Path != "" || u.RawQuery != "" {
			return nil, fmt.Errorf("%q: allowed is an address such as %s=http://127.0.0.1:1338", setting, kind)
		}
		if kind == "gce" {
			return NewGCE(value), nil
		}
		return NewEC2(value), nil
	case kind == "file" && filepath.IsAbs(value):
		return File(value), nil
	}
	return nil, fmt.Errorf("%q: allowed are off, ec2, gce, and file=PATH with an absolute path", setting)
}

// action is the documented form of a notice of the machine's end.
type action struct {
	Action string    `json:"action"`
	Time   time.Time `json:"time"`
}

// actions are the ways in which a cloud ends a machine. Each of them ends the containers.
var actions = map[string]bool{"terminate": true, "stop": true, "hibernate": true}

// parseEnd reads a notice of the machine's end; nil: the notice did not come true long ago.
func parseEnd(kind wire.NoticeKind, answer []byte, now time.Time) (*wire.CloudNotice, error) {
	var a action
	if err := json.Unmarshal(answer, &a); err != nil || !actions[a.Action] || a.Time.IsZero() {
		return nil, fmt.Errorf("%w: %.200q: allowed are an action (terminate, stop, hibernate) and a time",
			ErrMalformed, answer)
	}
	if now.Sub(a.Time) > expired {
		return nil, nil
	}
	return &wire.CloudNotice{Kind: kind, Deadline: a.Time.UTC().Truncate(time.Second)}, nil
}
