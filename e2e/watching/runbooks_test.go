package watching_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"berth/db/dbtest"
)

// Each alert has a runbook under its own heading, with five parts in their order, and each runbook
// belongs to an alert. The commands are held by a test of all pages in cmd/berth.
func TestEachAlertHasARunbook(t *testing.T) {
	t.Parallel()
	parts := []string{"Meaning", "Impact", "Diagnosis", "Mitigation", "Verification"}
	left := map[string]bool{}
	for _, r := range readRules(t) {
		left[r.Alert] = true
	}
	for _, section := range strings.Split(textOf(t, runbooks), "\n### ")[1:] {
		name, body, _ := strings.Cut(section, "\n")
		body, _, _ = strings.Cut(body, "\n## ")
		if !left[name] {
			t.Errorf("the runbook %s belongs to no alert, or is there twice", name)
		}
		delete(left, name)
		at := 0
		for _, part := range parts {
			i := strings.Index(body, "**"+part+".** ")
			if i < at || i > 0 && body[i-1] != '\n' {
				t.Errorf("%s has no part %s at its place", name, part)
			}
			at = i
		}
		if n := strings.Count(body, ".** "); n != len(parts) {
			t.Errorf("%s has %d parts; want %d", name, n, len(parts))
		}
	}
	for name := range left {
		t.Errorf("%s has no runbook in docs/operate/alerts.md", name)
	}
}

// A statement of a runbook that fails costs time when there is none: each runs on the schema, and
// only reads.
func TestStatementsOfTheRunbooksRun(t *testing.T) {
	t.Parallel()
	pool := dbtest.New(t)
	blocks := regexp.MustCompile("(?ms)^```sql\n(.*?)^```$").FindAllStringSubmatch(textOf(t, runbooks), -1)
	if len(blocks) < 3 {
		t.Fatalf("found %d statements; want at least 3: the search is broken", len(blocks))
	}
	for _, block := range blocks {
		tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{AccessMode: pgx.ReadOnly})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), block[1]); err != nil {
			t.Errorf("%v\n%s", err, block[1])
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
