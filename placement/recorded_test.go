package placement_test

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"berth/internal/lib/golden"
)

// recordedClusters is the number of drawn clusters whose plans are recorded, and
// recordedPlans the number of consecutive plans of each.
const (
	recordedClusters = 160
	recordedPlans    = 6
)

// TestPlansAreAsRecorded compares the hashes of whole plans with those in
// testdata/plans.sha256. The clusters cover every order, gangs, quotas, data,
// preemption and reserved starts. A change of structure must leave the file
// alone; a change of policy records new hashes with -update and explains why.
func TestPlansAreAsRecorded(t *testing.T) {
	t.Parallel()
	file := filepath.Join("testdata", "plans.sha256")
	var got strings.Builder
	for seed := range recordedClusters {
		fmt.Fprintf(&got, "%s %d\n", recordedHash(t, seed), seed)
	}
	if golden.Updating() {
		golden.Write(t, file, got.String())
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(strings.NewReader(got.String()))
	for i, w := range strings.Split(strings.TrimSpace(string(want)), "\n") {
		if !lines.Scan() || lines.Text() != w {
			t.Errorf("the plans of cluster %d are not as recorded", i)
		}
	}
}

// recordedHash is the hash of the plans and explanations of one drawn cluster.
func recordedHash(t *testing.T, seed int) string {
	t.Helper()
	c := rapid.Custom(drawCluster).Example(seed)
	c.planner.Explain, c.planner.Demand = seed%2 == 0, seed%3 == 0
	c.load()
	sum := sha256.New()
	record := json.NewEncoder(sum)
	for range recordedPlans {
		p := c.planner.Plan(c.s, c.now)
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		// The file was recorded when the field Nominate had another name.
		sum.Write(append(bytes.Replace(text, []byte(`"Nominate":`), []byte(`"Earmark":`), 1), '\n'))
		forecast := c.planner.Forecast(c.s, c.now)
		for _, j := range c.waiting.list[:min(len(c.waiting.list), 5)] {
			if why, ok := forecast.Why(j.ID); ok {
				if err := record.Encode(why); err != nil {
					t.Fatal(err)
				}
			}
		}
		c.enact(p)
		c.pass()
	}
	return hex.EncodeToString(sum.Sum(nil)[:12])
}
