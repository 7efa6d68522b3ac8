package explain

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// The first caller waits for the first board, and later callers get one that took long to make.
func TestCallersAwaitTheNextBoard(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		age    time.Duration // of the present board; 0: there is none
		took   time.Duration // to make the present board
		makes  time.Duration // until the next board is made
		waits  time.Duration
		answer bool
	}{
		{"none, quickly made", 0, 0, 300 * time.Millisecond, 300 * time.Millisecond, true},
		{"none, slowly made", 0, 0, 3 * time.Second, 3 * time.Second, true},
		{"none, and not made in time", 0, 0, time.Minute, boardWait, false},
		{"fresh", time.Second, 250 * time.Millisecond, time.Second, 0, true},
		{"old", 11 * time.Second, 250 * time.Millisecond, 2 * time.Second, 2 * time.Second, true},
		{"old, and not made in time", 11 * time.Second, 250 * time.Millisecond, time.Minute, boardWait, false},
		{"made slowly", 25 * time.Second, 20 * time.Second, time.Minute, 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				var x boards
				if c.age > 0 {
					x.present = &Board{beganAt: began.Add(-c.age), took: c.took}
				}
				b, made := x.get(began, 0, func(done func(*Board)) bool {
					go func() {
						time.Sleep(c.makes)
						done(&Board{beganAt: began})
					}()
					return true
				})
				if b == nil || b.old(began) {
					b = x.next(context.Background(), made, began)
				}
				if waited := time.Since(began); (b != nil) != c.answer || waited != c.waits {
					t.Errorf("answered: %v after %s, want %v after %s", b != nil, waited, c.answer, c.waits)
				}
				if made != nil {
					<-made // its goroutine ends with the test
				}
			})
		})
	}
}
