package api

import (
	"context"
	"math"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"berth"
	"berth/db"
)

// Submits are taken from the database in blocks. A tenant's first block is one submit;
// each used-up block is followed by one of double the size, up to submitBlock's worth of
// the tenant's rate. A block that is not used within submitKeep lapses, and the next
// block is one submit again: blocks are taken from the rates of the tenants above too,
// and a tenant that submits seldom must not waste their rates.
//
// So a tenant at its limit costs one small statement for each submitBlock, and a refused
// call none: after a refusal the database is not asked for at least submitPause, and at
// most submitRest, after which a raised limit is noticed.
const (
	submitBlock   = 250 * time.Millisecond
	submitKeep    = 2 * time.Second
	submitPause   = 100 * time.Millisecond
	submitRest    = time.Second
	submitTimeout = 5 * time.Second // bounds that statement
	submitRoom    = 10_000          // tenants that are remembered
)

// submits limit each tenant to its rate of submits, which all replicas share.
type submits struct {
	take func(ctx context.Context, tenant berth.TenantID, limits []db.SubmitLimit, most int) (db.SubmitGrant, error)

	mu     sync.Mutex
	leases *recent[berth.TenantID, *submitLease]
}

// submitLease is this process's part of one tenant's rate; submits.mu guards the fields.
type submitLease struct {
	size   int           // of the block; 0: no block so far
	left   int           // unused submits of the block
	until  time.Time     // end of the block
	again  time.Time     // no block is taken before this time
	back   time.Time     // when the tenant may submit again, as far as known
	share  float64       // of its own rate that the tenant has; see db.SubmitGrant
	taking chan struct{} // closed when the call that takes a block returns; nil: no such call
}

func newSubmits(d *db.DB) *submits {
	return &submits{take: d.Tenants.TakeSubmits, leases: newRecent[berth.TenantID, *submitLease](submitRoom)}
}

// allow charges a submit to the tenant. limits are the rates of the tenant and of the
// tenants above; without limits every submit is allowed. An error is rate_limited, or
// reports that the database did not answer.
func (s *submits) allow(ctx context.Context, tenant berth.TenantID, limits []db.SubmitLimit) error {
	if len(limits) == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l, ok := s.leases.get(tenant)
	if !ok {
		l = &submitLease{}
		s.leases.put(tenant, l)
	}
	for {
		now := time.Now()
		switch {
		case l.left > 0 && now.Before(l.until):
			l.left--
			return nil
		case now.Before(l.again):
			return tooManySubmits(tenant, limits, l.share, l.back.Sub(now))
		case l.taking != nil:
			if err := s.await(ctx, l.taking); err != nil {
				return err
			}
		default:
			if err := s.takeBlock(ctx, tenant, l, limits); err != nil {
				return err
			}
		}
	}
}

// await waits for another call's block, without the lock.
func (s *submits) await(ctx context.Context, taken <-chan struct{}) error {
	s.mu.Unlock()
	defer s.mu.Lock()
	select {
	case <-taken:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// takeBlock takes a block from the database, without the lock. Other callers wait for the
// answer, so the statement does not end with this caller.
func (s *submits) takeBlock(
	ctx context.Context, tenant berth.TenantID, l *submitLease, limits []db.SubmitLimit,
) error {
	l.taking = make(chan struct{})
	size := l.next(limits)
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), submitTimeout)
	defer cancel()
	block, err := s.take(ctx, tenant, limits, size)
	s.mu.Lock()
	close(l.taking)
	l.taking = nil
	now := time.Now()
	switch {
	case err != nil:
		return err
	case block.Granted == 0:
		wait := max(block.Wait, submitPause)
		l.again, l.back, l.share = now.Add(min(wait, submitRest)), now.Add(wait), block.Share
	default:
		l.size, l.left, l.until = size, block.Granted, now.Add(submitKeep)
	}
	return nil
}

// next returns the size of the next block.
func (l *submitLease) next(limits []db.SubmitLimit) int {
	if l.left > 0 || time.Since(l.until) > submitKeep { // lapsed, or long used up
		return 1
	}
	return min(2*max(l.size, 1), max(1, int(math.Ceil(strictest(limits).Rate*submitBlock.Seconds()))))
}

// strictest returns the limit with the lowest rate.
func strictest(limits []db.SubmitLimit) db.SubmitLimit {
	return slices.MinFunc(limits, func(a, b db.SubmitLimit) int {
		switch {
		case a.Rate < b.Rate:
			return -1
		case a.Rate > b.Rate:
			return 1
		}
		return 0
	})
}

// tooManySubmits is the refusal of a submit. The message names the tenant at its limit,
// which may be a tenant above the caller's.
func tooManySubmits(tenant berth.TenantID, limits []db.SubmitLimit, share float64, wait time.Duration) error {
	own := slices.IndexFunc(limits, func(l db.SubmitLimit) bool { return l.Tenant == tenant })
	if share < 1 && own >= 0 {
		return limited(wait, "tenant %s submits jobs faster than the control plane can start them; until it has "+
			"caught up, it accepts about %.3g a second (an array counts as one)", tenant, share*limits[own].Rate)
	}
	l := strictest(limits)
	if l.Tenant != tenant {
		return limited(wait, "tenant %s, above %s, submits more than %g jobs a second, which is its limit "+
			"(submit_rps)", l.Tenant, tenant, l.Rate)
	}
	return limited(wait, "tenant %s submits more than %g jobs a second, which is its limit (submit_rps)",
		tenant, l.Rate)
}

// isSubmit reports whether a call creates a job or a pipeline.
func isSubmit(c echo.Context) bool {
	if c.Request().Method != http.MethodPost {
		return false
	}
	switch c.Path() {
	case "/v1/jobs", "/v1/pipelines", "/v1/jobs/:id/retry", "/v1/pipelines/:id/retry":
		return true
	}
	return false
}

// mayCall charges a call with a good token to the token, and a submit to its tenant too:
// before the body is read and before a slot is taken, so that a refused call costs next
// to nothing.
func (g *gatekeeper) mayCall(c echo.Context, p db.Principal) error {
	if err := g.limits.call(p.TokenID); err != nil || !isSubmit(c) {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), callLimit)
	defer cancel()
	limits, err := g.admission.SubmitLimits(ctx, p.Tenant, g.submitRate)
	if err != nil {
		return err
	}
	return g.submits.allow(ctx, p.Tenant, limits)
}
