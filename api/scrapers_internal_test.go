package api

import (
	"context"
	"testing"
	"time"

	"berth"
)

// A token that has opened the metrics opens them for scrapeMemory while the database does not answer.
// An answer that refuses the token ends that at once.
func TestScrapersOutliveTheDatabase(t *testing.T) {
	t.Parallel()
	start := time.Now()
	away := berth.Errorf(berth.CodeUnavailable, "database does not answer")
	type step struct {
		key   byte
		err   error
		after time.Duration
		open  bool
	}
	for name, steps := range map[string][]step{
		"outage":      {{1, nil, 0, true}, {1, away, time.Minute, true}, {1, context.DeadlineExceeded, time.Minute, true}},
		"long outage": {{1, nil, 0, true}, {1, away, scrapeMemory, false}},
		"renewed":     {{1, nil, 0, true}, {1, nil, time.Minute, true}, {1, away, scrapeMemory, true}},
		"never seen":  {{1, nil, 0, true}, {2, away, time.Second, false}},
		"revoked": {{1, nil, 0, true}, {1, berth.Errorf(berth.CodeUnauthorized, "revoked"), time.Second, false},
			{1, away, time.Second, false}},
		"of a user": {{1, berth.Errorf(berth.CodeForbidden, "role user"), 0, false}, {1, away, 0, false}},
		"rate":      {{1, nil, 0, true}, {1, berth.Errorf(berth.CodeCapacity, "too many guesses"), time.Second, false}},
	} {
		var s scrapers
		for i, x := range steps {
			if err := s.judge(tokenKey{x.key}, x.err, start.Add(x.after)); (err == nil) != x.open {
				t.Errorf("%s, step %d: %v", name, i, err)
			}
		}
	}
	var s scrapers
	for i := range 3 * scraperRoom {
		if err := s.judge(tokenKey{byte(i), byte(i >> 8)}, nil, start); err != nil {
			t.Fatal(err)
		}
	}
	if len(s.until) > scraperRoom {
		t.Errorf("%d tokens are remembered", len(s.until))
	}
}
