package alarms_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// absences are the alerts without a real fault in waves, with the reason of each. The tests of e2e/watching cover the
// expressions of these alerts by made-up series.
var absences = map[string]string{
	"BerthMirrorDrifts": "rows changed by hand are seen once in five minutes, and the alert lasts for five more",
	"BerthQueueUnseen":  "a lock must last for six minutes, and stops the leader too, or an admin who pauses new starts",
}

// injected returns the names of the alerts that the waves try.
func injected(waves []wave) (names []string) {
	for _, w := range waves {
		for _, l := range w {
			for _, a := range l {
				for _, x := range a.all() {
					names = append(names, x.alert)
				}
			}
		}
	}
	return names
}

// choose returns the alerts that match one of the words, all if there is no word. Each word must match an alert that
// the waves try.
func choose(words string, names []string) (chosen []string, err error) {
	if words == "" {
		return names, nil
	}
	for word := range strings.SplitSeq(words, ",") {
		matches := func(name string) bool { return word != "" && strings.Contains(name, word) }
		found := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !matches(name) })
		if len(found) == 0 {
			for _, name := range slices.Sorted(maps.Keys(absences)) {
				if matches(name) {
					return nil, fmt.Errorf("%s has no real fault: %s", name, absences[name])
				}
			}
			return nil, fmt.Errorf("no alert matches %q: allowed are parts of the names %s", word, strings.Join(names, ", "))
		}
		chosen = append(chosen, found...)
	}
	return chosen, nil
}

// Each alert of the rules has a real fault, or a reason for its absence.
func TestEachAlertHasARealFaultOrAReason(t *testing.T) {
	t.Parallel()
	_, alerts := readRules(t)
	names := injected(listed(t).waves())
	for _, name := range slices.Concat(names, slices.Collect(maps.Keys(absences))) {
		if !slices.Contains(alerts, name) {
			t.Errorf("the rules have no alert %s", name)
		}
	}
	for _, name := range alerts {
		switch _, absent := absences[name]; {
		case !absent && !slices.Contains(names, name):
			t.Errorf("%s has no real fault: add one to waves, or a reason to absences", name)
		case absent && slices.Contains(names, name):
			t.Errorf("%s has a real fault, so remove it from absences", name)
		}
	}
}

func TestAChoiceOfAlertsNamesAtLeastOne(t *testing.T) {
	t.Parallel()
	names := []string{"BerthNoLeader", "BerthDown", "BerthDatabaseDown"}
	for words, want := range map[string]int{"": 3, "Down": 2, "NoLeader,Database": 2} {
		if got, err := choose(words, names); err != nil || len(got) != want {
			t.Errorf("%q chooses %q, %v", words, got, err)
		}
	}
	for words, want := range map[string]string{
		"NoLaeder": "no alert matches", "NoLeader,Typo": `no alert matches "Typo"`, ",": "no alert matches",
		"MirrorDrifts": "BerthMirrorDrifts has no real fault: rows changed by hand are seen once in five minutes",
	} {
		if got, err := choose(words, names); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q chooses %q, %v", words, got, err)
		}
	}
}
