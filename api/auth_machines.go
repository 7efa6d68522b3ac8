package api

import (
	"context"
	"crypto/sha256"
	"sync"
	"time"

	"berth"
	"berth/db"
	"berth/internal/lib/background"
	"berth/internal/lib/overload"
)

// machineAuth caches the tokens of machines. An idle agent calls every few seconds, so
// tokens are confirmed together: the first call that finds its token unconfirmed for
// machineFresh starts one query that confirms all recently used tokens. The query runs in the
// background: only a call whose token was last confirmed machineMemory ago waits for it.
//
// A revoked token dies within machineMemory, as long as the database answers within
// machinePatience. Where it does not, because a table is locked or the database is away, a token
// that was good still renews its machine's lease for machineTrust, and opens no other
// route. That is safe because the renewal is fenced by the session's epoch in the lease
// row: retiring a machine, declaring it lost, or another session ends the renewals, even
// while the token is remembered here. machineTrust is longer than any lock that an
// operator should take. It equals the default fence: a machine that is refused from then
// on ends its at_most_one work one fence later, and not sooner than any other machine
// that is cut off.
//
// A renewal waits for a query machinePatience at most, and not at all within machineMemory of a query that has
// failed: the agent sends its next renewal after the answer to this one, so each wait here makes its lease older.
// The query that succeeds after that decides about the calls after it.
type machineAuth struct {
	find  func(ctx context.Context, token string) (db.Principal, error) // looks up unknown tokens
	live  func(ctx context.Context, ids []string) (map[string]bool, error)
	owner *background.Group // of the queries

	mu     sync.Mutex
	known  *recent[tokenKey, *knownMachine]
	query  *confirmation // under way; nil: no query
	failed time.Time     // end of the last query, if it has failed and this process has revoked no token since

	doubted time.Time // time of the last revocation by this process
}

// confirmation is a query that confirms tokens.
type confirmation struct {
	begun    time.Time
	done     chan struct{} // closed at its end, after the last write of the fields below
	failed   bool
	outdated bool // this process has revoked a token since the query began
}

// knownMachine is the cached verdict on one machine's token. machineAuth.mu guards it.
type knownMachine struct {
	principal db.Principal
	confirmed time.Time // start of the last query that found the token good
	used      time.Time
	doubted   time.Time // a query must start after this time before a call passes
}

// Ages count from the start of the last query that found the token good.
const (
	machineFresh  = 2500 * time.Millisecond
	machineMemory = 5 * time.Second
	machineTrust  = berth.DefaultFence
	machineUse    = 30 * time.Second // a token used this recently is confirmed with the others
	machineLimit  = time.Second      // bounds a query, and is the pause after a failed one

	machinePatience = 500 * time.Millisecond // longest wait of a renewal for a query
)

func newMachineAuth(
	d *db.DB, owner *background.Group, find func(context.Context, string) (db.Principal, error),
) *machineAuth {
	return &machineAuth{find: find, live: d.Tokens.Live, owner: owner,
		known: newRecent[tokenKey, *knownMachine](authRoom)}
}

// principal returns the machine of a token. renewal means that the call renews the
// machine's lease, and extends the trust to machineTrust.
func (a *machineAuth) principal(ctx context.Context, token string, renewal bool) (db.Principal, error) {
	key, now := tokenKey(sha256.Sum256([]byte(token))), time.Now()
	p, age, ok := a.look(key, now)
	unreadable := false
	if ok && age >= machineFresh {
		unreadable = a.confirm(ctx, age >= machineMemory, renewal)
		p, age, ok = a.look(key, now)
	}
	if ok && (age < machineMemory || renewal && age < machineTrust && unreadable) {
		return p, nil
	}
	// The token is unknown or refused, or it was first used while the query was under way.
	begun := time.Now()
	p, err := a.find(ctx, token)
	if err == nil && !p.Unused {
		a.mu.Lock()
		// A token that was revoked here after the look-up began is confirmed by the next call.
		a.known.put(key, &knownMachine{principal: p, confirmed: begun, used: begun, doubted: a.doubted})
		a.mu.Unlock()
	}
	return p, err
}

// look returns the cached principal of a token and its age: the time since its last
// confirmation. A token in doubt after a revocation counts as at least machineMemory old.
func (a *machineAuth) look(key tokenKey, now time.Time) (p db.Principal, age time.Duration, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	k, ok := a.known.get(key)
	if !ok {
		return p, 0, false
	}
	k.used = now
	if !k.confirmed.After(k.doubted) {
		return k.principal, max(now.Sub(k.confirmed), machineMemory), true
	}
	return k.principal, now.Sub(k.confirmed), true
}

// confirm starts the query that confirms tokens, unless one is under way or one failed less than
// machineLimit ago. With wait it also waits for the end of a query that began after the last revocation by
// this process: as a renewal for machinePatience at most, and not within machineMemory of a failed query.
// It reports whether the database could not be read.
func (a *machineAuth) confirm(ctx context.Context, wait, renewal bool) (unreadable bool) {
	if renewal {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, machinePatience)
		defer cancel()
	}
	for {
		q, failed := a.begin()
		if q == nil || !wait || renewal && failed {
			return failed
		}
		select {
		case <-q.done:
			if q.failed || !q.outdated {
				return q.failed
			}
		case <-ctx.Done():
			return true
		}
	}
}

// begin returns the query under way, which it starts if there is none, and whether a query has failed within
// machineMemory. An older failure says nothing about the database of today. begin returns no query within
// machineLimit of a failed one, and after the server has closed.
func (a *machineAuth) begin() (under *confirmation, failed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	ago := time.Since(a.failed)
	if a.query == nil && ago >= machineLimit {
		q := &confirmation{begun: time.Now(), done: make(chan struct{})}
		if a.owner.Go(func(ctx context.Context) { a.ask(ctx, q) }) {
			a.query = q
		}
	}
	return a.query, ago < machineMemory
}

// ask confirms the recently used tokens in one query and drops invalid ones. A token that
// was not part of the query keeps its entry and its age.
func (a *machineAuth) ask(ctx context.Context, q *confirmation) {
	var ids []string
	a.mu.Lock()
	a.known.each(func(k *knownMachine) *knownMachine {
		if q.begun.Sub(k.used) < machineUse {
			ids = append(ids, k.principal.TokenID)
		}
		return k
	})
	a.mu.Unlock()
	ctx, cancel := context.WithTimeout(overload.As(ctx, overload.Vital), machineLimit)
	defer cancel()
	live, err := a.live(ctx, ids)
	a.mu.Lock()
	defer a.mu.Unlock()
	q.failed, q.outdated = err != nil, q.begun.Before(a.doubted)
	close(q.done)
	a.query, a.failed = nil, time.Time{}
	if q.failed {
		a.failed = time.Now()
		return
	}
	asked := make(map[string]bool, len(ids))
	for _, id := range ids {
		asked[id] = true
	}
	var dead []tokenKey
	for key, e := range a.known.at {
		k := e.Value.(*recentEntry[tokenKey, *knownMachine]).value
		switch id := k.principal.TokenID; {
		case live[id]:
			k.confirmed = q.begun
		case asked[id]:
			dead = append(dead, key)
		}
	}
	for _, key := range dead {
		a.known.remove(key)
	}
}

// forget puts all cached tokens in doubt: after a revocation by this process, each token
// needs a query that starts later. The database was just written, so an earlier failure no
// longer excuses renewals from the wait for that query.
func (a *machineAuth) forget() {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.doubted, a.failed = now, time.Time{}
	a.known.each(func(k *knownMachine) *knownMachine {
		k.doubted = now
		return k
	})
}
