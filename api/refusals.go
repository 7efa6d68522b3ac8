package api

import (
	"context"
	"net/http"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"berth"
)

// Calls that are refused for a limit of their tenant are answered at refusedRate a
// second, after refusedBurst at once. The calls beyond wait for their answer, up to
// longestRefusal, and up to heldRefusals calls of a tenant at a time. A client that calls
// again as soon as it is refused then costs little: over HTTP/1 the next call of a
// connection is not read before this one is answered.
const (
	refusedRate    = 200
	refusedBurst   = 400
	longestRefusal = 3 * time.Second
	heldRefusals   = 2048   // as many as the connections of a tenant
	refusalRoom    = 10_000 // tenants that are remembered
)

// refusals delay the answers to tenants that are refused often.
type refusals struct {
	mu      sync.Mutex
	tenants *recent[berth.TenantID, *tenantRefusals]
}

// tenantRefusals are guarded by refusals.mu.
type tenantRefusals struct {
	pace *rate.Limiter
	held int // calls that wait for their answer
}

func newRefusals() *refusals {
	return &refusals{tenants: newRecent[berth.TenantID, *tenantRefusals](refusalRoom)}
}

// hold returns when a refused call of a tenant may be answered, or when ctx or the server
// ends.
func (r *refusals) hold(ctx context.Context, tenant berth.TenantID, closing <-chan struct{}) {
	of, wait := r.enter(tenant)
	if wait <= 0 {
		return
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-closing:
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	of.held--
}

// enter returns the delay of a call's answer. With a delay the call counts as held; hold
// ends the count.
func (r *refusals) enter(tenant berth.TenantID) (of *tenantRefusals, wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	of, ok := r.tenants.get(tenant)
	if !ok {
		of = &tenantRefusals{pace: rate.NewLimiter(refusedRate, refusedBurst)}
		r.tenants.put(tenant, of)
	}
	if of.held >= heldRefusals {
		return of, 0
	}
	turn := of.pace.Reserve()
	if wait = turn.Delay(); wait > longestRefusal {
		turn.Cancel() // or later calls would wait for the turns of calls that gave up
		wait = longestRefusal
	}
	if wait > 0 {
		of.held++
	}
	return of, wait
}

// delay returns err, the refusal of a call for a limit of its tenant, once the call may
// be answered, or when the call or the server ends.
func (r *refusals) delay(call *http.Request, tenant berth.TenantID, closing <-chan struct{}, err error) error {
	r.hold(call.Context(), tenant, closing)
	return err
}
