package main

import (
	"crypto/tls"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"go.temporal.io/sdk/client"

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
		"BERTH_DATABASE_URL": "postgres://env@localhost/berth", "BERTH_BLOB_URL": "file:///blobs",
		"BERTH_RETENTION": "48h", "BERTH_ROLE": "api,leader", "BERTH_FILE_INPUTS": "/datasets=a,b; /models",
	}
	s, err := parse(t, env, "--database-url", "postgres://flag@localhost/berth")
	if err != nil {
		t.Fatal(err)
	}
	if s.DatabaseURL != "postgres://flag@localhost/berth" || s.BlobURL != "file:///blobs" || s.Retention != 48*time.Hour {
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
	ok := []string{"--database-url", "postgres://x@localhost/berth", "--blob-url", "file:///blobs"}
	for _, c := range []struct{ arg, says string }{
		{"--role=api,pilot", "pilot"},
		{"--pprof=0.0.0.0:6060", "loopback"},
		{"--listen=7070", "HOST:PORT"},
		{"--listen=0.0.0.0:7070", "no TLS"},
		{"--listen=:7070", "no TLS"},
		{"--listen=api.internal:7070", "no TLS"},
		{"--peer-url=http://10.0.0.5:7070", "write https://HOST:PORT"},
		{"--database-url=postgres://x@db/berth", "database on db: the connection does not verify the server"},
		{"--database-url=postgres://x@db/berth?sslmode=require", "sslmode=verify-full"},
		{"--database-url=postgres://x@db/berth?sslmode=verify-ca", "sslmode=verify-full"},
		{"--database-url=postgres://x@localhost,10.0.0.7/berth", "database on 10.0.0.7"},
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
		{"--images=ghcr.io,busybox", "\"busybox\" names no registry"},
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

func TestConnectionsBeyondThisMachineHaveTLS(t *testing.T) {
	t.Parallel()
	ok := []string{"--blob-url", "file:///blobs"}
	for _, args := range [][]string{
		{"--database-url=postgres://x@127.0.0.1/berth"},
		{"--database-url=postgres://x@[::1]/berth", "--listen=[::1]:7070"},
		{"--database-url=postgres:///berth?host=/run/postgresql"},
		{"--database-url=postgres://x@db/berth?sslmode=verify-full"},
		{"--database-url=postgres:///berth?host=/run/postgresql", "--listen=0.0.0.0:7070", "--tls-cert=a", "--tls-key=b"},
		{"--database-url=postgres:///berth?host=/run/postgresql", "--listen=0.0.0.0:7070", "--role=worker"},
		{"--database-url=postgres:///berth?host=/run/postgresql", "--peer-url=https://10.0.0.5:7070"},
		{"--database-url=postgres://x@db/berth", "--listen=0.0.0.0:7070", "--peer-url=http://10.0.0.5", "--allow-plaintext"},
	} {
		if _, err := parse(t, nil, append(ok, args...)...); err != nil {
			t.Errorf("%v: %v", args, err)
		}
	}
	s, err := parse(t, nil, append(ok, "--database-url=postgres:///berth?host=/run/postgresql", "--temporal-address=temporal:7233")...)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := controlplane.New(s.Config, controlplane.Options{}); err == nil || !strings.Contains(err.Error(), "TEMPORAL_TLS=true") {
		t.Errorf("plain Temporal: %v", err)
	}
	secure := client.Options{ConnectionOptions: client.ConnectionOptions{TLS: &tls.Config{}}}
	if _, err := controlplane.New(s.Config, controlplane.Options{Temporal: secure}); err != nil {
		t.Errorf("Temporal with TLS: %v", err)
	}
}
