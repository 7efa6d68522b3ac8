// Package enginesilence describes machines whose container engine does not answer
// their agent: how the agent reports the condition, and its words for people. An
// engine may answer pings, and yet neither start containers nor report their ends;
// Docker up to 20.10 can hang so for good (github.com/moby/moby/pull/42545).
//
// The one rule to know: an engine that does not answer proves nothing about its
// containers, so running work there counts as running.
package enginesilence

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"berth"
)

// Header is for how many whole seconds, at least one, the machine's container
// engine has not answered the agent. Calls to sync carry it while that lasts.
// Servers that do not know it ignore it.
const Header = "Berth-Engine-Silent"

// most bounds the value of Header.
const most = 365 * 24 * time.Hour

// Format returns the value of Header for a silence that is longer than 0.
func Format(silent time.Duration) string {
	return strconv.FormatInt(int64(min(max(silent, time.Second), most)/time.Second), 10)
}

// Parse reads the value of Header; "" is 0: the engine answers.
func Parse(value string) (time.Duration, error) {
	if value == "" {
		return 0, nil
	}
	seconds, err := strconv.ParseInt(value, 10, 64)
	if allowed := int64(most / time.Second); err != nil || seconds < 1 || seconds > allowed {
		return 0, berth.Errorf(berth.CodeInvalid, "%s %.40q: allowed are 1 to %d seconds", Header, value, allowed)
	}
	return time.Duration(seconds) * time.Second, nil
}

// Machine is a machine with a container engine that does not answer.
type Machine struct {
	ID    berth.MachineID
	Since time.Time
}

// IDs returns the ids of machines.
func IDs(list []Machine) []berth.MachineID {
	ids := make([]berth.MachineID, len(list))
	for i, m := range list {
		ids[i] = m.ID
	}
	return ids
}

// Hint is the remedy for a silent container engine. An agent also reports its engine
// as silent while the engine cannot end a container that waits for a dead file server.
const Hint = "restart it: systemctl restart docker, or bring back the file server that a container waits for"

// Reason returns the text about a machine with a container engine that has not answered
// since then.
func Reason(since time.Time) string {
	return "its container engine has not answered since " + since.UTC().Format(time.RFC3339) + "; " + Hint
}

// Text describes machines with a silent container engine, and names at most three of the
// machines. list is not empty.
func Text(list []Machine) string {
	first := list[0].Since
	var names []string
	for _, m := range list {
		names = append(names, string(m.ID))
		if m.Since.Before(first) {
			first = m.Since
		}
	}
	since := first.UTC().Format(time.RFC3339)
	if len(list) == 1 {
		return fmt.Sprintf("the container engine of machine %s has not answered since %s", names[0], since)
	}
	const named = 3
	last := names[len(names)-1]
	if len(names) > named {
		last = fmt.Sprintf("%d more", len(names)-named)
	}
	some := strings.Join(names[:min(named, len(names)-1)], ", ") + " and " + last
	return fmt.Sprintf("the container engines of machines %s have not answered, the first since %s", some, since)
}
