package preflight

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"go.temporal.io/sdk/client"

	"berth/internal/control/controlplane"
)

// State is the result of a check.
type State string

// The states of a finding.
const (
	OK     State = "ok"
	Advice State = "advice" // berthd works; an operator should look at it
	Fault  State = "fault"  // berthd does not start, or does not work
)

// Finding is one result. Its JSON is the output of "berthd check-config -o json".
type Finding struct {
	Check  string `json:"check"` // settings, user, files, tls, database, clock, keys, temporal, store or mail
	State  State  `json:"state"`
	Detail string `json:"detail"`           // what was found
	Remedy string `json:"remedy,omitempty"` // what to do about it; "" if Detail says it
}

// Input is the installation to examine.
type Input struct {
	Config   controlplane.Config
	Temporal client.Options // TLS and credentials of Temporal's client
	Faults   []error        // of settings that could not be read

	Limit         time.Duration // of each call to a dependency; 0: 5 s
	TemporalLimit time.Duration // of each call to Temporal; 0: Limit
	UID           int           // of the process
}

// Run examines an installation. It returns at least one finding for each check that applies, in a fixed
// order. Dependencies that do not answer take Limit each.
func Run(ctx context.Context, in Input) []Finding {
	if in.Limit == 0 {
		in.Limit = 5 * time.Second
	}
	if in.TemporalLimit == 0 {
		in.TemporalLimit = in.Limit
	}
	r := &report{Input: in}
	r.settings()
	r.user()
	r.certificates()
	r.files()
	r.database(ctx)
	r.temporal(ctx)
	r.store(ctx)
	r.mail(ctx)
	return r.findings
}

// Faults counts the faults among findings.
func Faults(findings []Finding) (n int) {
	for _, f := range findings {
		if f.State == Fault {
			n++
		}
	}
	return n
}

// Print writes one line for each finding.
func Print(out io.Writer, findings []Finding) error {
	for _, f := range findings {
		text := f.Detail
		if f.Remedy != "" {
			text += ": " + f.Remedy
		}
		// A message of a library may have several lines.
		text = strings.Join(strings.Fields(text), " ")
		if _, err := fmt.Fprintf(out, "%-7s %-9s %s\n", f.State, f.Check, text); err != nil {
			return err
		}
	}
	return nil
}

// report collects the findings of one run.
type report struct {
	Input
	findings []Finding
	storeID  string // that the database names; "": none, or not known
}

func (r *report) add(check string, state State, remedy, format string, args ...any) {
	r.findings = append(r.findings,
		Finding{Check: check, State: state, Detail: fmt.Sprintf(format, args...), Remedy: remedy})
}

// settings reports each fault of the settings by itself.
func (r *report) settings() {
	faults := append([]error(nil), r.Faults...)
	if _, err := controlplane.New(r.Config, controlplane.Options{Temporal: r.Temporal}); err != nil {
		faults = append(faults, err)
	}
	n := 0
	for _, joined := range faults {
		for _, err := range split(joined) {
			r.add("settings", Fault, "", "%v", err)
			n++
		}
	}
	if n == 0 {
		r.add("settings", OK, "", "every flag, variable and key of the file is valid")
	}
}

// split returns the errors that errors.Join has put together.
func split(err error) (all []error) {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	for _, e := range joined.Unwrap() {
		all = append(all, split(e)...)
	}
	return all
}

// user reports a run as root, who reads and writes files that the service may not.
func (r *report) user() {
	if r.UID == 0 {
		r.add("user", Advice, "run the check as the user of the service, with its environment: systemd-run --pipe "+
			"--wait --uid=berth --property=EnvironmentFile=/etc/berth/berthd.env berthd check-config",
			"the check runs as root, and berthd may lack rights on files that root has")
	}
}

// readable adds a fault unless this process can read a file.
func (r *report) readable(check, setting, path string) bool {
	f, err := os.Open(path)
	if err != nil {
		r.add(check, Fault, "the file must exist and be readable by the user of berthd", "%s: %v", setting, err)
		return false
	}
	_ = f.Close()
	return true
}
