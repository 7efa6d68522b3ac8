package berth_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The race detector needs a build of its own of everything that a test links. The embedded Temporal server and the SDKs
// of clouds are half of all packages, so one program that links them and is built with the race detector adds minutes
// to the first `make test`.
func TestHeavyPackagesAreBuiltOnce(t *testing.T) {
	t.Parallel()
	script, err := os.ReadFile("scripts/test.sh")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^plain='(.+)'$`).FindSubmatch(script)
	if line == nil {
		t.Fatal("scripts/test.sh does not name the packages that it tests without the race detector")
	}
	plain, err := regexp.Compile(string(line[1]))
	if err != nil {
		t.Fatal(err)
	}
	heavy := []string{
		"go.temporal.io/server/temporal",
		"github.com/aws/aws-sdk-go-v2/service/ec2",
		"cloud.google.com/go/compute/apiv1",
	}
	found := map[string]bool{}
	for _, p := range listPackages(t, "./...") {
		for _, h := range heavy {
			if !slices.Contains(p.Deps, h) {
				continue
			}
			found[h] = true
			if !plain.MatchString(p.ImportPath) {
				t.Errorf("%s links %s, and scripts/test.sh builds it with the race detector: add it to `plain`",
					p.ImportPath, h)
			}
		}
	}
	for _, h := range heavy {
		if !found[h] {
			t.Errorf("no package links %s: the search is broken, or the list here is old (%s)",
				h, strings.Join(heavy, ", "))
		}
	}
}
