package db

import (
	"encoding/base64"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"berth"
)

// FuzzToken: a text with the form of a token has parts that the database can store, and no
// other form of the same token passes.
func FuzzToken(f *testing.F) {
	_, minted, _ := mintToken(tokenPrefix)
	_, join, _ := mintToken(joinTokenPrefix)
	for _, seed := range []string{
		minted, join, "", "berth__", "berth_" + strings.Repeat("\xff", 12) + "_" + strings.Repeat("0", 64),
		minted + "_", strings.Replace(minted, "_", "_\x00", 1), strings.ToUpper(minted), " " + minted,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		user, machine := TokenShaped(text), JoinTokenShaped(text)
		if user && machine {
			t.Fatalf("%q is both a token and a join token", text)
		}
		for prefix, shaped := range map[string]bool{tokenPrefix: user, joinTokenPrefix: machine} {
			id, sum, ok := tokenID(prefix, text)
			if ok != shaped {
				t.Fatalf("%q: shaped is %t, but the id says %t", text, shaped, ok)
			}
			if !ok {
				if id != "" || sum != nil {
					t.Errorf("%q is refused, with id %q and a hash", text, id)
				}
				continue
			}
			secret := strings.TrimPrefix(text, prefix+"_"+id+"_")
			if len(id) != 12 || len(secret) != 64 || strings.Trim(id+secret, "0123456789abcdefABCDEF") != "" {
				t.Errorf("%q passes with id %q and secret %q, which are no hex digits", text, id, secret)
			}
		}
	})
}

// FuzzCursor: a cursor is refused, or it is the position that it encodes: in values that a
// query accepts, and the same after another round.
func FuzzCursor(f *testing.F) {
	encode := base64.RawURLEncoding.EncodeToString
	at := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	index := 7
	for _, seed := range []string{
		"", "x", encode([]byte(`[]`)), encode([]byte(`["2026-01-31T12:00:00Z","a"]`)),
		encode([]byte(`["2026-01-31T12:00:00Z","a\u0000"]`)), encode([]byte(`[null,null]`)), encode([]byte(`[0,"",1,2]`)),
		jobCursor{At: at, ID: berth.NewJobID(at)}.String(),
		jobCursor{At: at, ID: berth.NewJobID(at), Below: true, Index: &index}.String(),
		jobCursor{At: at, ID: berth.NewJobID(at), Below: true}.String(),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p := Paging{Limit: 1, Cursor: text}
		var when time.Time
		var name string
		some, err := p.after(&when, &name)
		checkRefusal(t, text, err)
		if some {
			if strings.ContainsRune(name, 0) || !utf8.ValidString(name) {
				t.Errorf("%q has the name %q, which the database refuses", text, name)
			}
			_, next := cut(p, []string{"a", "b"}, func(string) []any { return []any{when, name} })
			var when2 time.Time
			var name2 string
			if _, err := (Paging{Cursor: next}).after(&when2, &name2); err != nil || !when2.Equal(when) || name2 != name {
				t.Errorf("%q is %s %q; encoded again it is %s %q, %v", text, when, name, when2, name2, err)
			}
		}
		c, err := parseCursor(text)
		checkRefusal(t, text, err)
		if c == nil {
			return
		}
		if year := c.At.Year(); year < 2000 || year > 2200 {
			t.Errorf("%q is at %s", text, c.At)
		}
		again, err := parseCursor(c.String())
		same := err == nil && again.At.Equal(c.At) && again.ID == c.ID && again.Below == c.Below
		if !same || (again.Index == nil) != (c.Index == nil) || c.Index != nil && *c.Index != *again.Index {
			t.Errorf("%q is %+v; encoded again it is %+v, %v", text, c, again, err)
		}
	})
}

// checkRefusal fails for a refusal that is no short error of the caller.
func checkRefusal(t *testing.T, text string, err error) {
	t.Helper()
	if err != nil && (berth.CodeOf(err) != berth.CodeInvalid || len(err.Error()) > 400) {
		t.Errorf("%q is refused with %v", text, err)
	}
}

// FuzzHandle: an argument of the form of a handle or of the beginning of an id selects exactly
// the ids that end or begin with it, and its text alone decides.
func FuzzHandle(f *testing.F) {
	for _, seed := range []string{"d3f9a2", "019ab3c4-0f2e", "019ab3c4-0f2e-7c11-9b1d-5e02c7d3f9a2", "0000", "job", "-", "ABCDEF", "d3f9a2\x00"} {
		f.Add(seed, "019ab3c4-0f2e-7c11-9b1d-5e02c7d3f9a2")
	}
	f.Fuzz(func(t *testing.T, arg, other string) {
		sql, args := resolveQuery("t", arg)
		lo, hi, prefix := idRange(arg)
		if (sql != "") != (prefix || isHandle(arg)) {
			t.Fatalf("%q: a query %q", arg, sql)
		}
		if strings.Contains(sql, arg) && len(arg) >= minPrefix && sql != "" && strings.ContainsAny(arg, "'\";") {
			t.Errorf("%q is part of the statement", arg)
		}
		if isHandle(arg) && (args["tail"] != reversed(arg) || reversed(reversed(arg)) != arg) {
			t.Errorf("%q is looked up as %v", arg, args["tail"])
		}
		if !prefix {
			return
		}
		for _, end := range []string{lo, hi} {
			if len(end) != 36 || !strings.HasPrefix(end, arg) {
				t.Errorf("%q reaches from %s to %s", arg, lo, hi)
			}
		}
		if id, err := berth.ParseJobID(other); err == nil && (string(id) >= lo && string(id) <= hi) != strings.HasPrefix(string(id), arg) {
			t.Errorf("%q reaches from %s to %s, and %s is on the wrong side", arg, lo, hi, id)
		}
	})
}
