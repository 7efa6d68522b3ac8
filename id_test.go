package berth_test

import (
	"testing"
	"time"

	"berth"
)

func TestJobIDsSortByTime(t *testing.T) {
	t.Parallel()
	now := time.Now()
	a, b := berth.NewJobID(now), berth.NewJobID(now.Add(2*time.Millisecond))
	if a >= b {
		t.Errorf("%s is not before %s", a, b)
	}
	if _, err := berth.ParseJobID(string(a)); err != nil {
		t.Error(err)
	}
}
