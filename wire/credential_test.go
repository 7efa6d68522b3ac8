package wire_test

import (
	"crypto/ed25519"
	"strings"
	"testing"

	"berth"
	"berth/wire"
)

func TestProofsHoldForTheirMachineAndToken(t *testing.T) {
	t.Parallel()
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	token := wire.NewMachineToken()
	p, err := wire.ParseKeyProof(wire.ProveKey(key, "m1", token).String())
	if err != nil || !p.Key.Equal(public) || !p.Proves("m1", token) {
		t.Errorf("%v: %+v", err, p)
	}
	if p.Proves("m2", token) || p.Proves("m1", wire.NewMachineToken()) || (wire.KeyProof{}).Proves("m1", token) {
		t.Error("the proof holds for another machine or token")
	}
	r, err := wire.ParseRenewal(wire.NewRenewal(key, "m1", 7, token).String())
	if err != nil || !r.Signed() || r.Number != 7 || r.Machine != "m1" || !strings.HasPrefix(token, "berth_"+r.TokenID+"_") {
		t.Fatalf("%v: %+v", err, r)
	}
	for name, edit := range map[string]func(r *wire.Renewal){
		"machine": func(r *wire.Renewal) { r.Machine = "m2" },
		"number":  func(r *wire.Renewal) { r.Number++ },
		"id":      func(r *wire.Renewal) { r.TokenID = "000000000000" },
		"hash":    func(r *wire.Renewal) { r.TokenSum = make([]byte, 32) },
		"key":     func(r *wire.Renewal) { r.Key = make([]byte, 32) },
		"purpose": func(r *wire.Renewal) { r.Signature = p.Signature },
		"no key":  func(r *wire.Renewal) { r.Key = nil },
	} {
		edited := r
		if edit(&edited); edited.Signed() {
			t.Errorf("another %s is signed, too", name)
		}
	}
}

func TestBadRenewalsNameTheFault(t *testing.T) {
	t.Parallel()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	part := strings.Split(wire.NewRenewal(key, "m1", 7, wire.NewMachineToken()).String(), " ")
	with := func(i int, text string) string {
		edited := append([]string(nil), part...)
		edited[i] = text
		return strings.Join(edited, " ")
	}
	for text, want := range map[string]string{
		"":                          "six parts",
		strings.Repeat("x ", 1000):  "six parts",
		with(0, "M1"):               "machine name",
		with(1, part[1]+"A"):        "wrong length",
		with(1, part[1][:42]+"\n"):  "wrong length",
		with(2, "0"):                "number",
		with(2, "1e9"):              "number",
		with(3, "ABCDEFABCDEF"):     "12 hex digits",
		with(3, "00"):               "12 hex digits",
		with(4, ""):                 "wrong length",
		with(5, part[5][:20]):       "wrong length",
		strings.Join(part[:5], " "): "six parts",
	} {
		if _, err := wire.ParseRenewal(text); berth.CodeOf(err) != berth.CodeInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v, want %q", text, err, want)
		}
	}
	for _, text := range []string{"", "a", "a b", part[1] + " " + part[1], part[1] + " " + part[5] + " x"} {
		if _, err := wire.ParseKeyProof(text); berth.CodeOf(err) != berth.CodeInvalid {
			t.Errorf("key proof %.60q: %v", text, err)
		}
	}
}
