package main

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"berth/internal/control/cloud"
	"berth/internal/control/cloud/cloudtest"
	"berth/internal/control/cloud/gce/gcefake"
	"berth/internal/control/cloud/offers"
)

// gceSettings are valid settings of a pool.
const gceSettings = `{"image": "projects/berth-test/global/images/gpu", "agent": {"url": "https://berth.example/agent",
	"sha256": "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}}`

// The whole way from berthd to the cloud: a process each call, the SDK, a service account's file, and HTTP.
func TestGCEConformsAsAProgram(t *testing.T) {
	t.Parallel()
	cloudtest.Run(t, func(t *testing.T) cloudtest.Subject {
		fake := gcefake.New(gcefake.Options{Boot: time.Minute, End: time.Minute, Token: "ya29.example"})
		var unsent atomic.Bool
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/token" && unsent.Swap(false) {
				http.Error(w, "unavailable", http.StatusServiceUnavailable) // no refusal of the credentials
				return
			}
			fake.ServeHTTP(w, r)
		}))
		t.Cleanup(server.Close)
		s := cloudtest.Subject{
			Offering: cloud.Offering{Region: "eu-test1", Zone: "eu-test1-a", Type: "g2-standard-8", Market: cloud.Spot},
			Other:    cloud.Offering{Region: "eu-test1", Zone: "eu-test1-a", Type: "n2-standard-8", Market: cloud.OnDemand},
			Regions:  []string{"eu-test1"}, Settings: json.RawMessage(gceSettings), Forgets: true,
			Created: func() int { return len(fake.Instances()) },
			Finish:  func() { fake.Advance(time.Minute) },
		}
		s.Inject = func(f cloudtest.Fault) {
			if f == cloudtest.Unsent {
				unsent.Store(true)
				return
			}
			fake.Inject(gceFaults[f])
		}
		s.Unknown = cloud.Instance{ID: "eu-test1-a/burst-9-1-0123456789ab/7", Offering: s.Offering}
		s.Provider = program(t, nil, "gce", "--config", gceConfigFile(t, server.URL))
		return s
	})
}

// gceConfigFile writes the files of a configuration.
func gceConfigFile(t *testing.T, endpoint string) string {
	t.Helper()
	prices := file(t, "offers.csv", offers.Header+"\n"+
		"# example values, no prices of a cloud\n"+
		"gce,eu-test1,eu-test1-a,g2-standard-8,spot,8,32768,1,L4,0.5,example value,2026-11-26\n"+
		"gce,eu-test1,eu-test1-a,n2-standard-8,on_demand,8,32768,0,,0.4,example value,2026-11-26\n")
	return file(t, "gce.yaml", fmt.Sprintf("project: %s\noffers: %s\ncredentials_file: %s\nendpoint: %s\n",
		gcefake.Project, prices, serviceAccount(t, endpoint), endpoint))
}

// serviceAccount writes the file of a service account, whose tokens the fake hands out.
func serviceAccount(t *testing.T, endpoint string) string {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(map[string]string{
		"type": "service_account", "project_id": gcefake.Project, "private_key_id": "1", "client_id": "1",
		"private_key":  string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
		"client_email": "berth@berth-test.iam.gserviceaccount.com", "token_uri": endpoint + "/token",
	})
	if err != nil {
		t.Fatal(err)
	}
	return file(t, "credentials.json", string(text))
}

// gceFaults are the faults of the suite as GCE shows them.
var gceFaults = map[cloudtest.Fault]gcefake.Fault{
	cloudtest.Before:   {Kind: gcefake.Cut},
	cloudtest.After:    {Kind: gcefake.CutAfter},
	cloudtest.Throttle: {Kind: gcefake.Refuse, Status: 429, Reason: "rateLimitExceeded"},
	cloudtest.Capacity: {Kind: gcefake.Refuse, Status: 503, Reason: "ZONE_RESOURCE_POOL_EXHAUSTED"},
	cloudtest.Quota:    {Kind: gcefake.Refuse, Status: 403, Reason: "quotaExceeded"},
	cloudtest.Auth:     {Kind: gcefake.Refuse, Status: 401, Reason: "authError"},
	cloudtest.Hang:     {Kind: gcefake.Timeout},
}

func TestBadConfigurationsOfGCEAreNamed(t *testing.T) {
	t.Parallel()
	keys := "\ncredentials_file: " + serviceAccount(t, "http://127.0.0.1:1")
	project := "project: berth-test\ncredentials_file: "
	for config, want := range map[string]string{
		"/no/such/file":                               "--config: open /no/such/file",
		file(t, "a.yaml", "ofers: x\n"):               `unknown field "ofers"`,
		file(t, "b.yaml", "project: Berth"+keys):      `project "Berth": it must be the id of a Google project`,
		file(t, "c.yaml", project+"/no/such/key"):     "get credentials: credentials_file: open /no/such/key",
		file(t, "d.yaml", project+file(t, "k", `{}`)): "get credentials: credentials_file: ",
		file(t, "e.yaml", "project: berth-test"+keys): "get credentials: auth: cannot fetch token",
	} {
		_, err := program(t, nil, "gce", "--config", config).List(t.Context(), "cluster", []string{"eu-test1"})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", config, err, want)
		}
		kind := cloud.Unknown // the program fails
		if strings.HasPrefix(want, "get credentials") {
			kind = cloud.Auth
		}
		if strings.HasSuffix(want, "cannot fetch token") { // the next call may get one
			kind = cloud.Throttle
		}
		if e := new(cloud.Error); !errors.As(err, &e) || e.Kind != kind {
			t.Errorf("%s: error %v, want kind %s", config, err, kind)
		}
	}
}
