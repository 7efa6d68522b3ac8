package control_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"berth"
	"berth/activities/control"
	"berth/wire"
)

// row is a store of one job whose state a test changes.
type row struct {
	control.Store
	mu       sync.Mutex
	view     wire.JobView
	reads    int
	onRead   func(n int)
	canceled []string
	fail     error // of the next reads
}

func (r *row) Load(context.Context, berth.JobID) (wire.JobView, error) {
	r.mu.Lock()
	v, err := r.view, r.fail
	r.reads++
	n := r.reads
	r.mu.Unlock()
	if err != nil {
		return v, err
	}
	if r.onRead != nil {
		r.onRead(n)
	}
	return v, nil
}

func (r *row) View(ctx context.Context, id berth.JobID) (wire.JobView, error) {
	if r.reads == 0 {
		return wire.JobView{}, errors.New("viewed before it was loaded")
	}
	return r.Load(ctx, id)
}

func (r *row) become(v wire.JobView) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.view = v
}

func (r *row) RequestCancel(_ context.Context, tenant berth.TenantID, _ berth.JobID, actor string, _ *berth.Reason) (berth.State, error) {
	r.canceled = append(r.canceled, string(tenant)+"/"+actor)
	r.become(wire.JobView{State: berth.Canceled})
	return berth.Canceled, nil
}

// pokes has at most one waiter.
type pokes struct {
	news    chan struct{}
	waiting bool
	sent    int
	late    bool // one comes just before the end
}

func newPokes() *pokes { return &pokes{news: make(chan struct{}, 1)} }

func (p *pokes) Poke(...berth.JobID) { p.sent++ }

func (p *pokes) Expect(berth.JobID) (<-chan struct{}, func() bool) {
	p.waiting = true
	return p.news, func() bool {
		p.waiting = false
		if p.late {
			return true
		}
		select {
		case <-p.news:
			return true
		default:
			return false
		}
	}
}

const job = berth.JobID("01900000-0000-7000-8000-000000000001")

var (
	queued    = wire.JobView{State: berth.Queued, Placeable: true}
	scheduled = wire.JobView{State: berth.Scheduled, Attempt: 1}
)

func reserve(t *testing.T, r *row, p *pokes) wire.JobView {
	t.Helper()
	v, err := control.New(r, p, nil).Reserve(t.Context(), wire.StepInput{Job: job})
	if err != nil {
		t.Fatal(err)
	}
	if p.waiting {
		t.Error("still registered as waiting")
	}
	return v
}

func TestReserveReturnsTheGrantThatComesWithinAMoment(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, p := &row{view: queued}, newPokes()
		go func() {
			time.Sleep(control.GrantWait / 2)
			r.become(scheduled)
			p.news <- struct{}{}
		}()
		if v := reserve(t, r, p); v.State != berth.Scheduled {
			t.Errorf("view is %+v", v)
		}
	})
}

func TestReserveReturnsWhatWaitsOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, p := &row{view: queued}, newPokes()
		start := time.Now()
		v := reserve(t, r, p)
		if d := time.Since(start); v.State != berth.Queued || d != control.GrantWait || r.reads != 1 {
			t.Errorf("view is %+v after %s and %d reads", v, d, r.reads)
		}
	})
}

func TestReserveDoesNotWaitForWhatCannotBePlaced(t *testing.T) {
	t.Parallel()
	for _, view := range []wire.JobView{{State: berth.Retrying}, {State: berth.Queued}, scheduled, {State: berth.Failed}} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			if reserve(t, &row{view: view}, newPokes()); time.Since(start) != 0 {
				t.Errorf("%s: waited %s", view.State, time.Since(start))
			}
		})
	}
}

func TestReserveReadsAgainAfterAPokeThatCameTooLateToWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, p := &row{view: scheduled}, newPokes()
		r.onRead = func(n int) {
			if n == 1 { // the news fall between the read and its end
				r.become(wire.JobView{State: berth.Canceling, Attempt: 1})
				p.news <- struct{}{}
			}
		}
		if v := reserve(t, r, p); v.State != berth.Canceling || r.reads != 2 {
			t.Errorf("view is %+v after %d reads", v, r.reads)
		}
	})
}

func TestReserveFailsWhenItIsCutOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err := control.New(&row{view: queued}, newPokes(), nil).Reserve(ctx, wire.StepInput{Job: job})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}

// A poke is handed to a step that waits, and to nobody else. If the step is cut
// off before it has looked again, the workflow must hear of it all the same.
func TestAPokeToAStepThatIsCutOffIsPassedOn(t *testing.T) {
	t.Parallel()
	for name, unread := range map[string]bool{"not received": true, "received, and the row not read": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			p := newPokes()
			r := &row{view: queued}
			r.onRead = func(int) {
				if unread {
					cancel()
					p.late = true
					return
				}
				p.news <- struct{}{}
				r.fail = errors.New("cut off")
			}
			if _, err := control.New(r, p, nil).Reserve(ctx, wire.StepInput{Job: job}); err == nil {
				t.Error("it was not cut off")
			}
			if p.sent != 1 {
				t.Errorf("%d pokes are passed on", p.sent)
			}
		})
	}
}

func TestCancelFromTemporalIsARequestOnTheRow(t *testing.T) {
	t.Parallel()
	r := &row{view: queued}
	v, err := control.New(r, newPokes(), nil).RequestCancel(t.Context(), wire.StepInput{Job: job})
	if err != nil || v.State != berth.Canceled || len(r.canceled) != 1 || r.canceled[0] != "/temporal" {
		t.Errorf("got %+v, %v; asked %v", v, err, r.canceled)
	}
}
