package main

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/internal/control/cloud"
	"berth/internal/control/cloud/cloudexec"
	"berth/internal/control/cloud/cloudtest"
	"berth/internal/control/cloud/ec2/ec2fake"
	"berth/internal/control/cloud/offers"
)

// asProgram makes the test binary run as berth-cloud.
const asProgram = "BERTH_CLOUD_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// program returns a provider that runs berth-cloud as berthd does.
func program(t *testing.T, env []string, args ...string) *cloudexec.Provider {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p, err := cloudexec.New(cloudexec.Options{
		Name: "test", Command: append([]string{self}, args...), Env: append(env, asProgram+"=1"),
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// file writes a file into a folder of the test.
func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// settings are valid settings of a pool.
const settings = `{"images": {"eu-test-1": "ami-1"}, "agent": {"url": "https://berth.example/agent",
	"sha256": "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}}`

// The whole way from berthd to the cloud: a process each call, the SDK, credentials of a file, and HTTP.
func TestEC2ConformsAsAProgram(t *testing.T) {
	t.Parallel()
	cloudtest.Run(t, func(t *testing.T) cloudtest.Subject {
		fake := ec2fake.New(ec2fake.Options{Boot: time.Minute, End: time.Minute, AccessKey: "AKIDEXAMPLE"})
		server := httptest.NewServer(fake)
		t.Cleanup(server.Close)
		s := cloudtest.Subject{
			Offering: cloud.Offering{Region: "eu-test-1", Zone: "eu-test-1a", Type: "gpu.8x", Market: cloud.Spot},
			Other:    cloud.Offering{Region: "eu-test-1", Zone: "eu-test-1a", Type: "plain", Market: cloud.OnDemand},
			Regions:  []string{"eu-test-1"}, Settings: json.RawMessage(settings),
			Created: func() int { return len(fake.Instances()) },
			Finish:  func() { fake.Advance(time.Minute) },
		}
		lost := filepath.Join(t.TempDir(), "lost") // while it exists, one call gets no credentials
		s.Inject = func(f cloudtest.Fault) {
			if f == cloudtest.Unsent {
				if err := os.WriteFile(lost, nil, 0o600); err != nil {
					t.Error(err)
				}
				return
			}
			fake.Inject(faults[f])
		}
		keys := file(t, "keys.sh", `if mv "$1" "$1.taken" 2>/dev/null; then exit 1; fi
			echo '{"Version": 1, "AccessKeyId": "AKIDEXAMPLE", "SecretAccessKey": "example"}'`)
		s.Unknown = cloud.Instance{ID: "i-0123456789abcdef0", Offering: s.Offering}
		s.Provider = program(t, nil, "ec2", "--config", configWith(t, server.URL, "credential_process = /bin/sh "+keys+" "+lost))
		return s
	})
}

// configWith writes the files of a configuration with these credentials.
func configWith(t *testing.T, endpoint, credentials string) string {
	t.Helper()
	prices := file(t, "offers.csv", offers.Header+"\n"+
		"# example values, no prices of a cloud\n"+
		"ec2,eu-test-1,eu-test-1a,gpu.8x,spot,192,2097152,8,H100,12.5,example value,2026-11-26\n"+
		"ec2,eu-test-1,eu-test-1a,plain,on_demand,64,512000,0,,1.25,example value,2026-11-26\n")
	keys := file(t, "credentials", "[burst]\n"+credentials+"\n")
	return file(t, "ec2.yaml", fmt.Sprintf("offers: %s\ncredentials_file: %s\nprofile: burst\nendpoint: %s\n", prices, keys, endpoint))
}

// faults are the faults of the suite as EC2 shows them.
var faults = map[cloudtest.Fault]ec2fake.Fault{
	cloudtest.Before:   {Kind: ec2fake.Cut},
	cloudtest.After:    {Kind: ec2fake.CutAfter},
	cloudtest.Throttle: {Kind: ec2fake.Refuse, Status: 503, Code: "RequestLimitExceeded"},
	cloudtest.Capacity: {Kind: ec2fake.Refuse, Status: 500, Code: "InsufficientInstanceCapacity"},
	cloudtest.Quota:    {Kind: ec2fake.Refuse, Status: 400, Code: "MaxSpotInstanceCountExceeded"},
	cloudtest.Auth:     {Kind: ec2fake.Refuse, Status: 401, Code: "AuthFailure"},
	cloudtest.Hang:     {Kind: ec2fake.Timeout},
}

// A bad file of prices must not keep a machine from being terminated.
func TestBadOffersOnlyFailTheCallForOffers(t *testing.T) {
	t.Parallel()
	fake := ec2fake.New(ec2fake.Options{})
	server := httptest.NewServer(fake)
	t.Cleanup(server.Close)
	keys := []string{"AWS_ACCESS_KEY_ID=AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY=example"}
	bad := file(t, "offers.csv", "no prices")
	p := program(t, keys, "ec2", "--config", file(t, "ec2.yaml", "offers: "+bad+"\nendpoint: "+server.URL+"\n"))
	if _, err := p.Offers(t.Context(), nil); err == nil || !strings.Contains(err.Error(), bad) {
		t.Errorf("offers: %v", err)
	}
	all, err := p.List(t.Context(), "cluster", []string{"eu-test-1"})
	if err != nil || len(all) != 0 {
		t.Errorf("list: %v, %v", all, err)
	}
}

func TestBadConfigurationsAreNamed(t *testing.T) {
	t.Parallel()
	for config, want := range map[string]string{
		"/no/such/file":                             "--config: open /no/such/file",
		file(t, "a.yaml", "ofers: x\n"):             `unknown field "ofers"`,
		file(t, "b.yaml", "profile: no-such-one\n"): "no-such-one",
	} {
		_, err := program(t, nil, "ec2", "--config", config).List(t.Context(), "cluster", []string{"eu-test-1"})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", config, err, want)
		}
	}
}
