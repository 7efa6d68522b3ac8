package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"berth"
	"berth/internal/control/admission"
	"berth/internal/control/controlplane"
	"berth/internal/lib/flags"
)

func parse(t *testing.T, env map[string]string, args ...string) (settings, error) {
	t.Helper()
	s := settings{Config: controlplane.Default()}
	f := pflag.NewFlagSet("berthd", pflag.ContinueOnError)
	s.flags(f)
	if err := f.Parse(args); err != nil {
		return s, err
	}
	lookup := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	if err := flags.FromEnvironment(f, lookup); err != nil {
		return s, err
	}
	if err := s.parse(); err != nil {
		return s, err
	}
	return s, s.Validate()
}

func TestFlagsWinOverTheEnvironment(t *testing.T) {
	t.Parallel()
	env := map[string]string{
		"BERTH_DATABASE_URL": "postgres://env/berth", "BERTH_BLOB_URL": "file:///blobs",
		"BERTH_RETENTION": "48h", "BERTH_ROLE": "api,leader", "BERTH_FILE_INPUTS": "/datasets=a,b; /models",
	}
	s, err := parse(t, env, "--database-url", "postgres://flag/berth")
	if err != nil {
		t.Fatal(err)
	}
	if s.DatabaseURL != "postgres://flag/berth" || s.BlobURL != "file:///blobs" || s.Retention != 48*time.Hour {
		t.Errorf("settings are %+v", s.Config)
	}
	volumes, err := admission.ParseVolumes(s.FileInputs)
	if err != nil || len(volumes) != 2 || volumes["models"] != nil || !slices.Equal(volumes["datasets"], []berth.TenantID{"a", "b"}) {
		t.Errorf("jobs may read %v, %v", volumes, err)
	}
	if !s.Plays(controlplane.RoleLeader) || s.Plays(controlplane.RoleWorker) {
		t.Errorf("roles are %v", s.Roles)
	}
}

func TestWrongSettingsNameThemselves(t *testing.T) {
	t.Parallel()
	ok := []string{"--database-url", "postgres://x/berth", "--blob-url", "file:///blobs"}
	for _, c := range []struct{ arg, says string }{
		{"--role=api,pilot", "pilot"},
		{"--pprof=0.0.0.0:6060", "loopback"},
		{"--listen=7070", "HOST:PORT"},
		{"--lost-after=1s", "suspect-after"},
		{"--tls-cert=a.pem", "key"},
		{"--log-level=loud", "loud"},
		{"--database-conns=1", "4 to 1000"},
		{"--max-connections=1", "64 to 1000000"},
		{"--trusted-proxies=10.0.0.0/33", "10.0.0.0/33"},
		{"--srsf-exponent=3", "0 to 2"},
		{"--srsf-outrank=0.5", "1 to 1000"},
		{"--nomination-for=0s", "allowed are 1m0s and more"},
		{"--earmark-for=0s", "allowed are 1m0s and more"},
		{"--overdue=-1h", "must not be negative"},
		{"--file-inputs=/etc", "/etc is a system folder"},
		{"--file-inputs=datasets", "write /NAME or /NAME=TENANT,TENANT"},
		{"--file-inputs=/a;/b=", "/b: \"\" is not a tenant"},
		{"--file-inputs=/a=x,Y", "/a: \"Y\" is not a tenant"},
		{"--file-inputs=/a;/a=x", "/a is listed twice"},
	} {
		if _, err := parse(t, nil, append(ok, c.arg)...); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.arg, err)
		}
	}
	if _, err := parse(t, map[string]string{"BERTH_RETENTION": "soon"}, ok...); err == nil || !strings.Contains(err.Error(), "BERTH_RETENTION") {
		t.Errorf("a wrong variable: %v", err)
	}
	if _, err := parse(t, nil); err == nil || !strings.Contains(err.Error(), "BERTH_DATABASE_URL") || !strings.Contains(err.Error(), "BERTH_BLOB_URL") {
		t.Errorf("no settings at all: %v", err)
	}
}
