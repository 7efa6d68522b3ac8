package api

import (
	"context"
	"crypto/sha256"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"berth"
	"berth/db"
	"berth/internal/control/admission"
	"berth/internal/lib/background"
	"berth/internal/lib/connlimit"
	"berth/internal/lib/overload"
	"berth/spec"
)

// principalKey is the context key of the caller's principal.
type principalKey struct{}

// caller returns the principal of this call. It panics on a route that authenticate has
// not guarded: an open route must not act for a caller.
func caller(ctx context.Context) db.Principal {
	p, ok := ctx.Value(principalKey{}).(db.Principal)
	if !ok {
		panic("caller of an open route")
	}
	return p
}

// scope returns the tenant that limits the caller's view of rows. The empty tenant means
// all tenants and is returned for admins only.
func scope(ctx context.Context) berth.TenantID {
	if p := caller(ctx); p.Role != spec.RoleAdmin {
		return p.Tenant
	}
	return ""
}

// actor is the caller's name in events.
func actor(ctx context.Context) string { return "user:" + caller(ctx).Name }

// operator is the caller's name in events and logs about machines.
func operator(ctx context.Context) string { return "operator:" + caller(ctx).Name }

// joinPath and renewPath are the routes of the agents' protocol without a machine's token: one takes a
// join token, the other one a signature by the machine's key.
const (
	joinPath  = "/agent/v1/join"
	renewPath = "/agent/v1/renew"
)

// syncPath is the route that renews a machine's lease.
const syncPath = "/agent/v1/sync"

// gatekeeper authenticates calls, and charges each call to the limits of its token and
// its tenant.
type gatekeeper struct {
	auth       *authenticator
	limits     *limits
	addresses  addresses
	admission  *admission.Controller
	submits    *submits
	submitRate float64 // see Deps.SubmitRate
	refusals   *refusals
	closing    <-chan struct{}
}

// authenticate lets a call pass if its token allows the route. Routes outside /v1 and
// /agent/v1 are open. A user's connection is charged to its tenant, and the call to the
// rates of token and tenant; machines are exempt from rates.
func (g *gatekeeper) authenticate(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := c.Request()
		agent := strings.HasPrefix(r.URL.Path, "/agent/")
		if !agent && !strings.HasPrefix(r.URL.Path, "/v1/") || r.URL.Path == joinPath || r.URL.Path == renewPath {
			return next(c)
		}
		p, err := g.identify(r)
		if err != nil {
			return err
		}
		if err := allowed(p, r.Method, agent, c.Path()); err != nil {
			return err
		}
		// A machine's calls come from Berth's own agent, and grow with its running work.
		if p.Role == spec.RoleMachine {
			connlimit.Agent(r.Context(), p.Machine)
		} else {
			r = r.WithContext(overload.As(r.Context(), classOf(c)))
			c.SetRequest(r)
			if err := connlimit.User(r.Context(), p.Tenant); err != nil {
				c.Response().Header().Set("Connection", "close")
				return berth.Errorf(berth.CodeUnavailable,
					"the server has as many connections of users, or of tenant %s, as it takes; use one for many "+
						"calls, or try again", p.Tenant)
			}
			if err := g.mayCall(c, p); isLimited(err) {
				return g.refusals.delay(r, p.Tenant, g.closing, err)
			} else if err != nil {
				return err
			}
		}
		c.SetRequest(r.WithContext(context.WithValue(r.Context(), principalKey{}, p)))
		return next(c)
	}
}

// classOf returns the class of all statements of a user's call, and so their share of the
// connections. It depends on the method, so that each route has one. A plan is a POST that
// stores nothing.
func classOf(c echo.Context) overload.Class {
	switch method := c.Request().Method; {
	case method == http.MethodGet, method == http.MethodHead, asksQueue(c):
		return overload.Read
	}
	return overload.Write
}

// identify finds the principal of a request's token. The token is looked up before its
// address is judged, so that a good token always passes; only calls without one are
// charged to their address. A call of this process has its principal with it.
func (g *gatekeeper) identify(r *http.Request) (db.Principal, error) {
	if v, ok := visitorOf(r.Context()); ok {
		if time.Since(v.since) < authMemory {
			return v.principal, nil
		}
		return v.principal, v.holds(r.Context()) // such as a stream that connects again
	}
	kind, machine := guessUser, strings.HasPrefix(r.URL.Path, "/agent/")
	if machine {
		kind = guessAgent
	}
	token, ok := bearer(r)
	if !ok || !db.TokenShaped(token) { // refused without a look-up
		return db.Principal{}, g.limits.guessed(kind, g.addresses.client(r), errNoToken(token))
	}
	var p db.Principal
	var err error
	if machine {
		p, err = g.auth.machines.principal(r.Context(), token, r.URL.Path == syncPath)
	} else {
		p, err = g.auth.principal(r.Context(), token, false)
	}
	if berth.CodeOf(err) == berth.CodeUnauthorized {
		return p, g.limits.guessed(kind, g.addresses.client(r), err)
	}
	return p, err
}

// errNoToken returns the error for a request without a text that could be a token.
func errNoToken(token string) error {
	if token == "" {
		return berth.Errorf(berth.CodeUnauthorized, "no token given")
	}
	return berth.Errorf(berth.CodeUnauthorized, "the given text is not a token; a token looks like berth_<id>_<secret>")
}

// bearer returns the token of the Authorization header.
func bearer(r *http.Request) (token string, ok bool) {
	return strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
}

// allowed is the whole table of roles: machines, and only machines, speak the agents'
// protocol; viewers only read; tokens of scrapers open nothing here, since /metrics is outside /v1;
// calls about all tenants are for admins. A viewer may also
// ask for a plan, which is a POST that stores nothing.
func allowed(p db.Principal, method string, agent bool, route string) error {
	if agent != (p.Role == spec.RoleMachine) {
		return berth.Errorf(berth.CodeForbidden, "a token of role %s does not open this route", p.Role)
	}
	read := method == http.MethodGet || method == http.MethodHead
	switch {
	case p.Role == spec.RoleMetrics:
		return berth.Errorf(berth.CodeForbidden, "a token of role metrics opens only GET /metrics")
	case p.Role == spec.RoleAdmin, p.Role == spec.RoleMachine:
		return nil
	case adminOnly(method, route):
		return berth.Errorf(berth.CodeForbidden, "this needs an admin token; yours has the role %s", p.Role)
	case p.Role == spec.RoleViewer && !read && route != "/v1/plans":
		return berth.Errorf(berth.CodeForbidden, "this changes data; your token has the role viewer, which only reads")
	}
	return nil
}

// adminOnly reports whether a route concerns every tenant. Routes of tokens, pools and launches are
// for admins even to read; machines, maintenance, tenants, quotas, admission and offers only to change.
func adminOnly(method, route string) bool {
	for _, prefix := range []string{"/v1/tokens", "/v1/join-tokens", "/v1/pools", "/v1/launches"} {
		if route == prefix || strings.HasPrefix(route, prefix+"/") {
			return true
		}
	}
	if method == http.MethodGet || method == http.MethodHead {
		return false
	}
	for _, prefix := range []string{"/v1/machines", "/v1/maintenance", "/v1/tenants", "/v1/quotas", "/v1/admission",
		"/v1/offers"} {
		if strings.HasPrefix(route, prefix) {
			return true
		}
	}
	return false
}

// authenticator caches verdicts on tokens for a moment, so that a busy client costs one
// look-up a second and a revoked token still dies within authGrace. Look-ups of tokens
// that were good before and of tokens never seen have queries of their own: a flood of
// guesses delays no known caller.
//
//	the last look-up that found a user's token good began   a call with it
//	less than authMemory ago                                passes
//	less than authGrace ago                                 passes, and starts a look-up unless one is under way
//	earlier, never, or before a revocation here             waits for a look-up
//
// A look-up that fails renews nothing, so no call passes authGrace after the last good one.
type authenticator struct {
	known, strangers map[bool]*lookups[db.TokenAnswer] // by token type; true: of machines
	machines         *machineAuth
	owner            *background.Group // of the look-ups that no call waits for

	mu        sync.Mutex
	right     *recent[tokenKey, knownToken] // good at their last look-up
	wrong     *recent[tokenKey, wrongToken]
	forgotten time.Time // of the last revocation by this process
}

// tokenKey is the SHA-256 of a token, so that the cache holds no secrets.
type tokenKey [sha256.Size]byte

type knownToken struct {
	principal db.Principal
	asked     time.Time // start of the last look-up; zero: the next call waits for another one
	renewing  bool      // a look-up is under way for which no call waits
}

type wrongToken struct {
	err   error
	until time.Time
}

// A wrong token stays wrong: tokens are random, and a revoked token stays revoked. The
// memory of wrong tokens expires all the same after wrongMemory, for a token that an
// operator chose and that an impatient client tries before it is stored. The caches hold
// authRoom tokens each.
const (
	authMemory   = time.Second
	authGrace    = 3 * time.Second
	wrongMemory  = 5 * time.Second
	authRoom     = 10_000
	strangePause = 10 * time.Millisecond // between two queries for tokens never seen
	authLimit    = 15 * time.Second      // on the wait for an answer
)

func newAuthenticator(d *db.DB, owner *background.Group) *authenticator {
	users, machines := endWith(owner, d.Tokens.AuthenticateUsers), endWith(owner, d.Tokens.AuthenticateMachines)
	a := &authenticator{
		owner: owner,
		known: map[bool]*lookups[db.TokenAnswer]{false: newLookups(users, 0), true: newLookups(machines, 0)},
		strangers: map[bool]*lookups[db.TokenAnswer]{
			false: newLookups(users, strangePause), true: newLookups(machines, strangePause),
		},
		right: newRecent[tokenKey, knownToken](authRoom),
		wrong: newRecent[tokenKey, wrongToken](authRoom),
	}
	a.machines = newMachineAuth(d, owner, func(ctx context.Context, token string) (db.Principal, error) {
		a.mu.Lock()
		a.right.remove(tokenKey(sha256.Sum256([]byte(token)))) // machines have a memory of their own
		a.mu.Unlock()
		p, err := a.principal(ctx, token, true)
		if err == nil && p.Unused {
			p.Unused = !recordFirstUse(ctx, d.Tokens, p.TokenID)
		}
		return p, err
	})
	return a
}

// findTokens answers one query of lookups.
type findTokens = func(ctx context.Context, tokens []string) ([]db.TokenAnswer, error)

// endWith returns a query that ends at the latest when its owner closes.
func endWith(owner *background.Group, find findTokens) findTokens {
	return func(ctx context.Context, tokens []string) ([]db.TokenAnswer, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(owner.Context(), cancel)()
		return find(ctx, tokens)
	}
}

// recordFirstUse records the first use of a renewed credential, and reports whether it did. Until then
// the credential is not cached, so the next call tries again; no call is refused for it.
func recordFirstUse(ctx context.Context, tokens *db.Tokens, id string) bool {
	ctx, cancel := context.WithTimeout(overload.As(context.WithoutCancel(ctx), overload.Vital), machineLimit)
	defer cancel()
	return tokens.FirstUse(ctx, id) == nil
}

// principal returns the principal of a token from the cache or from the database; see
// authenticator.
func (a *authenticator) principal(ctx context.Context, token string, machine bool) (db.Principal, error) {
	if machine {
		return a.within(ctx, token, true, authMemory)
	}
	return a.within(ctx, token, false, authGrace)
}

// within is principal with a greatest age of the last look-up, at least authMemory. The age
// counts from before the look-up, so a token revoked during the look-up is not trusted longer
// than that after its revocation.
func (a *authenticator) within(
	ctx context.Context, token string, machine bool, most time.Duration,
) (db.Principal, error) {
	key, now := tokenKey(sha256.Sum256([]byte(token))), time.Now()
	a.mu.Lock()
	k, seen := a.right.get(key)
	w, refused := a.wrong.get(key)
	age := now.Sub(k.asked)
	renews := seen && !k.renewing && authMemory <= age && age < most
	if renews {
		k.renewing = true
		a.right.put(key, k)
	}
	a.mu.Unlock()
	if renews {
		a.owner.Go(func(ctx context.Context) { a.renew(ctx, key, token) }) // not after the end of the server
	}
	switch {
	case seen && age < most:
		return k.principal, nil
	case refused && now.Before(w.until):
		return db.Principal{}, w.err
	}
	lane := a.strangers[machine]
	if seen {
		lane = a.known[machine]
	}
	ctx, cancel := context.WithTimeout(ctx, authLimit)
	defer cancel()
	answer, err := lane.ask(ctx, token)
	if err != nil {
		return db.Principal{}, err
	}
	a.remember(key, answer, now)
	return answer.Principal, answer.Err
}

// renew looks up a user's known token for which no call waits.
func (a *authenticator) renew(ctx context.Context, key tokenKey, token string) {
	ctx, cancel := context.WithTimeout(ctx, authLimit)
	defer cancel()
	now := time.Now()
	answer, err := a.known[false].ask(ctx, token)
	if err == nil {
		a.remember(key, answer, now)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if k, ok := a.right.get(key); ok { // the next call tries again, or waits
		k.renewing = false
		a.right.put(key, k)
	}
}

func (a *authenticator) remember(key tokenKey, answer db.TokenAnswer, asked time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if answer.Err != nil {
		a.right.remove(key)
		a.wrong.put(key, wrongToken{answer.Err, asked.Add(wrongMemory)})
		return
	}
	a.wrong.remove(key)
	if !asked.After(a.forgotten) { // the look-up may have read the token before it was revoked here
		asked = time.Time{}
	}
	a.right.put(key, knownToken{principal: answer.Principal, asked: asked})
}

// forget expires all cached verdicts on good tokens, after a revocation by this process, and
// those of look-ups under way. The entries stay, so that their next look-ups use the queries for
// known tokens.
func (a *authenticator) forget() {
	a.machines.forget()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.forgotten = time.Now()
	a.right.each(func(k knownToken) knownToken {
		k.asked = time.Time{}
		return k
	})
}
