package spec_test

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"berth/spec"
)

// FuzzDuration: an accepted duration is in its range, and its text means the same duration.
func FuzzDuration(f *testing.F) {
	for _, seed := range []string{"90s", "4h", "1h30m", "0", "-1s", "87600h", "87600h1ns", "1e9h", ".5h", "1µs", "9223372036854775808ns"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, err := spec.ParseDuration(text)
		if err != nil {
			return
		}
		if d < 0 || d.Std() > 87600*time.Hour {
			t.Errorf("%q is accepted as %s, out of range", text, d)
		}
		if again, err := spec.ParseDuration(d.String()); err != nil || again != d {
			t.Errorf("%q is %s, which reads as %s, %v", text, d, again, err)
		}
		sameJSON(t, d)
	})
}

// FuzzAmounts: an accepted amount is in its range, and its text means the same amount.
func FuzzAmounts(f *testing.F) {
	for _, seed := range []string{"4GiB", "1.5GiB", "0", "1", "-1", "1EiB", "1125899906842624KiB", "0.0001MiB", "1e3", "0x10", "NaN", "inf", "1_0", " 2 GB "} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if m, err := spec.ParseMiB(text); err == nil {
			if m < 0 || m > 1<<40 {
				t.Errorf("%q is accepted as %d MiB, out of range", text, m)
			}
			if again, err := spec.ParseMiB(m.String()); err != nil || again != m {
				t.Errorf("%q is %s, which reads as %s, %v", text, m, again, err)
			}
			sameJSON(t, m)
		}
		quoted, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		var cpu spec.MilliCPU
		var gpu spec.MilliGPU
		for _, raw := range [][]byte{quoted, []byte(text)} {
			if cpu.UnmarshalJSON(raw) == nil {
				if cpu < 0 || cpu > 1e9 {
					t.Errorf("%q is accepted as %s CPUs, out of range", text, cpu)
				}
				sameJSON(t, cpu)
			}
			if gpu.UnmarshalJSON(raw) == nil {
				if gpu < 0 || gpu > 1e9 || gpu.IsShare() && gpu.Devices() != 0 {
					t.Errorf("%q is accepted as %s GPUs, out of range", text, gpu)
				}
				sameJSON(t, gpu)
			}
		}
	})
}

// sameJSON fails for a value that changes by a round through JSON.
func sameJSON[T comparable](t *testing.T, v T) {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var again T
	if err := json.Unmarshal(b, &again); err != nil || again != v {
		t.Errorf("%v is %s in JSON, which reads as %v, %v", v, b, again, err)
	}
}

// FuzzIndexes: an accepted set of indexes is small, ascending, with gaps, within the bounds of an
// array, and its text means the same set.
func FuzzIndexes(f *testing.F) {
	for _, seed := range []string{"3-7,9", "0", "9,3-7,8", "5-3", "-1", "0-9999999999999999999", " 1 - 2", "1,", "+1", "1-2-3"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		list, err := spec.ParseIndexes(text)
		if err != nil {
			return
		}
		var all []int
		for i, r := range list {
			if r.First < 0 || r.Last < r.First || r.Last >= spec.MaxArray || i > 0 && r.First <= list[i-1].Last+1 {
				t.Fatalf("%q is accepted as %v", text, list)
			}
			for n := r.First; n <= r.Last && len(all) < 1000; n++ {
				all = append(all, n)
			}
		}
		if len(all) == 1000 {
			return // enough to see; the rest takes long
		}
		again, err := spec.ParseIndexes(spec.FormatIndexes(all))
		if err != nil || !slices.Equal(again, list) {
			t.Errorf("%q is %v, which reads as %v, %v", text, list, again, err)
		}
	})
}

// FuzzInstant: an accepted time is the same after a round through its text.
func FuzzInstant(f *testing.F) {
	for _, seed := range []string{"2026-01-31T12:00:00Z", "2026-01-31T12:00:00+01:00", "2026-01-31", "9999-12-31T23:59:60Z", "2026-02-30T00:00:00Z"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		at, err := spec.ParseInstant(text)
		if err != nil {
			return
		}
		if again, err := spec.ParseInstant(at.Format(time.RFC3339Nano)); err != nil || !again.Equal(at.Time) {
			t.Errorf("%q is %s, which reads as %s, %v", text, at, again, err)
		}
	})
}
