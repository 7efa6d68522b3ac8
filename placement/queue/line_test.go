package queue

import (
	"fmt"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"berth"
	"berth/placement/cluster"
)

// TestStandsOrderAsTheirJobsDo: what lines are sorted by says the same as their
// first jobs do.
func TestStandsOrderAsTheirJobsDo(t *testing.T) {
	t.Parallel()
	draw := func(t *rapid.T) stand {
		e := &Entry{
			Class: &cluster.Class{Number: rapid.IntRange(0, 5).Draw(t, "class")},
			Band:  rapid.SampledFrom([]int32{math.MinInt32, -1, 0, 1, 7, math.MaxInt32}).Draw(t, "band"),
			Rank:  rapid.SampledFrom([]float64{math.Inf(-1), -3e9, -1, math.Copysign(0, -1), 0, 1e-300, 5, math.Inf(1)}).Draw(t, "rank"),
			Job:   Job{ID: berth.JobID(fmt.Sprint(rapid.IntRange(0, 3).Draw(t, "id")))},
		}
		e.Overdue = rapid.Bool().Draw(t, "overdue")
		e.submitted = rapid.SampledFrom([]time.Duration{-time.Hour, -1, 0, 1, time.Hour}).Draw(t, "submitted")
		s := standOf(e)
		if s.class() != e.Class.Number {
			t.Fatalf("class %d is told as %d", e.Class.Number, s.class())
		}
		s.line = &Line{head: e}
		return s
	}
	sign := func(n int) int { return min(1, max(-1, n)) }
	rapid.Check(t, func(t *rapid.T) {
		a, b := draw(t), draw(t)
		want := 0
		switch x, y := int64(a.line.head.Band), int64(b.line.head.Band); {
		case x > y:
			want = -1
		case x < y:
			want = 1
		default:
			want = sign(CompareEntries(a.line.head, b.line.head))
		}
		if got := sign(compareStands(a, b)); got != want {
			t.Fatalf("%+v and %+v compare as %d, want %d", a.line.head, b.line.head, got, want)
		}
	})
}
