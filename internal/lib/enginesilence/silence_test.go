package enginesilence_test

import (
	"testing"
	"time"

	"berth"
	"berth/internal/lib/enginesilence"
)

func TestTextNamesThreeMachinesAtMost(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 31, 10, 2, 0, 0, time.UTC)
	var list []enginesilence.Machine
	for i, id := range []berth.MachineID{"m1", "m2", "m3", "m4", "m5"} {
		list = append(list, enginesilence.Machine{ID: id, Since: at.Add(-time.Duration(i) * time.Minute)})
	}
	for n, want := range map[int]string{
		1: "the container engine of machine m1 has not answered since 2026-01-31T10:02:00Z",
		2: "the container engines of machines m1 and m2 have not answered, the first since 2026-01-31T10:01:00Z",
		3: "the container engines of machines m1, m2 and m3 have not answered, the first since 2026-01-31T10:00:00Z",
		4: "the container engines of machines m1, m2, m3 and 1 more have not answered, the first since 2026-01-31T09:59:00Z",
		5: "the container engines of machines m1, m2, m3 and 2 more have not answered, the first since 2026-01-31T09:58:00Z",
	} {
		if got := enginesilence.Text(list[:n]); got != want {
			t.Errorf("%d machines: %q, want %q", n, got, want)
		}
	}
}

func TestParseReadsWhatFormatWrites(t *testing.T) {
	t.Parallel()
	for silent, want := range map[time.Duration]time.Duration{
		1: time.Second, 1500 * time.Millisecond: time.Second, time.Hour: time.Hour, 1 << 62: 365 * 24 * time.Hour,
	} {
		if got, err := enginesilence.Parse(enginesilence.Format(silent)); err != nil || got != want {
			t.Errorf("%s: got %s, %v; want %s", silent, got, err, want)
		}
	}
	for _, wrong := range []string{"0", "-1", "1.5", "soon", "31536001", "99999999999999999999"} {
		if got, err := enginesilence.Parse(wrong); berth.CodeOf(err) != berth.CodeInvalid || got != 0 {
			t.Errorf("%q: got %s, %v", wrong, got, err)
		}
	}
}
