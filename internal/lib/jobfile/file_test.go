package jobfile_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/internal/lib/golden"
	"berth/internal/lib/jobfile"
	"berth/spec"
)

// Each file of testdata/faults is a wrong job file; its .txt is the user's error text.
func TestGoldenFaultsSayWhereWhatAndWhatIsAllowed(t *testing.T) {
	t.Parallel()
	names, err := filepath.Glob("testdata/faults/*.*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, ".txt") {
			continue
		}
		t.Run(filepath.Base(name), func(t *testing.T) {
			t.Parallel()
			_, err := jobfile.Parse(filepath.Base(name), read(t, name))
			if err == nil {
				t.Fatal("a wrong file was read without an error")
			}
			golden.Check(t, strings.TrimSuffix(name, filepath.Ext(name))+".txt", err.Error()+"\n")
		})
	}
}

// Each file of testdata/good is right; its .json is the spec it means.
func TestGoldenFilesMeanWhatTheySay(t *testing.T) {
	t.Parallel()
	names, err := filepath.Glob("testdata/good/*.yaml")
	if err != nil || len(names) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, name := range names {
		t.Run(filepath.Base(name), func(t *testing.T) {
			t.Parallel()
			f, err := jobfile.Parse(filepath.Base(name), read(t, name))
			if err != nil {
				t.Fatal(err)
			}
			b, err := json.MarshalIndent(f.Spec, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			golden.Check(t, strings.TrimSuffix(name, ".yaml")+".json", string(b)+"\n")
			again, err := jobfile.Parse("spec.json", b)
			if err != nil {
				t.Fatalf("its JSON form is refused: %v", err)
			}
			if diff := cmp.Diff(f.Spec, again.Spec); diff != "" {
				t.Errorf("its JSON form means something else (-yaml +json):\n%s", diff)
			}
		})
	}
}

func TestTextStaysAsWritten(t *testing.T) {
	t.Parallel()
	f, err := jobfile.Parse("job.yaml", []byte("name: 2024\nimage: 3.10\ncommand: [sleep, 08, true, 1_000, 0x1F, 1e-3, .5, \"~\"]\nenv: {A: 20, ON: yes, B: 1.50, C: TRUE, D: 2024-01-01, E: 1:30, F: \"null\", G: .inf, H: +5}\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := spec.Job{
		Name: "2024", Image: "3.10",
		Command: []string{"sleep", "08", "true", "1_000", "0x1F", "1e-3", ".5", "~"},
		Env:     map[string]string{"A": "20", "ON": "yes", "B": "1.50", "C": "TRUE", "D": "2024-01-01", "E": "1:30", "F": "null", "G": ".inf", "H": "+5"},
	}
	if diff := cmp.Diff(want, f.Spec); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestGoldenServerFaultsPointIntoTheFile(t *testing.T) {
	t.Parallel()
	f, err := jobfile.Parse("job.yaml", []byte("name: a\nimage: b\nplacement:\n  constraint: 'machine.foo == 1'\n"))
	if err != nil {
		t.Fatal(err)
	}
	got := f.Locate([]berth.FieldError{
		{Field: "placement.constraint", Detail: "machine has no field foo", Allowed: "labels, region"},
		{Field: "resources.gpus", Detail: "no machine has a GPU", Allowed: "0"},
	}).Error()
	golden.Check(t, "testdata/server.txt", got+"\n")
}

func TestFilesThatAreNoText(t *testing.T) {
	t.Parallel()
	for what, src := range map[string]string{
		"too large": strings.Repeat("#", jobfile.MaxBytes+1),
		"not UTF-8": "name: \xff",
		"NUL":       "name: a\x00",
		"empty":     "# nothing but a comment\n",
		"too deep":  "command: " + strings.Repeat("[", 1<<16),
		"lines":     strings.Repeat("a: 1\n", 20_000),
		"dashes":    strings.Repeat("- ", 1<<16),
	} {
		_, err := jobfile.Parse("job.yaml", []byte(src))
		var e *jobfile.Error
		if !errors.As(err, &e) || len(e.Faults) != 1 {
			t.Errorf("%s: got %v", what, err)
		}
	}
}

// A short file must not be able to ask for much work.
func TestAliasBombsAreRefused(t *testing.T) {
	t.Parallel()
	maps := "array: {each: [&m {" + strings.Repeat("A: 1, ", 0)
	for i := range 2000 {
		maps += "K" + strings.Repeat("x", i%7) + string(rune('a'+i%26)) + strings.Repeat("y", i/182) + ": 1, "
	}
	maps += "}" + strings.Repeat(", *m", 5000) + "]}\nname: a\nimage: b\n"
	_, err := jobfile.Parse("bomb.yaml", []byte(maps))
	if err == nil || !strings.Contains(err.Error(), "with its aliases") {
		t.Errorf("got %.200v", err)
	}
}

func TestCheckNamesFieldsWithoutAFile(t *testing.T) {
	t.Parallel()
	err := jobfile.Check(spec.Job{Name: "A", Image: "b"})
	want := `name: "A" is not a valid name (allowed: 1 to 63 of a-z, 0-9 and '-', not at either end)`
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	if err := jobfile.Check(spec.Job{Name: "a", Image: "b"}); err != nil {
		t.Error(err)
	}
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
