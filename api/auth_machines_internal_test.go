package api

import (
	"context"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"berth"
	"berth/db"
	"berth/internal/lib/background"
)

// tokenTable stands for the table of tokens, with one machine's token.
type tokenTable struct {
	locked  bool
	revoked bool
	held    chan struct{} // if not nil, the next query has read the table, and ends when this is closed
}

func (x *tokenTable) find(ctx context.Context, _ string) (db.Principal, error) {
	if x.locked {
		<-ctx.Done()
		return db.Principal{}, ctx.Err()
	}
	if x.revoked {
		return db.Principal{}, berth.Errorf(berth.CodeUnauthorized, "token is revoked")
	}
	return db.Principal{TokenID: "t", Machine: "m"}, nil
}

func (x *tokenTable) live(ctx context.Context, _ []string) (map[string]bool, error) {
	if x.locked {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	found := map[string]bool{"t": !x.revoked}
	if held := x.held; held != nil {
		x.held = nil
		<-held
	}
	return maps.Clone(found), nil
}

// withTokens runs f in a bubble with a machine's calls on a table of tokens. call returns how long a call waited.
func withTokens(
	t *testing.T, f func(t *testing.T, x *tokenTable, a *machineAuth, call func(bool) (time.Duration, error)),
) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		x, owner := &tokenTable{}, background.New()
		defer owner.Close()
		a := &machineAuth{find: x.find, live: x.live, owner: owner,
			known: newRecent[tokenKey, *knownMachine](authRoom)}
		call := func(renewal bool) (time.Duration, error) {
			began := time.Now()
			_, err := a.principal(t.Context(), "token", renewal)
			return time.Since(began), err
		}
		if _, err := call(true); err != nil {
			t.Fatal(err)
		}
		f(t, x, a, call)
	})
}

// TestRenewalsDoNotWaitForTheTableOfTokens: a wait before a call makes the next renewal late by as much.
func TestRenewalsDoNotWaitForTheTableOfTokens(t *testing.T) {
	t.Parallel()
	withTokens(t, func(t *testing.T, x *tokenTable, _ *machineAuth, call func(bool) (time.Duration, error)) {
		x.locked = true
		var waited time.Duration
		for range 15 {
			time.Sleep(berth.SyncWait)
			took, err := call(true)
			if err != nil {
				t.Fatalf("a renewal while the table is locked: %v", err)
			}
			waited += took
		}
		if waited > machinePatience {
			t.Errorf("15 renewals waited %s for the locked table, want %s at most", waited, machinePatience)
		}
		synctest.Wait()
		x.locked, x.revoked = false, true
		readable := time.Now()
		for time.Since(readable) <= machineMemory {
			time.Sleep(berth.SyncWait)
			if _, err := call(true); berth.CodeOf(err) == berth.CodeUnauthorized {
				return
			}
		}
		t.Errorf("a revoked token renews %s after the table could be read", time.Since(readable))
	})
}

// TestOnlyRenewalsPassWhileTokensCannotBeRead: every other call waits for the table, as one with an unknown token.
func TestOnlyRenewalsPassWhileTokensCannotBeRead(t *testing.T) {
	t.Parallel()
	withTokens(t, func(t *testing.T, x *tokenTable, a *machineAuth, _ func(bool) (time.Duration, error)) {
		x.locked = true
		time.Sleep(machineMemory)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if p, err := a.principal(ctx, "token", false); err == nil {
			t.Errorf("a call passed as %+v", p)
		}
		if _, err := a.principal(t.Context(), "token", true); err != nil {
			t.Errorf("a renewal: %v", err)
		}
	})
}

// TestARevocationHereOutrunsAQueryUnderWay: the query has read the token before this process revoked it.
func TestARevocationHereOutrunsAQueryUnderWay(t *testing.T) {
	t.Parallel()
	withTokens(t, func(t *testing.T, x *tokenTable, a *machineAuth, call func(bool) (time.Duration, error)) {
		time.Sleep(machineFresh)
		held := make(chan struct{})
		x.held = held
		if took, err := call(true); err != nil || took != 0 {
			t.Fatalf("a call that starts a query waited %s: %v", took, err)
		}
		synctest.Wait()
		x.revoked = true
		time.Sleep(time.Millisecond)
		a.forget()
		time.AfterFunc(time.Millisecond, func() { close(held) })
		if _, err := call(true); berth.CodeOf(err) != berth.CodeUnauthorized {
			t.Errorf("a renewal with a token that was revoked here: %v", err)
		}
	})
}

// TestRevokedTokensDieAfterAFailedQuery: a query that has failed lets renewals pass, and no longer than the table of
// tokens needs to be read again.
func TestRevokedTokensDieAfterAFailedQuery(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		quiet time.Duration   // since the query failed, and the table could be read
		calls []time.Duration // after quiet; the last one is refused
		here  bool            // the token is revoked by this process
	}{
		"after a silence": {time.Minute, []time.Duration{0}, false},
		"by calls that come in a pause": {
			0, []time.Duration{machineLimit * 9 / 10, machineMemory - machineLimit*9/10}, false,
		},
		"by this process":             {machineLimit, []time.Duration{time.Millisecond}, true},
		"by this process, in a pause": {0, []time.Duration{time.Millisecond}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			withTokens(t, func(t *testing.T, x *tokenTable, a *machineAuth, call func(bool) (time.Duration, error)) {
				x.locked = true
				time.Sleep(machineMemory)
				if _, err := call(true); err != nil {
					t.Fatalf("a renewal while the table is locked: %v", err)
				}
				time.Sleep(machineLimit - machinePatience + time.Millisecond) // the query fails
				synctest.Wait()
				x.locked, x.revoked = false, true
				time.Sleep(c.quiet)
				if c.here {
					a.forget()
				}
				for i, after := range c.calls {
					time.Sleep(after)
					_, err := call(true)
					if last := i == len(c.calls)-1; last && berth.CodeOf(err) != berth.CodeUnauthorized {
						t.Errorf("the revoked token renews %s after the table could be read: %v", c.quiet+after, err)
					}
				}
			})
		})
	}
}

// TestRenewalsPassAfterARevocationWhileTokensCannotBeRead: a revocation writes to one table, and the confirmation reads
// others as well. A lock on one of those must not end the renewals of all machines.
func TestRenewalsPassAfterARevocationWhileTokensCannotBeRead(t *testing.T) {
	t.Parallel()
	withTokens(t, func(t *testing.T, x *tokenTable, a *machineAuth, call func(bool) (time.Duration, error)) {
		x.locked = true
		for range 10 {
			time.Sleep(berth.SyncWait)
			a.forget()
			time.Sleep(time.Millisecond)
			if took, err := call(true); err != nil || took > machinePatience {
				t.Errorf("a renewal waited %s: %v", took, err)
			}
		}
	})
}
