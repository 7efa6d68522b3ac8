package sealer_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/lib/sealer"
)

func load(t *testing.T, text string) (*sealer.Keys, error) {
	t.Helper()
	at := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return sealer.Load(at)
}

const one, two = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff"

func TestASealedValueOpensForItsTenantAndNameAlone(t *testing.T) {
	t.Parallel()
	k, err := load(t, one+"\n")
	if err != nil {
		t.Fatal(err)
	}
	id, sealed := k.Seal("a", "TOKEN", []byte("hunter2"))
	if bytes.Contains(sealed, []byte("hunter2")) {
		t.Error("it is not sealed")
	}
	if v, err := k.Open("a", "TOKEN", id, sealed); err != nil || string(v) != "hunter2" {
		t.Errorf("%q, %v", v, err)
	}
	if _, again := k.Seal("a", "TOKEN", []byte("hunter2")); bytes.Equal(again, sealed) {
		t.Error("the same value is sealed alike twice")
	}
	changed := bytes.Clone(sealed)
	changed[len(changed)/2] ^= 1
	for what, open := range map[string]func() ([]byte, error){
		"another tenant": func() ([]byte, error) { return k.Open("b", "TOKEN", id, sealed) },
		"another name":   func() ([]byte, error) { return k.Open("a", "TOKEN2", id, sealed) },
		"a moved border": func() ([]byte, error) { return k.Open("a TOKEN", "", id, sealed) },
		"a changed byte": func() ([]byte, error) { return k.Open("a", "TOKEN", id, changed) },
		"half of it":     func() ([]byte, error) { return k.Open("a", "TOKEN", id, sealed[:5]) },
		"another key":    func() ([]byte, error) { return k.Open("a", "TOKEN", "x", sealed) },
	} {
		if v, err := open(); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %q, %v", what, v, err)
		}
	}
}

func TestTheFirstKeySealsAndAllOpen(t *testing.T) {
	t.Parallel()
	before, err := load(t, one)
	if err != nil {
		t.Fatal(err)
	}
	id, sealed := before.Seal("a", "T", []byte("v"))
	after, err := load(t, "# the new one\n"+two+" # since today\n\n"+one+"\n")
	if err != nil {
		t.Fatal(err)
	}
	if v, err := after.Open("a", "T", id, sealed); err != nil || string(v) != "v" {
		t.Errorf("%q, %v", v, err)
	}
	if newID, _ := after.Seal("a", "T", nil); newID == id || newID != after.Current() {
		t.Errorf("sealed with %s", newID)
	}
}

func TestKeyFilesThatAreNoneSayWhy(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "# nothing\n", "secret", one[:62], one + "ab", strings.Repeat("g", 64)} {
		if _, err := load(t, text); err == nil || !strings.Contains(err.Error(), "openssl rand -hex 32") || len(text) > 20 && strings.Contains(err.Error(), text) {
			t.Errorf("%q: %v", text, err)
		}
	}
	at := filepath.Join(t.TempDir(), "keys")
	for range 2 {
		if err := sealer.Make(at); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(at)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if _, err := sealer.Load(at); err != nil {
		t.Error(err)
	}
}
