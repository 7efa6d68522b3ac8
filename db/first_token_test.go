package db_test

import (
	"sync"
	"testing"

	"berth/db"
	"berth/spec"
)

func TestFirstTokenIsMadeOnce(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	secrets := make([]string, 8)
	var wg sync.WaitGroup
	for i := range secrets {
		wg.Go(func() {
			secret, err := s.db.Tokens.CreateFirst(t.Context(), "default", "admin", "start:test", nil)
			if err != nil {
				t.Error(err)
			}
			secrets[i] = secret
		})
	}
	wg.Wait()
	made := 0
	for _, secret := range secrets {
		if secret == "" {
			continue
		}
		made++
		p, err := s.db.Tokens.Authenticate(t.Context(), secret)
		if want := (db.Principal{TokenID: p.TokenID, Name: "admin", Tenant: "default", Role: spec.RoleAdmin}); err != nil || p != want {
			t.Errorf("the token stands for %+v, %v", p, err)
		}
		if err := s.db.Tokens.Revoke(t.Context(), p.TokenID, "operator:test"); err != nil {
			t.Fatal(err)
		}
	}
	if made != 1 {
		t.Errorf("%d tokens were made", made)
	}
	if again, err := s.db.Tokens.CreateFirst(t.Context(), "default", "admin", "start:test", nil); err != nil ||
		again == "" {
		t.Errorf("no way back in after the last token was revoked: %v", err)
	}
}
