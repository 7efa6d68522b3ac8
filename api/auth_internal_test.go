package api

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"berth"
	"berth/db"
	"berth/internal/lib/background"
	"berth/spec"
)

// userTable has one token, of a user.
type userTable struct {
	mu      sync.Mutex
	queries int
	revoked bool
	fails   bool
	takes   time.Duration // after the token was read
}

func (x *userTable) find(ctx context.Context, tokens []string) ([]db.TokenAnswer, error) {
	x.mu.Lock()
	x.queries++
	answer, fails, takes := db.TokenAnswer{Principal: db.Principal{TokenID: "t", Role: spec.RoleUser}}, x.fails, x.takes
	if x.revoked {
		answer = db.TokenAnswer{Err: berth.Errorf(berth.CodeUnauthorized, "token is revoked")}
	}
	x.mu.Unlock()
	select {
	case <-time.After(takes):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if fails {
		return nil, errors.New("the table is locked")
	}
	return slices.Repeat([]db.TokenAnswer{answer}, len(tokens)), nil
}

func (x *userTable) set(edit func(x *userTable)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	edit(x)
}

// authenticatorOf returns an authenticator of users, and a call with the token.
func authenticatorOf(t *testing.T, x *userTable) (a *authenticator, call func() (waited time.Duration, err error)) {
	t.Helper()
	owner := background.New()
	t.Cleanup(owner.Close)
	find := endWith(owner, x.find)
	a = &authenticator{
		owner:     owner,
		known:     map[bool]*lookups[db.TokenAnswer]{false: newLookups(find, 0)},
		strangers: map[bool]*lookups[db.TokenAnswer]{false: newLookups(find, strangePause)},
		machines:  &machineAuth{known: newRecent[tokenKey, *knownMachine](1)},
		right:     newRecent[tokenKey, knownToken](10), wrong: newRecent[tokenKey, wrongToken](10),
	}
	token := "berth_000000000000_" + strings.Repeat("0", 64)
	return a, func() (time.Duration, error) {
		began := time.Now()
		_, err := a.principal(t.Context(), token, false)
		return time.Since(began), err
	}
}

// The look-up takes long during a flood of another tenant.
func TestAKnownTokenIsLookedUpBesideItsCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x := &userTable{takes: 500 * time.Millisecond}
		_, call := authenticatorOf(t, x)
		if waited, err := call(); err != nil || waited < x.takes {
			t.Fatalf("the first call: %v after %s", err, waited)
		}
		for range 100 {
			time.Sleep(authGrace - time.Second)
			if waited, err := call(); err != nil || waited > 0 {
				t.Errorf("a call: %v after %s", err, waited)
			}
			for range 10 { // one look-up for all of them
				if waited, err := call(); err != nil || waited > 0 {
					t.Errorf("a call at the same time: %v after %s", err, waited)
				}
			}
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if x.queries > 102 {
			t.Errorf("101 times with calls cost %d look-ups", x.queries)
		}
		time.Sleep(authGrace)
		if waited, err := call(); err != nil || waited < x.takes {
			t.Errorf("after a while without calls: %v after %s", err, waited)
		}
	})
}

// A token that another replica has revoked opens nothing authGrace after the start of the last look-up that found it
// good, whether the next ones are slow, fail or hang.
func TestARevokedTokenEndsWithinTheGrace(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		fails bool
		takes time.Duration
	}{{"quick", false, 0}, {"slow", false, 2 * time.Second}, {"fails", true, 10 * time.Millisecond}, {"hangs", false, time.Hour}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				x := &userTable{}
				_, call := authenticatorOf(t, x)
				if _, err := call(); err != nil {
					t.Fatal(err)
				}
				x.set(func(x *userTable) { x.revoked, x.fails, x.takes = true, c.fails, c.takes })
				revoked := time.Now()
				for time.Since(revoked) < time.Minute {
					if _, err := call(); err == nil && time.Since(revoked) >= authGrace {
						t.Fatalf("the token opens %s after its revocation", time.Since(revoked))
					}
					time.Sleep(100 * time.Millisecond)
				}
			})
		})
	}
}

// The replica that revokes a token refuses it at once, though a look-up under way has read the token before.
func TestARevocationHereOutrunsALookUpUnderWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x := &userTable{}
		a, call := authenticatorOf(t, x)
		if _, err := call(); err != nil {
			t.Fatal(err)
		}
		x.set(func(x *userTable) { x.takes = 500 * time.Millisecond })
		time.Sleep(authGrace - time.Second)
		if _, err := call(); err != nil { // starts a look-up
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		x.set(func(x *userTable) { x.revoked = true })
		a.forget()
		time.Sleep(500 * time.Millisecond) // the look-up has ended
		if _, err := call(); berth.CodeOf(err) != berth.CodeUnauthorized {
			t.Errorf("a token that was revoked here: %v", err)
		}
	})
}

// A transfer outlives the revocation of its token by its own interval and authMemory, not by authGrace in addition.
func TestTransfersLookTheirTokenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x := &userTable{}
		a, call := authenticatorOf(t, x)
		if _, err := call(); err != nil {
			t.Fatal(err)
		}
		x.set(func(x *userTable) { x.revoked = true })
		time.Sleep(authMemory)
		token := "berth_000000000000_" + strings.Repeat("0", 64)
		if err := a.holds(t.Context(), token); berth.CodeOf(err) != berth.CodeUnauthorized {
			t.Errorf("a transfer with a token that was revoked %s ago: %v", authMemory, err)
		}
	})
}
