package berth_test

import (
	"os/exec"
	"strings"
	"testing"
)

// make lint checks the subjects of new commits with this script.
func TestCommitSubjectsNameAnAreaAndAnImperative(t *testing.T) {
	t.Parallel()
	good := []string{
		"db: index allocations by machine",
		"docs: describe quotas of storage",
		"api, explain: keep the count of unread answers",
		"e2e/chaos: wait less for outages",
		"cmd/berth: pass the context to each call",
		".ci: need no Docker engine",
		"README: link the guide",
		"db: " + strings.Repeat("x", 68),
	}
	bad := map[string]string{
		"index allocations by machine":                     `want "area: imperative"`,
		"db:index allocations":                             `want "area: imperative"`,
		"two words: index allocations":                     `want "area: imperative"`,
		"db: ":                                             `want "area: imperative"`,
		"Merge branch 'scratch' into main":                 `want "area: imperative"`,
		"db: index allocations by machine.":                "full stop",
		"db: Index allocations by machine":                 "capital letter",
		"db: indexes allocations by machine":               "imperative: indexes",
		"db: indexed allocations by machine":               "imperative: indexed",
		"db: indexing of allocations":                      "imperative: indexing",
		"db: " + strings.Repeat("x", 69):                   "has 73 characters",
		"db: ü" + strings.Repeat("x", 68):                  "has 73 characters",
		"db: index allocations, since a machine polls its": "",
	}
	for _, subject := range good {
		if out, err := checkSubject(subject); err != nil {
			t.Errorf("%q: %v\n%s", subject, err, out)
		}
	}
	for subject, want := range bad {
		out, err := checkSubject(subject)
		if want == "" {
			if err != nil {
				t.Errorf("%q: %v\n%s", subject, err, out)
			}
			continue
		}
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("%q: %v, %q; want an error with %q", subject, err, out, want)
		}
	}
	if out, err := checkSubject(strings.Join(good, "\n")); err != nil {
		t.Errorf("all good subjects together: %v\n%s", err, out)
	}
	if _, err := checkSubject(good[0] + "\nfixed it\n" + good[1]); err == nil {
		t.Error("a bad subject between good ones is accepted")
	}
}

func checkSubject(subject string) (string, error) {
	cmd := exec.Command("scripts/commit-subjects.sh", "-")
	cmd.Stdin = strings.NewReader(subject + "\n")
	out, err := cmd.CombinedOutput()
	return string(out), err
}
