package main

import (
	"maps"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"berth/internal/lib/flags/flagsdoc"
)

// docs/reference/berth-temporal.md is generated from the flags, so it cannot lag behind.
func TestTheReferenceIsTheFlags(t *testing.T) {
	t.Parallel()
	s := defaults()
	f := pflag.NewFlagSet("berth-temporal", pflag.ContinueOnError)
	s.flags(f)
	flagsdoc.Hold(t, "../../docs/reference/berth-temporal.md", "berth-temporal",
		"`berth-temporal` is a Temporal server for small sites, one process on one host. "+
			"[Temporal](../operate/temporal.md#a-server-for-small-sites) explains its use and its limits.", f)
}

// Each fault of the settings is named with its setting, and all of them at once.
func TestFaultsOfSettingsAreNamed(t *testing.T) {
	t.Parallel()
	sound := map[string]string{"database-url": "postgres://t@127.0.0.1/temporal"}
	tls := map[string]string{"tls-cert": "c", "tls-key": "k", "tls-ca": "a"}
	for _, c := range []struct {
		name   string
		set    map[string]string
		faults []string // none: the settings are sound
	}{
		{"defaults", nil, nil},
		{"no database", map[string]string{"database-url": ""}, []string{"--database-url"}},
		{"a name", map[string]string{"listen": "temporal.internal:7233"}, []string{"write an IP address"}},
		{"localhost", map[string]string{"listen": "localhost:7233"}, nil},
		{"no port", map[string]string{"listen": "127.0.0.1"}, []string{"write an IP address"}},
		{"a port beyond the last", map[string]string{"listen": "127.0.0.1:70000"}, []string{"write an IP address"}},
		{"all addresses without TLS", map[string]string{"listen": "0.0.0.0:7233"}, []string{"it has no TLS"}},
		{"one address without TLS", map[string]string{"listen": "10.1.2.3:7233"}, []string{"it has no TLS"}},
		{"the risk is accepted", map[string]string{"listen": "0.0.0.0:7233", "allow-plaintext": "true"}, nil},
		{"two of three files", map[string]string{"tls-cert": "c", "tls-key": "k"}, []string{"three files, and 2 are set"}},
		{"a database elsewhere", map[string]string{"database-url": "postgres://t@db.internal/temporal?sslmode=require"},
			[]string{"database on db.internal", "sslmode=verify-full"}},
		{"metrics for all", map[string]string{"metrics-listen": "0.0.0.0:9233"}, []string{"metrics have no TLS"}},
		{"metrics for this host", map[string]string{"metrics-listen": "127.0.0.1:9233"}, nil},
		{"several faults", map[string]string{"listen": "x", "ui-port": "-1", "metrics-listen": "9233"},
			[]string{"listen address", "UI port", "metrics address"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			assertFaults(t, c.faults, sound, c.set)
		})
	}
	t.Run("TLS on all addresses", func(t *testing.T) {
		t.Parallel()
		assertFaults(t, nil, sound, tls, map[string]string{"listen": "0.0.0.0:7233"})
	})
}

// assertFaults validates the settings of some maps, of which later ones take precedence.
func assertFaults(t *testing.T, want []string, set ...map[string]string) {
	t.Helper()
	s := defaults()
	f := pflag.NewFlagSet("berth-temporal", pflag.ContinueOnError)
	s.flags(f)
	all := map[string]string{}
	for _, m := range set {
		maps.Copy(all, m)
	}
	for name, value := range all {
		if err := f.Set(name, value); err != nil {
			t.Fatal(err)
		}
	}
	err := s.validate()
	if (err == nil) != (len(want) == 0) {
		t.Fatalf("fault %v, want %q", err, want)
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("fault %q lacks %q", err, w)
		}
	}
}
