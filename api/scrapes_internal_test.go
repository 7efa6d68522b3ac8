package api

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/labstack/echo/v4"

	"berth"
)

// scrapeOf returns a scrape from this host, of a page that takes a time to collect.
func scrapeOf(takes time.Duration, most *atomic.Int64) func(ctx context.Context) (*httptest.ResponseRecorder, error) {
	var open atomic.Int64
	handler := (&pageHandlers{}).scrape(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n := open.Add(1)
		defer open.Add(-1)
		most.Store(max(n, most.Load()))
		time.Sleep(takes)
		_, _ = w.Write([]byte("up 1\n"))
	}))
	e := echo.New()
	return func(ctx context.Context) (*httptest.ResponseRecorder, error) {
		r := httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody).WithContext(ctx)
		r.RemoteAddr = "127.0.0.1:1"
		w := httptest.NewRecorder()
		return w, handler(e.NewContext(r, w))
	}
}

func TestOneScrapeAtATimeCollects(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var most atomic.Int64
		scrape := scrapeOf(100*time.Millisecond, &most)
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				if w, err := scrape(t.Context()); err != nil || w.Code != http.StatusOK || w.Body.String() != "up 1\n" {
					t.Errorf("%d %q, %v", w.Code, w.Body, err)
				}
			})
		}
		all.Wait()
		if n := most.Load(); n != 1 {
			t.Errorf("%d scrapes collect at once", n)
		}
	})
}

func TestAScrapeWaitsForOthersOnlyForATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var most atomic.Int64
		scrape := scrapeOf(time.Minute, &most)
		var first sync.WaitGroup
		first.Go(func() {
			if _, err := scrape(t.Context()); err != nil {
				t.Errorf("the first scrape: %v", err)
			}
		})
		synctest.Wait()
		began := time.Now()
		if _, err := scrape(t.Context()); berth.CodeOf(err) != berth.CodeUnavailable || time.Since(began) != scrapeWait {
			t.Errorf("a scrape behind a slow one: %v after %s", err, time.Since(began))
		}
		gone, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began = time.Now()
		if _, err := scrape(gone); err == nil || time.Since(began) != time.Second {
			t.Errorf("a scraper that has gone: %v after %s", err, time.Since(began))
		}
		first.Wait()
	})
}
