package identity_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"berth/internal/machine/identity"
	"berth/wire"
)

func TestSettingsOfTheIdentity(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ setting, audience, want string }{
		{"off", "", ""}, {"ec2", "", ""}, {"gce", "berth/1", ""}, {"ec2=http://127.0.0.1:1338", "", ""},
		{"gce", "", "needs the audience"}, {"gce", "a b", "printable ASCII"}, {"aws", "", "allowed are off, ec2 and gce"},
		{"ec2=https://127.0.0.1", "", "allowed is an address"}, {"", "", "allowed are off"},
	} {
		_, err := identity.Open(c.setting, c.audience)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestAnswersThatAreNoIdentityAreErrors(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		setting string
		serve   http.HandlerFunc
		want    string
	}{
		"long":     {"ec2", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, strings.Repeat("x", wire.MaxIdentity+1)) }, "allowed are 1 to 16384"},
		"together": {"ec2", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, strings.Repeat("x", wire.MaxIdentity/2+1)) }, "the identity has"},
		"empty":    {"ec2", func(http.ResponseWriter, *http.Request) {}, "0 bytes"},
		"absent":   {"ec2", http.NotFound, "answers 404"},
		"elsewhere": {"ec2", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusFound)
		}, "answers 302"},
		"foreign": {"gce", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "a.b.c") }, "no header Metadata-Flavor"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(c.serve)
			t.Cleanup(server.Close)
			source, err := identity.OpenPatient(c.setting+"="+server.URL, "berth/1")
			if err != nil {
				t.Fatal(err)
			}
			if id, err := source.Read(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%+v, %v, want %q", id, err, c.want)
			}
		})
	}
}
