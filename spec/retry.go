package spec

import (
	"fmt"
	"hash/fnv"
	"math"
	"strconv"
	"strings"
	"time"

	"berth"
)

// RetryPolicy bounds and delays further runs after failures by the job's own fault.
// Failures of machines have a budget of their own; see package failure.
type RetryPolicy struct {
	MaxAttempts int         `json:"max_attempts,omitempty" zero:"1 to 100" doc:"runs, with the first; default 1"`
	Backoff     Backoff     `json:"backoff,omitzero" doc:"wait before the next run"`
	Rules       []RetryRule `json:"rules,omitempty" doc:"actions by exit code; the first match wins"`
	OnOOM       string      `json:"on_oom,omitempty" doc:"fail, or grow: one more run with 1.5 times the memory"`
	OnTimeLimit string      `json:"on_time_limit,omitempty" doc:"fail (default), or requeue after a new checkpoint"`
	MaxRequeues int         `json:"max_requeues,omitempty" zero:"1 to 1000" doc:"most requeues (default 10)"`
}

// OnTimeLimitRequeue is the value of OnTimeLimit with which a job that reaches its time limit
// runs again from its newest checkpoint, without a charge to MaxAttempts. The job fails instead
// if the attempt has stored no new checkpoint, or after Requeues requeues.
const OnTimeLimitRequeue = "requeue"

// Requeues returns the number of requeues at the time limit that a job may have.
func (r RetryPolicy) Requeues() int {
	switch {
	case r.OnTimeLimit != OnTimeLimitRequeue:
		return 0
	case r.MaxRequeues == 0:
		return DefaultMaxRequeues
	default:
		return r.MaxRequeues
	}
}

// RetryRule overrides the policy for some exit codes.
type RetryRule struct {
	ExitCodes ExitCodes `json:"exit_codes" doc:"such as 42,100-110"`
	Action    string    `json:"action" doc:"retry, retry_elsewhere or fail"`
}

// ExitCodes is a set of exit codes in the form 42,100-110.
type ExitCodes string

// Contains reports whether code is in the set.
func (e ExitCodes) Contains(code int) bool {
	for part := range strings.SplitSeq(string(e), ",") {
		if lo, hi, err := exitRange(part); err == nil && lo <= code && code <= hi {
			return true
		}
	}
	return false
}

// UnmarshalJSON accepts the form of ParseExitCodes and a bare number: exit_codes: 42.
func (e *ExitCodes) UnmarshalJSON(b []byte) error {
	v, err := ParseExitCodes(unquote(b))
	if err != nil {
		return err
	}
	*e = v
	return nil
}

// ParseExitCodes checks the syntax and the range 1 to 255. Exit code 0 is success, for
// which no rule applies.
func ParseExitCodes(s string) (ExitCodes, error) {
	for part := range strings.SplitSeq(s, ",") {
		lo, hi, err := exitRange(part)
		if err != nil || lo < 1 || hi > 255 || lo > hi {
			return "", fmt.Errorf("exit codes %q: write numbers and ranges from 1 to 255, such as 42,100-110", s)
		}
	}
	return ExitCodes(s), nil
}

// exitRange parses one exit code or one range.
func exitRange(part string) (lo, hi int, err error) {
	from, to, ranged := strings.Cut(strings.TrimSpace(part), "-")
	if lo, err = strconv.Atoi(from); err != nil || !ranged {
		return lo, lo, err
	}
	hi, err = strconv.Atoi(to)
	return lo, hi, err
}

// Actions of a retry rule.
const (
	ActionRetry          = "retry"
	ActionRetryElsewhere = "retry_elsewhere"
	ActionFail           = "fail"
)

// Backoff determines the wait before the next run. The end of the wait is stored in the
// job's row (eligible_at), so a waiting job needs no timer.
type Backoff struct {
	Initial Duration `json:"initial,omitempty" zero:"more than 0s, at most max; default 10s" doc:"first wait"`
	Factor  float64  `json:"factor,omitempty" zero:"1 to 10; default 2" doc:"growth of the wait per run"`
	Max     Duration `json:"max,omitempty" zero:"initial to 24h; default 10m" doc:"longest wait"`
}

// withDefaults fills in unset fields. The default of Max is at least Initial, so that a
// long Initial alone is valid.
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
// initial × factor^(n-1), with a jitter of ±50 %, at most max. The jitter depends
// only on the job and n, so that every process computes the same time.
func (b Backoff) Delay(id berth.JobID, n int) time.Duration {
	d := float64(b.Initial) * math.Pow(b.Factor, float64(max(n, 1)-1))
	d = math.Min(d, float64(b.Max))
	h := fnv.New64a()
	_, _ = h.Write([]byte(id))
	_, _ = h.Write([]byte{byte(n), byte(n >> 8)})
	jitter := 0.5 + float64(h.Sum64()%1000)/1000
	return time.Duration(math.Min(d*jitter, float64(b.Max)))
}
