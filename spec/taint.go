package spec

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"berth"
)

// A taint keeps jobs off a machine unless they tolerate it, with the words of Kubernetes: KEY[=VALUE][:EFFECT]. The
// stored form always has the effect. A toleration has the form of a taint; without a value it tolerates every value,
// without an effect every effect, and * tolerates every taint.

// NoSchedule is the only effect of a taint: no job that does not tolerate the taint starts on the machine. Running jobs
// continue.
const NoSchedule = "no_schedule"

// AnyTaint is the toleration of every taint.
const AnyTaint = "*"

// Limits on taints.
const (
	MaxTaints      = 16 // of a machine, or of a pool
	MaxTolerations = 32
)

// taintForm describes a taint in errors.
const taintForm = "KEY or KEY=VALUE, or either with :" + NoSchedule +
	"; 1 to 63 letters, digits, '.', '_', '-' and '/' for a key and a value"

var taintPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}(=[A-Za-z0-9._/-]{1,63})?(:[a-z_]+)?$`)

// ParseTaint returns the stored form of a taint.
func ParseTaint(text string) (stored string, err error) {
	mark, effect, given := strings.Cut(text, ":")
	switch {
	case !taintPattern.MatchString(text):
		return "", fmt.Errorf("%.80q is not a taint", text)
	case given && effect != NoSchedule:
		return "", fmt.Errorf("%.80q has the effect %s; to move running jobs away, drain the machine", text, effect)
	}
	return mark + ":" + NoSchedule, nil
}

// TaintKey returns the key of a taint.
func TaintKey(taint string) string {
	key, _, _ := strings.Cut(ShortTaint(taint), "=")
	return key
}

// ShortTaint returns a taint without its effect, for texts.
func ShortTaint(taint string) string {
	mark, _, _ := strings.Cut(taint, ":")
	return mark
}

// ShortTaints is ShortTaint for a list, as one text.
func ShortTaints(taints []string) string {
	list := make([]string, len(taints))
	for i, t := range taints {
		list[i] = ShortTaint(t)
	}
	return strings.Join(list, ", ")
}

// Untolerated lists the stored taints that the tolerations leave. The SQL function tolerates decides in the same way.
func Untolerated(tolerations, taints []string) (list []string) {
	for _, t := range taints {
		_, effect, _ := strings.Cut(t, ":")
		tolerated := func(x string) bool {
			return x == AnyTaint || x == t || x == ShortTaint(t) || x == TaintKey(t) || x == TaintKey(t)+":"+effect
		}
		if !slices.ContainsFunc(tolerations, tolerated) {
			list = append(list, t)
		}
	}
	return list
}

// taints adds the faults of a list of taints.
func (v *validation) taints(field string, list []string) {
	v.require(len(list) <= MaxTaints, field, "has too many taints", fmt.Sprintf("at most %d", MaxTaints))
	seen := map[string]bool{}
	for i, t := range list[:min(len(list), MaxTaints)] {
		at := fmt.Sprintf("%s[%d]", field, i)
		if _, err := ParseTaint(t); err != nil {
			v.require(false, at, err.Error(), taintForm)
			continue
		}
		v.require(!seen[TaintKey(t)], at, "repeats the key "+TaintKey(t), "each key once")
		seen[TaintKey(t)] = true
	}
}

// tolerations adds the faults of a list of tolerations.
func (v *validation) tolerations(field string, list []string) {
	v.require(len(list) <= MaxTolerations, field, "has too many entries", fmt.Sprintf("at most %d", MaxTolerations))
	for i, t := range list[:min(len(list), MaxTolerations)] {
		if _, err := ParseTaint(t); err != nil && t != AnyTaint {
			v.require(false, fmt.Sprintf("%s[%d]", field, i), err.Error(), AnyTaint+", "+taintForm)
		}
	}
}

// TaintChange is the body of a call that changes the taints of a machine.
type TaintChange struct {
	Add    []string `json:"add,omitempty" doc:"taints KEY or KEY=VALUE; each replaces the taint of its key"`
	Remove []string `json:"remove,omitempty" doc:"keys of taints; keys without a taint are ignored"`
}

// Validate returns all faults of the change at once, or nil.
func (c TaintChange) Validate() []berth.FieldError {
	v := &validation{}
	v.taints("add", c.Add)
	v.taints("remove", c.Remove)
	for i, key := range c.Remove[:min(len(c.Remove), MaxTaints)] {
		field := fmt.Sprintf("remove[%d]", i)
		v.require(key == TaintKey(key), field, fmt.Sprintf("%.80q is more than a key", key), "the key of a taint")
		added := func(t string) bool { return TaintKey(t) == key }
		v.require(!slices.ContainsFunc(c.Add, added), field, "is also added", "a key in one of the lists")
	}
	return v.faults
}

// Apply returns the stored taints after the change, sorted. The change must be valid.
func (c TaintChange) Apply(taints []string) []string {
	list := StoredTaints(c.Add)
	for _, t := range taints {
		added := func(a string) bool { return TaintKey(a) == TaintKey(t) }
		if !slices.Contains(c.Remove, TaintKey(t)) && !slices.ContainsFunc(c.Add, added) {
			list = append(list, t)
		}
	}
	slices.Sort(list)
	return list
}

// StoredTaints returns the stored forms of valid taints.
func StoredTaints(taints []string) []string {
	list := make([]string, 0, len(taints))
	for _, t := range taints {
		if stored, err := ParseTaint(t); err == nil {
			list = append(list, stored)
		}
	}
	return list
}
