package berth

import (
	"hash/fnv"
	"math"
	"time"
)

// Backoff is how long to wait before the next run. Waiting happens in the row
// (eligible_at), so it costs no timer.
type Backoff struct {
	Initial Duration `json:"initial,omitempty" zero:"more than 0s, at most max; leave it out for 10s" doc:"first wait"`
	Factor  float64  `json:"factor,omitempty" zero:"1 to 10; leave it out for 2" doc:"growth of the wait per run"`
	Max     Duration `json:"max,omitempty" zero:"initial to 24h; leave it out for 10m" doc:"longest wait"`
}

// infraBackoff spaces retries that the machine is to blame for.
var infraBackoff = Backoff{Initial: Duration(10 * time.Second), Factor: 2, Max: Duration(10 * time.Minute)}

func (b Backoff) withDefaults() Backoff {
	if b.Initial == 0 {
		b.Initial = Duration(10 * time.Second)
	}
	if b.Factor == 0 {
		b.Factor = 2
	}
	if b.Max == 0 {
		b.Max = max(Duration(10*time.Minute), b.Initial)
	}
	return b
}

// Delay returns the wait before the run that follows the n-th failure (from 1):
// initial x factor^(n-1), at most max, with a jitter of +-50 % that depends
// only on the job and n, so that every process computes the same time.
func (b Backoff) Delay(id JobID, n int) time.Duration {
	d := float64(b.Initial) * math.Pow(b.Factor, float64(max(n, 1)-1))
	d = math.Min(d, float64(b.Max))
	h := fnv.New64a()
	_, _ = h.Write([]byte(id))
	_, _ = h.Write([]byte{byte(n), byte(n >> 8)})
	jitter := 0.5 + float64(h.Sum64()%1000)/1000
	return time.Duration(math.Min(d*jitter, float64(b.Max)))
}
