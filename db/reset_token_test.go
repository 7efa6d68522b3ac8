package db_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

// newAdmin creates an admin token of tenant default and returns its document with the secret.
func (s *stage) newAdmin(name string) wire.Token {
	s.t.Helper()
	n := spec.NewToken{Name: name, Tenant: "default", Role: spec.RoleAdmin}
	made, err := s.db.Tokens.Create(s.t.Context(), n, "operator:test")
	if err != nil {
		s.t.Fatal(err)
	}
	return made
}

// authenticates reports whether the text is that of a valid token.
func (s *stage) authenticates(text string) bool {
	s.t.Helper()
	_, err := s.db.Tokens.Authenticate(s.t.Context(), text)
	if err != nil && berth.CodeOf(err) != berth.CodeUnauthorized {
		s.t.Fatal(err)
	}
	return err == nil
}

func TestAResetReplacesTheAdminTokensOfOneName(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	ctx := t.Context()
	lost, same, alice := s.newAdmin("admin"), s.newAdmin("admin"), s.newAdmin("alice")
	n := spec.NewToken{Name: "admin", Tenant: "default", Role: spec.RoleUser}
	user, err := s.db.Tokens.Create(ctx, n, "operator:test")
	if err != nil {
		t.Fatal(err)
	}
	gone := s.newAdmin("admin")
	for range 2 { // the second one is no event
		if err := s.db.Tokens.Revoke(ctx, gone.ID, "operator:alice"); err != nil {
			t.Fatal(err)
		}
	}
	r, err := s.db.Tokens.Reset(ctx, "default", "admin", "reset:root@db1", false)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{lost.ID, same.ID}; !slices.Equal(r.Revoked, want) || r.Others != 1 {
		t.Errorf("revoked %v, want %v; %d others, want 1", r.Revoked, want, r.Others)
	}
	for text, want := range map[string]bool{lost.Secret: false, same.Secret: false, alice.Secret: true,
		user.Secret: true, r.Text: true} {
		if got := s.authenticates(text); got != want {
			t.Errorf("the token %.18s is valid: %t, want %t", text, got, want)
		}
	}
	events, _, err := s.db.Tokens.Events(ctx, db.Paging{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range events[len(events)-4:] {
		got = append(got, e.Event+" "+e.Token+" "+e.Name+" by "+e.Actor)
	}
	want := []string{
		"revoked " + gone.ID + " admin by operator:alice", "revoked " + lost.ID + " admin by reset:root@db1",
		"revoked " + same.ID + " admin by reset:root@db1", "created " + r.ID + " admin by reset:root@db1",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestOfResetsAtOnceOneTokenIsLeft(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	ctx := t.Context()
	texts := make([]string, 8)
	var wg sync.WaitGroup
	for i := range texts {
		wg.Go(func() {
			var err error
			if i%4 == 0 { // a replica starts meanwhile
				texts[i], err = s.db.Tokens.CreateFirst(ctx, "default", "admin", "start:test", nil)
			} else {
				var r db.TokenReset
				r, err = s.db.Tokens.Reset(ctx, "default", "admin", "reset:test", false)
				texts[i] = r.Text
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	valid := 0
	for _, text := range texts {
		if text != "" && s.authenticates(text) {
			valid++
		}
	}
	if valid != 1 {
		t.Errorf("%d tokens are valid after the resets, want 1", valid)
	}
}

func TestATokenThatCannotBeKeptIsNotCreated(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	ctx := t.Context()
	full := errors.New("disk full")
	var kept string
	text, err := s.db.Tokens.CreateFirst(ctx, "default", "admin", "start:test", func(text string) error {
		kept = text
		return full
	})
	if text != "" || !errors.Is(err, full) {
		t.Errorf("a start without room for its token returns %q, %v", text, err)
	}
	if s.authenticates(kept) {
		t.Error("the token that could not be kept is valid")
	}
	// As after a crash between the write and the commit: the next start stores the kept text.
	if valid, err := s.db.Tokens.Ensure(ctx, kept,
		spec.NewToken{Name: "admin", Tenant: "default", Role: spec.RoleAdmin}, "start:test"); err != nil || !valid {
		t.Errorf("the kept text is valid: %t, %v", valid, err)
	}
	if again, err := s.db.Tokens.CreateFirst(ctx, "default", "admin", "start:test", nil); again != "" || err != nil {
		t.Errorf("a second token was created: %v", err)
	}
}

// The text of a token file or of BERTH_ADMIN_TOKEN is stored at each start, and must not bring
// back a token that a reset has revoked, however long ago.
func TestARevokedTextStaysRevoked(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	ctx := t.Context()
	ensure := func(text string) bool {
		t.Helper()
		valid, err := s.db.Tokens.Ensure(ctx, text,
			spec.NewToken{Name: "admin", Tenant: "default", Role: spec.RoleAdmin}, "start:test")
		if err != nil {
			t.Fatal(err)
		}
		return valid
	}
	printed, err := s.db.Tokens.CreateFirst(ctx, "default", "admin", "start:test", nil)
	if err != nil {
		t.Fatal(err)
	}
	if !ensure(printed) { // the operator has written it to a file
		t.Error("a known token is not valid")
	}
	if _, err := s.db.Tokens.Reset(ctx, "default", "admin", "reset:test", true); err != nil {
		t.Fatal(err)
	}
	mustExec(t, s.db.Pool(), `UPDATE tokens SET revoked_at = revoked_at - interval '1 year' WHERE revoked_at IS NOT NULL`)
	if _, err := s.db.Tokens.Prune(ctx, s.term(), 30*24*time.Hour, 100); err != nil {
		t.Fatal(err)
	}
	if ensure(printed) || s.authenticates(printed) {
		t.Error("a token that was revoked a year ago is valid again")
	}
}

func TestEventsOfTokensOutlastThemByARetention(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	ctx := t.Context()
	old, good := s.newAdmin("old"), s.newAdmin("good")
	if err := s.db.Tokens.Revoke(ctx, old.ID, "operator:test"); err != nil {
		t.Fatal(err)
	}
	mustExec(t, s.db.Pool(), `UPDATE tokens SET revoked_at = now() - interval '31 days' WHERE id = $1`, old.ID)
	mustExec(t, s.db.Pool(), `UPDATE token_events SET at = now() - interval '31 days' WHERE event = 'created'`)
	for range 2 {
		if _, err := s.db.Tokens.Prune(ctx, s.term(), 30*24*time.Hour, 100); err != nil {
			t.Fatal(err)
		}
	}
	var left []string
	events, _, err := s.db.Tokens.Events(ctx, db.Paging{})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		left = append(left, e.Event+" "+e.Token)
	}
	if diff := cmp.Diff([]string{"created " + good.ID, "revoked " + old.ID}, left); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

func TestARevocationByTheOwnerIsAnEvent(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	mine := s.newAdmin("alice")
	owner := db.Principal{Name: "alice", Tenant: "default", Role: spec.RoleAdmin}
	for range 2 { // the second one is no event
		if err := s.db.Tokens.RevokeOwn(t.Context(), owner, mine.ID); err != nil {
			t.Fatal(err)
		}
	}
	other := db.Principal{Name: "bob", Tenant: "default", Role: spec.RoleAdmin}
	if err := s.db.Tokens.RevokeOwn(t.Context(), other, mine.ID); berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("another caller revokes the token: %v", err)
	}
	events, _, err := s.db.Tokens.Events(t.Context(), db.Paging{})
	if err != nil || len(events) != 2 || events[1].Event != "revoked" || events[1].Actor != "user:alice" {
		t.Errorf("events are %+v, %v", events, err)
	}
}
