package db_test

import (
	"strings"
	"testing"

	"berth"
	"berth/spec"
)

// A join token with a pattern admits machines with matching names, and a refused join does not use it up.
func TestAJoinTokenAdmitsTheNamesOfItsPattern(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for _, c := range []struct {
		pattern         string
		refused, admits berth.MachineID
	}{
		{"", "", "any"},
		{"gpu-7", "gpu-70", "gpu-7"},
		{"gpu-*", "cpu-1", "gpu-9"},
		{"*-a", "x-ab", "x-a"},
		{"r*-n*", "r1n2", "r1-n2"},
	} {
		token, err := s.db.JoinTokens.Create(t.Context(), spec.NewJoinToken{Machines: c.pattern}, "operator:test")
		if err != nil || token.Machines != c.pattern {
			t.Fatalf("token %+v, %v", token, err)
		}
		if c.refused != "" {
			_, _, err := s.db.JoinTokens.Join(t.Context(), token.Secret, c.refused)
			if berth.CodeOf(err) != berth.CodeForbidden || !strings.Contains(err.Error(), c.pattern) {
				t.Errorf("%q admits %s: %v", c.pattern, c.refused, err)
			}
			// A berthd of the version before does not know the pattern.
			refuses(t, s.pool, "BT013", `UPDATE join_tokens SET used_by = $2, used_at = now() WHERE id = $1`, token.ID, string(c.refused))
		}
		if _, _, err := s.db.JoinTokens.Join(t.Context(), token.Secret, c.admits); err != nil {
			t.Errorf("%q refuses %s: %v", c.pattern, c.admits, err)
		}
	}
}
