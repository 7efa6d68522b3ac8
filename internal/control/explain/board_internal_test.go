package explain

import (
	"context"
	"sync/atomic"
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

// Whoever asks once in each scrape interval always gets a board after the first one, however long it
// takes to make, and none once the rows have not been read for minutes.
func TestRareCallersGetTheBoardThatWasMadeSince(t *testing.T) {
	t.Parallel()
	const wait = 3 * time.Second
	for _, makes := range []time.Duration{100 * time.Millisecond, 4 * time.Second, 20 * time.Second, 90 * time.Second} {
		for _, every := range []time.Duration{15 * time.Second, 30 * time.Second, time.Minute} {
			t.Run(makes.String()+" every "+every.String(), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					var x boards
					var broken atomic.Bool
					ask := func() (b *Board, waited time.Duration) {
						asked := time.Now()
						b = x.latest(t.Context(), wait, 0, func(done func(*Board)) bool {
							go func() {
								time.Sleep(makes)
								if broken.Load() {
									done(nil)
									return
								}
								done(&Board{beganAt: asked, took: makes})
							}()
							return true
						})
						return b, time.Since(asked)
					}
					first := time.Now()
					for n := range 20 {
						b, waited := ask()
						if ready := time.Since(first) >= makes; (b != nil) != ready || n > 0 && ready && waited > min(makes, wait) {
							t.Errorf("scrape %d, %s after the first: board %v after %s", n, time.Since(first), b != nil, waited)
						}
						if b != nil && b.Age() > 2*(makes+every) {
							t.Errorf("scrape %d: the board is %s old", n, b.Age())
						}
						time.Sleep(every)
					}
					broken.Store(true)
					time.Sleep(scrapeAge + 3*makes)
					if b, _ := ask(); b != nil {
						t.Errorf("a board that is %s old", b.Age())
					}
					time.Sleep(makes) // the goroutine ends with the test
				})
			})
		}
	}
}
