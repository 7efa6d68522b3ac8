package jobfile_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/lib/jobfile"
)

// Any bytes are a valid spec that survives JSON, or an error that points into the
// text.
func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"testdata/faults/*.yaml", "testdata/faults/*.json", "testdata/good/*.yaml"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			f.Fatal(err)
		}
		for _, name := range names {
			b, err := os.ReadFile(name)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		file, err := jobfile.Parse("job.yaml", src)
		if err != nil {
			var e *jobfile.Error
			if !errors.As(err, &e) || len(e.Faults) == 0 || e.Error() == "" {
				t.Fatalf("an error without a fault: %#v", err)
			}
			return
		}
		if faults := file.Spec.WithDefaults().Validate(); faults != nil {
			t.Fatalf("an invalid spec was read: %v", faults)
		}
		b, err := json.Marshal(file.Spec)
		if err != nil {
			t.Fatal(err)
		}
		again, err := jobfile.Parse("job.json", b)
		if err != nil {
			t.Fatalf("%s\n%v", b, err)
		}
		c, err := json.Marshal(again.Spec)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(b), string(c)); diff != "" {
			t.Fatal(diff)
		}
	})
}
