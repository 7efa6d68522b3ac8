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
	"berth/internal/lib/background"
	"berth/internal/lib/overload"
)

// Submits are taken from the database in blocks. A tenant's first block is one submit; each
// used-up block is followed by one of double the size, up to submitBlock's worth of the tenant's
// rate and the submits of the last submitPace. A block that is not used within submitKeep
// lapses: blocks are taken from the rates of the tenants above too, and a tenant that submits
// seldom must not waste their rates.
//
// So a tenant at its limit costs one small statement for each submitBlock, and a refused
// call none: after a refusal the database is not asked for at least submitPause, and at
// most submitRest, after which a raised limit is noticed.
//
// Calls rarely wait for a block:
//
//	the tenant's lease                                  a submit
//	has a block, of which more than a quarter is left   is charged to the block
//	has a block, of which a quarter is left             likewise; the next block is taken beside it
//	was refused, and the refusal still holds            is refused
//	waits for a block                                   waits for that block
//	has lapsed, or is new                               is lent: its block is taken beside it, and charged for it
//	else, such as after a refusal or an error           waits for a block
//
// The block of a lent submit either lasts for submitKeep, or is not granted: then nothing is lent
// until a block is granted. So the submits of a tenant exceed its rate by at most one for each
// submitKeep and replica. Rates below lendRate lend none.
const (
	submitBlock   = 250 * time.Millisecond
	submitPace    = time.Second
	submitKeep    = 2 * time.Second
	submitPause   = 100 * time.Millisecond
	submitRest    = time.Second
	submitTimeout = 5 * time.Second // bounds that statement
	submitRoom    = 10_000          // tenants that are remembered
	lendRate      = 1               // submits a second
)

// submits limit each tenant to its rate of submits, which all replicas share.
type submits struct {
	take  func(ctx context.Context, tenant berth.TenantID, limits []db.SubmitLimit, most int) (db.SubmitGrant, error)
	owner *background.Group // of the blocks that no call waits for

	mu     sync.Mutex
	leases *recent[berth.TenantID, *submitLease]
}

// submitLease is this process's part of one tenant's rate; submits.mu guards the fields.
type submitLease struct {
	size    int           // of the block; 0: no block so far
	left    int           // unused submits of the block
	filled  time.Time     // when the block was taken
	until   time.Time     // end of the block
	again   time.Time     // no block is taken before this time
	back    time.Time     // when the tenant may submit again, as far as known
	share   float64       // of its own rate that the tenant has; see db.SubmitGrant
	refused bool          // no block was granted since the last refusal
	failed  bool          // the last block could not be taken: the next submit waits for its block
	taking  chan struct{} // closed when the block under way is taken; nil: none is under way
}

func newSubmits(d *db.DB, owner *background.Group) *submits {
	return &submits{take: d.Tenants.TakeSubmits, owner: owner,
		leases: newRecent[berth.TenantID, *submitLease](submitRoom)}
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
			if l.low(now) {
				s.takeBeside(tenant, l, limits, 0)
			}
			return nil
		case now.Before(l.again):
			return tooManySubmits(tenant, limits, l.share, l.back.Sub(now))
		case l.taking != nil:
			if err := s.await(ctx, l.taking); err != nil {
				return err
			}
		case l.mayBorrow(limits, now) && s.takeBeside(tenant, l, limits, 1):
			return nil
		default:
			if err := s.takeBlock(ctx, tenant, l, limits); err != nil {
				return err
			}
		}
	}
}

// low reports whether the next block is to be taken while this one is used. Blocks of one submit
// have no next one: a tenant that submits seldom uses no second one.
func (l *submitLease) low(now time.Time) bool {
	return l.size > 1 && l.left <= l.size/4 && l.taking == nil && !l.failed && !now.Before(l.again)
}

// mayBorrow reports whether a tenant may submit before its block is taken.
func (l *submitLease) mayBorrow(limits []db.SubmitLimit, now time.Time) bool {
	return strictest(limits).Rate >= lendRate && !l.refused && !l.failed && !now.Before(l.until)
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
	size := l.next(limits, time.Now())
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), submitTimeout)
	defer cancel()
	block, err := s.take(ctx, tenant, limits, size)
	s.mu.Lock()
	l.taken(block, err, 0)
	return err
}

// takeBeside takes a block for which no call waits, and charges the block for so many submits that
// were lent. It returns false if the server closes.
func (s *submits) takeBeside(tenant berth.TenantID, l *submitLease, limits []db.SubmitLimit, lent int) bool {
	size := l.next(limits, time.Now())
	l.taking = make(chan struct{})
	started := s.owner.Go(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(overload.As(ctx, overload.Write), submitTimeout)
		defer cancel()
		block, err := s.take(ctx, tenant, limits, size)
		s.mu.Lock()
		defer s.mu.Unlock()
		l.taken(block, err, lent)
	})
	if !started {
		l.taking = nil
	}
	return started
}

// taken records the answer of the database for a block, of which so many submits were lent.
func (l *submitLease) taken(block db.SubmitGrant, err error, lent int) {
	close(l.taking)
	l.taking = nil
	now := time.Now()
	switch {
	case err != nil:
		l.failed = true
	case block.Granted == 0:
		wait := max(block.Wait, submitPause)
		l.again, l.back, l.share = now.Add(min(wait, submitRest)), now.Add(wait), block.Share
		l.refused, l.failed = true, false
	default:
		if !now.Before(l.until) {
			l.left = 0
		}
		l.left += block.Granted
		l.size, l.filled, l.until = l.left, now, now.Add(submitKeep)
		l.left -= lent
		l.refused, l.failed = false, false
	}
}

// next returns the size of the next block.
func (l *submitLease) next(limits []db.SubmitLimit, now time.Time) int {
	most := max(1, int(math.Ceil(strictest(limits).Rate*submitBlock.Seconds())))
	used := l.size - l.left
	switch {
	case now.Sub(l.until) > submitKeep: // lapsed long ago
		return 1
	case now.Before(l.until): // in use
		pace := int(math.Ceil(float64(used) * float64(submitPace) / float64(max(now.Sub(l.filled), 1))))
		return max(1, min(2*l.size, most, max(2, pace))-l.left)
	}
	return min(most, max(1, used))
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
