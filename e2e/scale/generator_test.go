package scale_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"syscall"
	"time"

	"berth"
	"berth/e2e/rig"
	"berth/internal/check"
	"berth/spec"
)

// generatorHelper names the helper that submits at a fixed rate.
const generatorHelper = "generator"

// order is the configuration of a generator.
type order struct {
	URL    string         `json:"url"`    // empty: a null listener of its own
	Accept float64        `json:"accept"` // submits a second that the null listener accepts
	Tenant berth.TenantID `json:"tenant"`
	Tokens []string       `json:"tokens"` // used in turn
	Rate   float64        `json:"rate"`   // submits a second
	For    time.Duration  `json:"for"`    // at most
	Spec   spec.Job       `json:"spec"`
	Ledger string         `json:"ledger"` // file of the accepted jobs; empty: none
}

// made is the report of a generator.
type made struct {
	Due      int           `json:"due"`      // submits that were due
	Skipped  int           `json:"skipped"`  // of them not sent, because too many calls were under way
	Accepted int           `json:"accepted"` // 201
	Refused  int           `json:"refused"`  // 429 and 503
	Failed   int           `json:"failed"`   // any other answer, or none
	Began    time.Time     `json:"began"`
	CPU      time.Duration `json:"cpu"` // of the generator
	Lasted   time.Duration `json:"lasted"`
	Fault    string        `json:"fault"` // of the first that failed
}

// generate is the helper: an open loop that submits whether or not earlier
// calls were answered. At most rig.CallsUnderWay are open at once: an open loop
// whose server answers nothing must not exhaust its own host.
func generate(ctx context.Context, config json.RawMessage) (any, error) {
	var o order
	if err := json.Unmarshal(config, &o); err != nil {
		return nil, err
	}
	if o.URL == "" {
		server := httptest.NewServer(newNull(o.Accept))
		defer server.Close()
		o.URL = server.URL
	}
	var ledger *rig.Ledger
	if o.Ledger != "" {
		var err error
		if ledger, err = rig.OpenLedger(o.Ledger); err != nil {
			return nil, err
		}
		defer ledger.Close()
	}
	body, err := json.Marshal(o.Spec)
	if err != nil {
		return nil, err
	}
	g := &generator{order: o, body: body, ledger: ledger, open: make(chan struct{}, rig.CallsUnderWay)}
	for _, token := range o.Tokens {
		g.callers = append(g.callers, rig.NewCaller(o.URL, token, ""))
	}
	return g.run(ctx)
}

type generator struct {
	order
	body    []byte
	ledger  *rig.Ledger
	callers []*rig.Caller
	open    chan struct{} // one for each call under way

	mu   sync.Mutex
	made made
	errs []error
}

func (g *generator) run(ctx context.Context) (made, error) {
	began := time.Now()
	g.made.Began = began
	var calls sync.WaitGroup
	for i := 0; ; i++ {
		due := time.Duration(float64(i) / g.Rate * float64(time.Second))
		if due >= g.For || !rig.SleepUntil(ctx, began.Add(due)) {
			break
		}
		g.made.Due++
		select {
		case g.open <- struct{}{}:
			calls.Go(func() { g.submit(i); <-g.open })
		default:
			g.made.Skipped++
		}
	}
	g.made.Lasted = time.Since(began)
	calls.Wait()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return g.made, err
	}
	g.made.CPU = time.Duration(u.Utime.Nano() + u.Stime.Nano())
	return g.made, errors.Join(g.errs...)
}

func (g *generator) submit(i int) {
	key := fmt.Sprintf("generator-%d-%d", syscall.Getpid(), i)
	a := g.callers[i%len(g.callers)].Call(context.Background(), http.MethodPost, "/v1/jobs", http.Header{"Idempotency-Key": {key}}, g.body)
	var job struct {
		ID berth.JobID `json:"id"`
	}
	var err error
	if a.Good() && g.ledger != nil {
		if err = json.Unmarshal(a.Body, &job); err == nil {
			err = g.ledger.Add(check.Accepted{Tenant: g.Tenant, Key: key, Job: job.ID})
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err != nil {
		g.errs = append(g.errs, err)
	}
	switch {
	case a.Good():
		g.made.Accepted++
	case a.Status == http.StatusTooManyRequests, a.Status == http.StatusServiceUnavailable:
		g.made.Refused++
	default:
		g.made.Failed++
		if g.made.Fault == "" {
			g.made.Fault = fmt.Sprintf("status %d: %v %.200s", a.Status, a.Err, a.Body)
		}
	}
}
