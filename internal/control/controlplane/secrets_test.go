package controlplane

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/db"
	"berth/db/dbtest"
	"berth/internal/lib/sealer"
	"berth/spec"
)

func keys(t *testing.T, digits ...string) *sealer.Keys {
	t.Helper()
	at := filepath.Join(t.TempDir(), "keys")
	var lines []string
	for _, d := range digits {
		lines = append(lines, strings.Repeat(d, 64))
	}
	if err := os.WriteFile(at, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	k, err := sealer.Load(at)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// A new first key takes over all secrets that the others open; after that the
// old one can go. A secret without a key stays unchanged.
func TestSecretsMoveToTheFirstKey(t *testing.T) {
	t.Parallel()
	d, err := db.Open(t.Context(), dbtest.URL(t), db.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	if err := d.Tenants.Create(t.Context(), spec.NewTenant{ID: "a"}); err != nil {
		t.Fatal(err)
	}
	set := func(k *sealer.Keys, name, value string) {
		key, sealed := k.Seal("a", name, []byte(value))
		if _, _, err := d.Secrets.Set(t.Context(), db.SealedSecret{Tenant: "a", Name: name, Key: key, Sealed: sealed}); err != nil {
			t.Fatal(err)
		}
	}
	old, both, fresh, lost := keys(t, "1"), keys(t, "2", "1"), keys(t, "2"), keys(t, "3")
	var names []string
	for i := range resealBatch + 5 { // more than one look takes
		names = append(names, "S"+strings.Repeat("x", i))
		set(old, names[i], names[i]+" value")
	}
	set(lost, "LOST", "value")
	c := &ControlPlane{log: slog.New(slog.DiscardHandler)}
	if err := c.resealAll(t.Context(), d, both); err != nil {
		t.Fatal(err)
	}
	list, err := d.Secrets.Sealed(t.Context(), "a", names)
	if err != nil || len(list) != len(names) {
		t.Fatalf("%d secrets, %v", len(list), err)
	}
	for _, s := range list {
		if v, err := fresh.Open(s.Tenant, s.Name, s.Key, s.Sealed); err != nil || string(v) != s.Name+" value" {
			t.Errorf("%s opens as %q, %v", s.Name, v, err)
		}
	}
	left, err := d.Secrets.NotUnder(t.Context(), both.Current(), db.SealedSecret{}, 10)
	if err != nil || len(left) != 1 || left[0].Name != "LOST" || left[0].Key != lost.Current() {
		t.Errorf("left are %+v, %v", left, err)
	}
	// One that was set meanwhile is not overwritten by its former value.
	stale := list[0]
	set(both, stale.Name, "new")
	if err := d.Secrets.Reseal(t.Context(), stale, stale); err != nil {
		t.Fatal(err)
	}
	now, err := d.Secrets.Sealed(t.Context(), "a", []string{stale.Name})
	if err != nil {
		t.Fatal(err)
	}
	if v, err := fresh.Open("a", stale.Name, now[0].Key, now[0].Sealed); err != nil || string(v) != "new" {
		t.Errorf("%q, %v", v, err)
	}
}
