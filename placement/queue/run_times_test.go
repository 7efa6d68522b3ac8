package queue_test

import (
	"testing"
	"time"

	"berth/placement/queue"
)

var noon = time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)

// like returns a job of tenant a that was submitted so long after noon.
func like(name string, after time.Duration) queue.Like {
	return queue.Like{Tenant: "a", Name: name, Data: "image", Class: "c", GPUs: 1, SubmittedAt: noon.Add(after)}
}

func TestRunTimesComeFromTheMostSimilarJobs(t *testing.T) {
	t.Parallel()
	h := queue.NewRunTimes()
	add := func(k queue.Like, minutes ...int) {
		for _, m := range minutes {
			h.Add(k, time.Duration(m)*time.Minute)
		}
	}
	other := like("x", 0)
	other.Tenant, other.Data = "b", "other"
	add(other, 1000, 1000, 1000)
	wide := like("wide", 0)
	wide.GPUs, wide.Data, wide.Class = 8, "wide image", "d"
	add(wide, 500, 500, 500)
	add(like("train", 0), 10, 20, 30)
	add(like("train", 5*time.Hour), 40, 50, 60, 70)
	for _, c := range []struct {
		is      string
		like    queue.Like
		ran     time.Duration
		level   queue.Level
		samples int
		median  time.Duration
	}{
		{"submitted with others of its name", like("train", time.Minute), 0, queue.Near, 3, 20 * time.Minute},
		{"of a name", like("train", 24*time.Hour), 0, queue.SameName, 7, 40 * time.Minute},
		{"of a new name with an old image", like("eval", 24*time.Hour), 0, queue.SameData, 7, 40 * time.Minute},
		{"of a new name and image", queue.Like{Tenant: "a", Name: "eval", Data: "new", Class: "c", GPUs: 1, SubmittedAt: noon.Add(24 * time.Hour)},
			0, queue.SameShape, 7, 40 * time.Minute},
		{"of a new shape", queue.Like{Tenant: "a", GPUs: 2, SubmittedAt: noon}, 0, queue.SameTenant, 10, 60 * time.Minute},
		{"of a new tenant", queue.Like{Tenant: "c", GPUs: 1, SubmittedAt: noon}, 0, queue.AllJobs, 13, 70 * time.Minute},
		{"that has run longer than near ones", like("train", time.Minute), 35 * time.Minute, queue.SameName, 4, 60 * time.Minute},
		{"that has run longer than all", like("train", time.Minute), 2000 * time.Minute, queue.AllJobs, 0, 4000 * time.Minute},
	} {
		p := h.Of(c.like, c.ran)
		if p.Level != c.level || p.Samples != c.samples || p.Quantile(0.5) != c.median {
			t.Errorf("a job %s: level %s, %d samples, median %s; want %s, %d, %s", c.is, p.Level, p.Samples, p.Quantile(0.5),
				c.level, c.samples, c.median)
		}
	}
	var none *queue.RunTimes
	if p := none.Of(like("train", 0), 0); p.Known() || p.Parts() != nil || p.Quantile(0.9) != 0 {
		t.Errorf("without jobs: %+v", p)
	}
}

// The parts of a distribution keep its mean: a queue of many jobs takes as long as they run.
func TestPartsKeepTheMean(t *testing.T) {
	t.Parallel()
	h := queue.NewRunTimes()
	for i := 1; i <= 100; i++ {
		h.Add(like("train", 0), time.Duration(i*i)*time.Second)
	}
	p := h.Of(like("train", 0), 0)
	sum := time.Duration(0)
	for i, part := range p.Parts() {
		if i > 0 && part < p.Parts()[i-1] {
			t.Errorf("parts are not in order: %v", p.Parts())
		}
		sum += part
	}
	mean := sum / time.Duration(len(p.Parts()))
	if off := mean - p.Mean(); max(off, -off) > p.Mean()/50 || p.Mean() != 3383500*time.Millisecond {
		t.Errorf("mean of parts %s, mean %s", mean, p.Mean())
	}
	if p.Quantile(0.9) != 8281*time.Second {
		t.Errorf("90th percentile %s", p.Quantile(0.9))
	}
}

// The confidence follows from the properties in common, the number of jobs and their spread.
func TestConfidenceOfRunTimes(t *testing.T) {
	t.Parallel()
	h := queue.NewRunTimes()
	add := func(name string, n int, of func(i int) time.Duration) {
		for i := range n {
			k := like(name, 0)
			k.Data = name
			h.Add(k, of(i))
		}
	}
	add("steady", 20, func(i int) time.Duration { return time.Hour + time.Duration(i)*time.Minute })
	add("spread", 20, func(i int) time.Duration { return time.Duration(i*i+1) * time.Minute })
	add("few", 3, func(int) time.Duration { return time.Hour })
	for name, want := range map[string]queue.Confidence{"steady": queue.High, "spread": queue.Medium, "few": queue.Medium, "new": queue.Low} {
		k := like(name, 24*time.Hour)
		k.Data = name
		if got := h.Of(k, 0).Confidence(); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if got := (queue.Prediction{}).Confidence(); got != "" {
		t.Errorf("nothing is known with confidence %q", got)
	}
}

// Old run times give way to new ones.
func TestRunTimesForget(t *testing.T) {
	t.Parallel()
	h := queue.NewRunTimes()
	for range 300 {
		h.Add(like("train", 0), time.Minute)
	}
	for range 256 {
		h.Add(like("train", 0), time.Hour)
	}
	if got := h.Of(like("train", 0), 0); got.Samples != 256 || got.Quantile(0) != time.Hour {
		t.Errorf("%d samples from %s on", got.Samples, got.Quantile(0))
	}
}
