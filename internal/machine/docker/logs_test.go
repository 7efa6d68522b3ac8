package docker

import (
	"slices"
	"testing"
	"time"

	"berth/activities/node"
)

// feed plays frames of stdout (o) and stderr (e) through a reader.
func feed(t *testing.T, r *logReader, frames ...string) {
	t.Helper()
	r.last, r.again = time.Time{}, 0
	streams := map[byte]*logStream{'o': {r: r}, 'e': {r: r, stderr: true}}
	for _, f := range frames {
		if _, err := streams[f[0]].Write([]byte("2026-01-01T00:00:" + f[2:] + "\n")); err != nil {
			t.Fatal(err)
		}
	}
}

func reader() (*logReader, *[]string) {
	var got []string
	return &logReader{emit: func(l node.LogLine) error {
		got = append(got, l.At.Format("05.0 ")+l.Text)
		return nil
	}}, &got
}

func want(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestStampsNeverFall(t *testing.T) {
	t.Parallel()
	r, got := reader()
	feed(t, r, "o 01.0Z a", "e 03.0Z b", "o 02.9Z c", "o 04.0Z d")
	want(t, *got, "01.0 a", "03.0 b", "03.0 c", "04.0 d")

	r, got = reader()
	r.since = time.Date(2026, 1, 1, 0, 0, 3, 0, time.UTC)
	feed(t, r, "e 03.0Z b", "o 02.9Z c", "o 04.0Z d") // the result of a read since 3 s
	want(t, *got, "03.0 b", "03.0 c", "04.0 d")
}

func TestNextStreamGoesOnWhereTheLastEnded(t *testing.T) {
	t.Parallel()
	r, got := reader()
	feed(t, r, "o 01.0Z a", "o 02.0Z b", "e 02.0Z c")
	feed(t, r, "o 01.0Z a", "o 02.0Z b", "e 02.0Z c", "e 02.0Z d", "o 03.0Z e")
	feed(t, r, "e 02.0Z d", "o 03.0Z e")
	want(t, *got, "01.0 a", "02.0 b", "02.0 c", "02.0 d", "03.0 e")
}

func TestLinesSentAgainAreDropped(t *testing.T) {
	t.Parallel()
	r, got := reader()
	feed(t, r, "o 01.0Z a", "e 01.5Z x", "o 02.0Z b", "o 01.0Z a", "o 02.0Z b", "e 01.5Z x", "o 03.0Z c")
	want(t, *got, "01.0 a", "01.5 x", "02.0 b", "03.0 c")
}

func TestClockSetBackLosesNoLines(t *testing.T) {
	t.Parallel()
	r, got := reader()
	feed(t, r, "o 10.0Z a", "o 11.0Z b", "o 02.0Z c", "o 03.0Z d", "o 12.0Z e")
	want(t, *got, "10.0 a", "11.0 b", "11.0 c", "11.0 d", "12.0 e")
}
