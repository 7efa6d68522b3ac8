package alarms_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

const rulesFile = "../../deploy/prometheus/berth.rules.yaml"

// faster divides the durations of the rules. A minute becomes five seconds, the interval of scrapes: a scrape takes up
// to three seconds while the database does not answer, so it cannot be much shorter.
const faster = 12

var (
	// waits are the times for which a condition must hold, and windows of ranges.
	waits = regexp.MustCompile(`( for: |\[)([0-9]+[smhd])\b`)

	// ages are numbers of seconds with which an age is compared.
	ages = regexp.MustCompile(`(_seconds(?:\{[^}]*\})?\) > )([0-9]+)\b`)
)

// scaled returns the rules with each duration from a minute to a day divided by faster. Shorter limits are about the
// reaction of a program, which a run does not make faster; longer ones are about days, which faults bring about by
// certificates and rows of that age.
func scaled(rules string) string {
	rules = waits.ReplaceAllStringFunc(rules, func(found string) string {
		part := waits.FindStringSubmatch(found)
		d, err := time.ParseDuration(part[2])
		if err != nil || d < time.Minute || d >= 24*time.Hour {
			return found
		}
		return fmt.Sprintf("%s%dms", part[1], (d / faster).Milliseconds())
	})
	return ages.ReplaceAllStringFunc(rules, func(found string) string {
		part := ages.FindStringSubmatch(found)
		n, err := strconv.Atoi(part[2])
		if err != nil || n < 60 || n >= 86400 {
			return found
		}
		return part[1] + strconv.Itoa(n/faster)
	})
}

// readRules returns the rules as they are shipped, and the names of all alerts.
func readRules(t testing.TB) (text string, alerts []string) {
	t.Helper()
	b, err := os.ReadFile(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^ +- alert: (\w+)$`).FindAllSubmatch(b, -1) {
		alerts = append(alerts, string(m[1]))
	}
	return string(b), alerts
}

// The run of make alarms is about the shipped rules: the transformation changes durations and nothing else.
func TestTheTransformationOfTheRulesChangesDurationsOnly(t *testing.T) {
	t.Parallel()
	rules, alerts := readRules(t)
	got := scaled(rules)
	before, after := strings.Split(rules, "\n"), strings.Split(got, "\n")
	if len(before) != len(after) {
		t.Fatalf("%d lines became %d", len(before), len(after))
	}
	var limits []string
	alert, waiting := "", 0
	for i := range before {
		if _, name, ok := strings.Cut(before[i], "- alert: "); ok {
			alert = name
		}
		if before[i] == after[i] {
			continue
		}
		blank := func(s string) string { return ages.ReplaceAllString(waits.ReplaceAllString(s, "$1"), "$1") }
		unscaled := regexp.MustCompile(`([0-9])ms\b`).ReplaceAllString(after[i], "${1}s")
		if blank(before[i]) != blank(unscaled) {
			t.Errorf("%s: %q became %q", alert, before[i], after[i])
		}
		switch {
		case strings.Contains(before[i], " for: "):
			waiting++
		case ages.MatchString(before[i]):
			limits = append(limits, alert)
		}
	}
	if waiting != len(alerts) {
		t.Errorf("the times of %d rules have changed, of %d", waiting, len(alerts))
	}
	want := []string{
		"BerthLaunchUnresolved", "BerthInstanceDoesNotEnd", "BerthWebhookBacklog", "BerthNotificationBacklog",
	}
	if !slices.Equal(limits, want) {
		t.Errorf("limits of ages have changed in %q, want %q", limits, want)
	}
	for _, example := range []string{" for: 5000ms\n", "[25000ms]", "_seconds) > 25\n", "> 2 * 86400\n",
		"berth_scheduler_feed_lag_seconds) > 5\n", `{state="unresolved"}) > 50` + "\n"} {
		if !strings.Contains(got, example) {
			t.Errorf("the rules lack %q", example)
		}
	}
	checkRules(t, got)
}

// checkRules lets promtool read the rules.
func checkRules(t testing.TB, rules string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Fatal("promtool is missing: run scripts/setup.sh test, or apt-get install prometheus")
	}
	if out, err := exec.CommandContext(t.Context(), promtool, "check", "rules", file).CombinedOutput(); err != nil {
		t.Errorf("promtool: %v: %s", err, out)
	}
}
