package db_test

import (
	"testing"

	"berth"
	"berth/db"
	"berth/spec"
)

// A caller sees and revokes the tokens of its name in its tenant, and no others.
func TestACallerRevokesItsOwnTokensOnly(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	ids := map[string]string{}
	for _, n := range []spec.NewToken{
		{Name: "alice", Tenant: "default", Role: spec.RoleUser}, {Name: "bob", Tenant: "default", Role: spec.RoleUser},
		{Name: "alice", Tenant: "other", Role: spec.RoleUser},
	} {
		token, err := s.db.Tokens.Create(t.Context(), n, "operator:test")
		if err != nil {
			t.Fatal(err)
		}
		ids[n.Name+"@"+string(n.Tenant)] = token.ID
	}
	alice := db.Principal{Name: "alice", Tenant: "default", Role: spec.RoleUser, TokenID: ids["alice@default"]}
	list, _, err := s.db.Tokens.ListOwn(t.Context(), alice, db.Paging{})
	if err != nil || len(list) != 1 || list[0].ID != ids["alice@default"] {
		t.Errorf("alice sees %+v, %v", list, err)
	}
	for _, of := range []string{"bob@default", "alice@other"} {
		if err := s.db.Tokens.RevokeOwn(t.Context(), alice, ids[of]); berth.CodeOf(err) != berth.CodeNotFound {
			t.Errorf("alice revokes the token of %s: %v", of, err)
		}
	}
	for range 2 { // a repeat is no error
		if err := s.db.Tokens.RevokeOwn(t.Context(), alice, alice.TokenID); err != nil {
			t.Error(err)
		}
	}
	live, err := s.db.Tokens.Live(t.Context(), []string{ids["alice@default"], ids["bob@default"], ids["alice@other"]})
	if err != nil || len(live) != 2 || live[alice.TokenID] {
		t.Errorf("live tokens: %v, %v", live, err)
	}
}

// A token of a lesser role with the name of an admin's cannot revoke the admin's token.
func TestOnlyAdminsRevokeOwnTokensOfAdmins(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	ids := map[spec.Role]string{}
	for _, role := range []spec.Role{spec.RoleAdmin, spec.RoleUser, spec.RoleViewer} {
		token, err := s.db.Tokens.Create(t.Context(), spec.NewToken{Name: "ops", Tenant: "default", Role: role},
			"operator:test")
		if err != nil {
			t.Fatal(err)
		}
		ids[role] = token.ID
	}
	caller := db.Principal{Name: "ops", Tenant: "default", Role: spec.RoleUser}
	if err := s.db.Tokens.RevokeOwn(t.Context(), caller, ids[spec.RoleAdmin]); berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("a user revokes an admin's token: %v", err)
	}
	if err := s.db.Tokens.RevokeOwn(t.Context(), caller, ids[spec.RoleViewer]); err != nil {
		t.Errorf("a user revokes a viewer's token of its name: %v", err)
	}
	caller.Role = spec.RoleAdmin
	for _, role := range []spec.Role{spec.RoleUser, spec.RoleAdmin} {
		if err := s.db.Tokens.RevokeOwn(t.Context(), caller, ids[role]); err != nil {
			t.Errorf("an admin revokes its token of role %s: %v", role, err)
		}
	}
}

// Lists select by submitter and by dead letters, live and archived alike, and count all pages.
func TestListsSelectBySubmitterAndDeadLetter(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	archived, _ := s.ended(), s.ended()
	mustExec(t, s.pool, `UPDATE allocations SET forgotten_at = now() WHERE job = $1`, archived)
	s.archive(1)
	array := s.array(2, nil)
	s.tend(array)
	mustExec(t, s.pool, `UPDATE archived_jobs SET job = job || '{"dead_letter": true}', state = 'failed' WHERE id = $1`,
		archived)
	for name, row := range map[string]struct {
		filter db.JobFilter
		want   int
	}{
		"all":            {db.JobFilter{}, 3},
		"of a submitter": {db.JobFilter{SubmittedBy: "user:test"}, 3},
		"of no one":      {db.JobFilter{SubmittedBy: "user:none"}, 0},
		"elements":       {db.JobFilter{SubmittedBy: "user:test", Parent: &array}, 2},
		"dead letters":   {db.JobFilter{DeadLetter: true}, 1},
		"dead, by label": {db.JobFilter{DeadLetter: true, SubmittedBy: "user:test",
			Labels: map[string]string{"k": "v"}}, 1},
		"one of all": {db.JobFilter{Limit: 1}, 3},
	} {
		list, _, err := s.db.Jobs.List(t.Context(), row.filter)
		if want := row.want; err != nil || row.filter.Limit == 0 && len(list) != want {
			t.Errorf("%s: %d jobs, %v; want %d", name, len(list), err, want)
		}
		if n, err := row.filter.Count(t.Context(), s.db.Jobs); err != nil || n != row.want {
			t.Errorf("%s: counted %d, %v; want %d", name, n, err, row.want)
		}
		for _, j := range list {
			if j.SubmittedBy != "user:test" {
				t.Errorf("%s: job %s was submitted by %q", name, j.ID, j.SubmittedBy)
			}
		}
	}
}
