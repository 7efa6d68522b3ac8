package controlplane

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth"
	"berth/db"
	"berth/db/dbtest"
	"berth/internal/control/cloud"
	"berth/internal/control/cloud/offers"
	"berth/spec"
)

// A changed file of offers replaces the offers as a whole, and one with a bad line changes nothing.
func TestOffersFollowTheirFile(t *testing.T) {
	t.Parallel()
	d := dbtest.DB(t, db.Options{})
	path := filepath.Join(t.TempDir(), "offers.csv")
	l := &offerLoader{offers: d.Offers, log: slog.New(slog.DiscardHandler),
		accounts: cloud.Accounts{Offers: path, Providers: map[string]cloud.Account{"lab": {}, "none": {}}}}
	const small = "lab,r,,small,spot,4,1024,0,,0.5,list,2026-11-26\n"
	for _, c := range []struct {
		lines string
		ok    bool
		types string
	}{
		{small + strings.ReplaceAll(small, "lab", "other"), true, "small"},
		{small + "lab,r,,big,spot,x\n", false, "small"},
		{strings.ReplaceAll(small, "small", "big"), true, "big"},
	} {
		if err := os.WriteFile(path, []byte(offers.Header+"\n"+c.lines), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := l.load(t.Context()); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.lines, err)
		}
		all, err := d.Offers.All(t.Context())
		if err != nil || len(all) != 1 || all[0].Type != c.types || all[0].Provider != "lab" {
			t.Errorf("after %s: %+v, %v", c.lines, all, err)
		}
	}
	// An unchanged file is not loaded again, and keeps changes of operators.
	if _, err := d.Pool().Exec(t.Context(), `UPDATE offers SET source = 'contract'`); err != nil {
		t.Fatal(err)
	}
	if err := l.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if all, err := d.Offers.All(t.Context()); err != nil || all[0].Source != "contract" {
		t.Errorf("%+v, %v", all, err)
	}
}

func TestAReachedLimitIsLogged(t *testing.T) {
	t.Parallel()
	d := dbtest.DB(t, db.Options{})
	var out bytes.Buffer
	b := &biller{spend: d.Spend, log: slog.New(slog.NewTextHandler(&out, nil))}
	if err := d.Burst.Set(t.Context(), "default", spec.Burst{Allow: []string{"lab/r"},
		Spend: &spec.BurstSpend{Limit: 10, Warn: 0.2}}, "user:admin"); err != nil {
		t.Fatal(err)
	}
	request := cloud.Request{Pool: "p", Provider: "lab", Price: 2, Tenant: "default",
		Offering: cloud.Offering{Region: "r", Type: "x", Market: cloud.OnDemand}}
	if _, err := d.Launches.Request(t.Context(), request, []berth.MachineID{"m"}, "", "leader"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := b.settle(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if text := out.String(); strings.Count(text, "level=WARN") != 1 || !strings.Contains(text, "tenant=default level=warn used_dollars=2 limit_dollars=10") {
		t.Errorf("log %q", text)
	}
}
