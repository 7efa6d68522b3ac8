package db_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

// read reads a list of names in pages of two.
func read(t *testing.T, list func(p db.Paging) (names []string, next string, err error)) (names []string) {
	t.Helper()
	p := db.Paging{Limit: 2}
	for range 100 {
		some, next, err := list(p)
		if err != nil || len(some) > 2 || next != "" && len(some) != 2 {
			t.Fatalf("a page after %v: %v, next %q, %v", names, some, next, err)
		}
		names = append(names, some...)
		if p.Cursor = next; next == "" {
			return names
		}
	}
	t.Fatal("the list does not end")
	return nil
}

func TestListsAreReadInPagesWithoutGapOrRepeat(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	ctx := t.Context()
	var tokens, joins, tenants, secrets, outputs []string
	id := s.submit(nil)
	for i := range 5 {
		name := fmt.Sprintf("n%d", i)
		token, err := s.db.Tokens.Create(ctx, spec.NewToken{Name: name, Tenant: "default", Role: spec.RoleUser},
			"operator:test")
		if err != nil {
			t.Fatal(err)
		}
		join, err := s.db.JoinTokens.Create(ctx, spec.NewJoinToken{}, "test")
		if err != nil {
			t.Fatal(err)
		}
		if err := s.db.Tenants.Create(ctx, spec.NewTenant{ID: berth.TenantID(name)}); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.db.Secrets.Set(ctx, db.SealedSecret{Tenant: "default", Name: name, Key: "1", Sealed: []byte("x")}); err != nil {
			t.Fatal(err)
		}
		for attempt := range 2 {
			mustExec(t, s.db.Pool(), `INSERT INTO outputs (job, attempt, rank, name, address, files, bytes, stored_bytes, sha256, object) VALUES ($1, $2, 0, $3, '', 1, 1, 1, '', '')`, id, attempt+1, name)
		}
		tokens, joins, tenants, secrets = append(tokens, token.ID), append(joins, join.ID), append(tenants, name), append(secrets, name)
	}
	for attempt := 2; attempt > 0; attempt-- {
		for i := range 5 {
			outputs = append(outputs, fmt.Sprintf("%d/n%d", attempt, i))
		}
	}
	tenants = append([]string{"default"}, tenants...)
	for what, c := range map[string]struct {
		want []string
		list func(p db.Paging) ([]string, string, error)
	}{
		"tokens": {tokens, func(p db.Paging) ([]string, string, error) {
			l, next, err := s.db.Tokens.List(ctx, p)
			return names(l, func(t wire.Token) string { return t.ID }), next, err
		}},
		"join tokens": {joins, func(p db.Paging) ([]string, string, error) {
			l, next, err := s.db.JoinTokens.List(ctx, p)
			return names(l, func(t wire.JoinToken) string { return t.ID }), next, err
		}},
		"tenants": {tenants, func(p db.Paging) ([]string, string, error) {
			l, next, err := s.db.Tenants.Page(ctx, p)
			return names(l, func(t db.TenantRow) string { return string(t.ID) }), next, err
		}},
		"secrets": {secrets, func(p db.Paging) ([]string, string, error) {
			l, next, err := s.db.Secrets.List(ctx, "default", p)
			return names(l, func(t wire.Secret) string { return t.Name }), next, err
		}},
		"outputs": {outputs, func(p db.Paging) ([]string, string, error) {
			l, next, err := s.db.Objects.Outputs(ctx, id, p)
			return names(l, func(o db.OutputObject) string { return fmt.Sprintf("%d/%s", o.Attempt, o.Name) }), next, err
		}},
	} {
		if diff := cmp.Diff(c.want, read(t, c.list)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
		for _, bad := range []string{"x", "W10", "WzEsMiwzLDRd"} {
			if _, _, err := c.list(db.Paging{Cursor: bad}); berth.CodeOf(err) != berth.CodeInvalid {
				t.Errorf("%s after cursor %q: %v", what, bad, err)
			}
		}
	}
	if o, err := s.db.Objects.Output(ctx, id, "n3", 0, 0); err != nil || o.Attempt != 2 {
		t.Errorf("the latest output n3: %+v, %v", o, err)
	}
	if _, err := s.db.Objects.Output(ctx, id, "n3", 1, 0); berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("an output of another member: %v", err)
	}
}

func names[T any](list []T, name func(T) string) (out []string) {
	for _, x := range list {
		out = append(out, name(x))
	}
	return out
}

func TestTokensThatOpenNothingArePruned(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	ctx := t.Context()
	ids := map[string]string{}
	for _, name := range []string{"good", "expiring", "revoked just now", "revoked long ago", "expired long ago"} {
		made, err := s.db.Tokens.Create(ctx, spec.NewToken{Name: name, Tenant: "default", Role: spec.RoleUser},
			"operator:test")
		if err != nil {
			t.Fatal(err)
		}
		ids[name] = made.ID
	}
	given := "berth_000000000001_" + berth.NewSecret()
	ensure := func() (bool, error) {
		return s.db.Tokens.Ensure(ctx, given, spec.NewToken{Name: "given", Tenant: "default", Role: spec.RoleAdmin},
			"start:test")
	}
	if valid, err := ensure(); err != nil || !valid {
		t.Fatal(valid, err)
	}
	mustExec(t, s.db.Pool(), `UPDATE tokens SET expires_at = now() + interval '1 hour' WHERE id = $1`, ids["expiring"])
	mustExec(t, s.db.Pool(), `UPDATE tokens SET revoked_at = now() WHERE id = $1`, ids["revoked just now"])
	mustExec(t, s.db.Pool(), `UPDATE tokens SET revoked_at = now() - interval '31 days' WHERE id IN ($1, '000000000001')`, ids["revoked long ago"])
	mustExec(t, s.db.Pool(), `UPDATE tokens SET expires_at = now() - interval '31 days' WHERE id = $1`, ids["expired long ago"])
	for range 2 {
		if _, err := s.db.JoinTokens.Create(ctx, spec.NewJoinToken{}, "test"); err != nil {
			t.Fatal(err)
		}
	}
	mustExec(t, s.db.Pool(), `UPDATE join_tokens SET used_at = now() - interval '31 days' WHERE id = (SELECT min(id) FROM join_tokens)`)
	if n, err := s.db.Tokens.Prune(ctx, s.term(), 30*24*time.Hour, 100); n != 3 || err != nil {
		t.Errorf("pruned %d, %v; want 3", n, err)
	}
	var left []string
	list, _, err := s.db.Tokens.List(ctx, db.Paging{})
	if err != nil {
		t.Fatal(err)
	}
	for _, token := range list {
		left = append(left, token.Name)
	}
	if diff := cmp.Diff([]string{"good", "expiring", "revoked just now", "given"}, left); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
	if joins, _, err := s.db.JoinTokens.List(ctx, db.Paging{}); len(joins) != 1 || err != nil {
		t.Errorf("%d join tokens are left, %v", len(joins), err)
	}
	// A start of berthd with the text of a token that was revoked does not bring it back.
	if valid, err := ensure(); err != nil || valid {
		t.Error(valid, err)
	}
	if _, err := s.db.Tokens.Authenticate(ctx, given); berth.CodeOf(err) != berth.CodeUnauthorized {
		t.Errorf("the revoked token of the operator: %v", err)
	}
}

// Tokens of many callers are looked up together, so a text that the database cannot store
// must not reach the query.
func TestATokenOfOddBytesLeavesTheOtherAnswersAlone(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	good, err := s.db.Tokens.Create(t.Context(), spec.NewToken{Name: "good", Tenant: "default", Role: spec.RoleUser},
		"operator:test")
	if err != nil {
		t.Fatal(err)
	}
	odd := "berth_" + strings.Repeat("\xff", 12) + "_" + strings.Repeat("0", 64)
	for _, lookUp := range []func(context.Context, []string) ([]db.TokenAnswer, error){
		s.db.Tokens.AuthenticateUsers, s.db.Tokens.AuthenticateMachines,
	} {
		answers, err := lookUp(t.Context(), []string{odd, good.Secret})
		if err != nil {
			t.Fatalf("a good token next to an odd one: %v", err)
		}
		if answers[0].Err == nil || answers[1].Err != nil || answers[1].Principal.TokenID != good.ID {
			t.Errorf("got %+v; want the odd token refused and the good one accepted", answers)
		}
	}
}
