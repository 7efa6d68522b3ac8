package api

import (
	"errors"
	"math"
	"runtime"
	"strings"
	"testing"

	"berth"
	"berth/spec"
)

// A tenant that may send bodies of 1 MiB must not keep a core busy with their levels: the bytes that the decoder reads
// and the bytes that it allocates do not grow with the depth. The test is not parallel, since it reads the allocations
// of the process.
func TestDeepBodiesCostAsMuchAsFlatOnes(t *testing.T) {
	name := strings.Repeat("x", 1<<20)
	cost := func(levels int) (read, allocated int) {
		text := strings.Repeat(`{"jobs":{"a":`, levels) + `{"name":"` + name + `"}` + strings.Repeat(`}}`, levels)
		allocated = math.MaxInt
		for range 5 { // other goroutines allocate too
			d, v := &decoder{text: []byte(text)}, spec.Pipeline{}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			d.decode(&v)
			runtime.ReadMemStats(&after)
			if len(d.faults) > 0 {
				t.Fatal(d.faults)
			}
			read, allocated = d.passed, min(allocated, int(after.TotalAlloc-before.TotalAlloc))
		}
		return read, allocated
	}
	const levels = maxDepth/2 - 2
	flatRead, flatAllocated := cost(1)
	read, allocated := cost(levels)
	if most := flatRead + 100*levels; flatRead < len(name) || read > most {
		t.Errorf("a body of %d levels: %d bytes of texts are read, want at most %d; with 1 level %d", levels, read, most, flatRead)
	}
	if most := flatAllocated + len(name)/2; allocated > most {
		t.Errorf("a body of %d levels: %d bytes are allocated, want at most %d; with 1 level %d", levels, allocated, most, flatAllocated)
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
