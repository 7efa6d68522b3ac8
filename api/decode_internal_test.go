package api

import (
	"errors"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/spec"
)

// A tenant that may send bodies of 1 MiB must not keep a core busy with their levels.
func TestDeepBodiesAreReadAsFastAsFlatOnes(t *testing.T) {
	t.Parallel()
	name := strings.Repeat("x", 1<<20)
	body := func(levels int) []byte {
		return []byte(strings.Repeat(`{"jobs":{"a":`, levels) + `{"name":"` + name + `"}` + strings.Repeat(`}}`, levels))
	}
	fastest := func(body []byte) time.Duration {
		least := time.Hour
		for range 10 {
			var v spec.Pipeline
			began := time.Now()
			if _, err := decode("application/json", body, &v); err != nil {
				t.Fatal(err)
			}
			least = min(least, time.Since(began))
		}
		return least
	}
	flat, deep := fastest(body(1)), fastest(body(maxDepth/2-2))
	if deep > 5*flat {
		t.Errorf("a body of %d levels is read in %s, and one of the same length with 1 level in %s", maxDepth/2-2, deep, flat)
	}
}

// The rest of a body with more faults than an answer shows is not read.
func TestABodyOfFaultsIsReadUpToTheLastOneThatIsShown(t *testing.T) {
	t.Parallel()
	var v spec.Job
	body := `{"command":[` + strings.Repeat(`null,`, 2*maxFaults) + `"x"],"name":"late"}`
	faults, err := decode("application/json", []byte(body), &v)
	if err != nil || len(faults) != maxFaults || v.Name != "" {
		t.Errorf("%d faults, %v; the name %q is read", len(faults), err, v.Name)
	}
}

func TestAJobThatIsTooLongIsNotRead(t *testing.T) {
	t.Parallel()
	body := []byte(`{"name":1,"env":{"A":"` + strings.Repeat("x", spec.MaxSpecBytes)) // no JSON, which only a reader finds
	_, err := readSpec(Request{ContentType: "application/json", RawBody: body})
	e, ok := errors.AsType[*berth.Error](err)
	if !ok || e.Slug != berth.SlugInvalidSpec || len(e.Fields) != 1 || !strings.Contains(e.Fields[0].Detail, "bytes") {
		t.Errorf("%+v", err)
	}
}
