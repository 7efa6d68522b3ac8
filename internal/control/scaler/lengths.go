package scaler

import (
	"hash/fnv"
	"math"
	"slices"
	"strconv"
	"time"

	"berth"
)

// Lengths predicts run times from jobs that have ended, for jobs without a declared run time.
// The zero value knows no job.
type Lengths struct {
	// Prior is the mean run time before any job has ended; it counts as much as priorJobs jobs.
	Prior time.Duration
	ended []time.Duration // sorted
	sum   time.Duration
}

const (
	// priorJobs is the number of ended jobs that the prior weighs as much as.
	priorJobs = 10
	// leastLike is the number of ended jobs below which a prediction rests on the mean alone.
	leastLike = 10
)

// Ended adds a job that ran to its end.
func (l *Lengths) Ended(ran time.Duration) {
	i, _ := slices.BinarySearch(l.ended, ran)
	l.ended = slices.Insert(l.ended, i, ran)
	l.sum += ran
}

// Mean returns the expected run time of a new job.
func (l *Lengths) Mean() time.Duration {
	return (l.sum + priorJobs*l.Prior) / time.Duration(len(l.ended)+priorJobs)
}

// Left returns the time that a job still runs after ran, in one of the possible futures. The futures
// of a job are draws from the jobs that ran at least as long; with fewer than leastLike of these, they are
// draws from an exponential distribution with the mean of all jobs.
func (l *Lengths) Left(job berth.JobID, ran time.Duration, future int) time.Duration {
	u := Draw(job, future)
	i, _ := slices.BinarySearch(l.ended, ran)
	if n := len(l.ended) - i; n >= leastLike {
		return max(time.Second, l.ended[i+int(u*float64(n))]-ran)
	}
	return time.Duration(-math.Log(1-u) * float64(l.Mean()))
}

// Draw returns a number from 0 to 1 that depends on the job and the future alone. So decisions are
// reproducible, and a job keeps its place in the distribution from one decision to the next.
func Draw(job berth.JobID, future int) float64 {
	h := fnv.New64a()
	h.Write([]byte(job))                        //nolint:errcheck // never fails
	h.Write([]byte("/" + strconv.Itoa(future))) //nolint:errcheck // never fails
	x := h.Sum64()
	x ^= x >> 33 // FNV leaves the high bits of short texts alike
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	x ^= x >> 33
	return float64(x>>11) / (1 << 53)
}
