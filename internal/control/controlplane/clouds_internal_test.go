package controlplane

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/control/cloud"
	"berth/internal/control/cloud/faultcloud"
	"berth/internal/control/cloud/identity/identitytest"
)

func load(t *testing.T, text string) (cloud.Accounts, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cloud.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	kinds := map[string]NewProvider{"test": func(string, CloudProvider, *slog.Logger) (cloud.Provider, error) {
		return &faultcloud.Cloud{}, nil
	}}
	return loadClouds(path, kinds, slog.New(slog.DiscardHandler))
}

func TestTheCloudFileNamesProvidersWithTheirSettings(t *testing.T) {
	t.Parallel()
	a, err := load(t, `
url: https://berth.test:7070
providers:
  lab:
    kind: test
    regions: [eu-1]
    settings: {image: base}
    pools:
      gpu: {image: cuda}
`)
	if err != nil {
		t.Fatal(err)
	}
	for pool, want := range map[string]string{"burst": `{"image":"base"}`, "gpu": `{"image":"cuda"}`} {
		l, err := a.Request(cloud.Record{Provider: "lab", Pool: pool, Token: "t"}, "secret")
		if err != nil || string(l.Settings) != want || l.Bootstrap.URL != a.URL || l.Bootstrap.JoinToken != "secret" {
			t.Errorf("pool %s: %+v, %v", pool, l, err)
		}
	}
	if _, err := a.Account("none"); err == nil || !strings.Contains(err.Error(), "configured are lab") {
		t.Errorf("unknown provider: %v", err)
	}
}

func TestFaultsOfTheCloudFileAreNamed(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"url: https://b.test\nprovidres: {}\n":                                {"[2:1]", "providres"},
		"url: https://b.test\nproviders:\n  lab:\n    kind: test\n    x: 1\n": {"[5:5]", "x"},
		"url: b.test\n": {"url", "https://HOST", "name at least one"},
		"url: https://b.test\nproviders: {lab: {kind: other, regions: [r]}}":              {"kind \"other\"", "allowed are test"},
		"url: https://b.test\nproviders: {Lab: {kind: test}}":                             {"provider \"Lab\"", "regions"},
		"url: https://b.test\nca_file: /none\nproviders: {l: {kind: test, regions: [r]}}": {"ca_file /none"},
	} {
		_, err := load(t, text)
		for _, part := range want {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%q: %v, want %q", text, err, part)
			}
		}
	}
}

// A launch of a provider with an identity demands it, and each fault of the settings is named.
func TestAProviderMayDemandIdentities(t *testing.T) {
	t.Parallel()
	signer := identitytest.New(t, 1024)
	const before = "url: https://b.test\nproviders: {l: {kind: test, regions: [r], identity: "
	for _, c := range []struct{ text, source, audience string }{
		{`{kind: ec2, account: "123456789012", certificates: ` + signer.Certificate("aws.pem") + `}`, "ec2", ""},
		{`{kind: gce, project: burst}`, "gce", "berth/"},
		{`{kind: gce, project: burst, keys: "https://keys.test/certs"}`, "gce", "berth/"},
	} {
		a, err := load(t, before+c.text+"}}")
		if err != nil {
			t.Fatal(err)
		}
		l, err := a.Request(cloud.Record{Provider: "l", Machine: "m", N: 1}, "secret")
		id := l.Bootstrap.Identity
		if err != nil || id == nil || string(id.Source) != c.source || !strings.HasPrefix(id.Audience, c.audience) || (id.Audience == "") != (c.audience == "") {
			t.Errorf("%s: %+v, %v", c.text, id, err)
		}
	}
	for text, want := range map[string]string{
		`{kind: aws}`: "kind \"aws\"", `{kind: ec2, account: "1"}`: "12 digits", `{kind: gce}`: "project \"\"",
		`{kind: ec2, account: "123456789012", certificates: /none}`:                 "/none",
		`{kind: gce, project: p, keys: "http://keys.test"}`:                         "must be an https URL",
		`{kind: ec2, account: "123456789012", certificates: /none, project: burst}`: "gce with project and keys",
		`{kind: gce, project: p, audience: mine}`:                                   "audience",
		`{kind: ec2, account: "123456789012", certificates: ` +
			filepath.Dir(signer.Certificate("eu-west-1.pem")) + `}`: "no file for region r of the provider",
	} {
		if _, err := load(t, before+text+"}}"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestAProviderMayBeAProgram(t *testing.T) {
	t.Parallel()
	open := func(command, timeout string) error {
		_, err := newExecProvider("lab", CloudProvider{Command: []string{command}, Timeout: timeout}, slog.New(slog.DiscardHandler))
		return err
	}
	for _, command := range []string{"/bin/true", "/none"} { // one that is not installed yet is a warning
		if err := open(command, "30s"); err != nil {
			t.Error(err)
		}
	}
	for _, c := range []struct{ command, timeout, want string }{
		{"/bin/true", "soon", "timeout"}, {"true", "", "true"}, {"/bin/true", "2m", "1m30s"},
	} {
		if err := open(c.command, c.timeout); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if kinds := providerKinds(); kinds["exec"] == nil {
		t.Errorf("kinds %v", kinds)
	}
}
