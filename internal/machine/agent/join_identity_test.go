package agent_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/activities/node/fakeruntime"
	"berth/internal/control/cloud"
	"berth/internal/control/cloud/identity"
	"berth/internal/control/cloud/identity/identitytest"
	"berth/internal/machine/agent"
	machineidentity "berth/internal/machine/identity"
	"berth/wire"
)

// launched requests and sends a launch whose provider demands an identity. It returns the bootstrap of the machine,
// whose instance the cloud has confirmed.
func (s *site) launched(id berth.MachineID, v cloud.Identities, at cloud.Offering, instance string) cloud.Bootstrap {
	s.t.Helper()
	s.accounts = cloud.Accounts{Providers: map[string]cloud.Account{"burst": {Identities: v}}}
	s.serves()
	at.Type, at.Market = "big", cloud.Spot
	_, err := s.db.Launches.Request(s.t.Context(), cloud.Request{Pool: "burst", Provider: "burst", Offering: at},
		[]berth.MachineID{id}, "", "operator:test")
	if err != nil {
		s.t.Fatal(err)
	}
	var boot cloud.Bootstrap
	ref := cloud.Ref{Machine: id, N: 1}
	same := func(t time.Time) time.Time { return t }
	_, _, err = s.db.Launches.Send(s.t.Context(), ref, cloud.DefaultLimits, same,
		func(r cloud.Record, secret string) (cloud.Sealed, error) {
			request, err := s.accounts.Request(r, secret)
			boot = request.Bootstrap
			return cloud.Sealed{Hash: request.Hash(), KeyID: "k", Request: []byte("r"), Identity: v.Source()}, err
		})
	if err == nil {
		_, err = s.db.Launches.Change(s.t.Context(), ref, func(r cloud.Record, now time.Time) (cloud.Record, error) {
			return r.See(cloud.Instance{ID: instance, State: cloud.Running}, now)
		})
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return boot
}

// boots is the agent of a launched machine, with the settings that cloud-init gives it, before its start. Its
// metadata service is at the address.
func (s *site) boots(id berth.MachineID, boot cloud.Bootstrap, metadata string) *machine {
	s.t.Helper()
	m := &machine{s: s, id: id, logs: &lockedBuffer{}, runtime: fakeruntime.New(fakeruntime.Options{CPUMilli: 64000})}
	s.t.Cleanup(m.runtime.Shutdown)
	m.cfg = s.config(m, m.runtime, boot.JoinToken)
	var err error
	m.cfg.Identity, err = machineidentity.Open(string(boot.Identity.Source)+"="+metadata, boot.Identity.Audience)
	if err != nil {
		s.t.Fatal(err)
	}
	return m
}

func TestALaunchedMachineProvesItsIdentity(t *testing.T) {
	t.Parallel()
	const account, instance, name, number = "123456789012", "i-0123456789abcdef0", "vm-1-1-0a1b", "152986662232938449"
	t.Run("ec2", func(t *testing.T) {
		t.Parallel()
		aws := identitytest.New(t, 1024)
		metadata := httptest.NewServer(aws)
		t.Cleanup(metadata.Close)
		v, err := identity.NewEC2(account, aws.Certificate("aws.pem"))
		if err != nil {
			t.Fatal(err)
		}
		s := newSite(t)
		boot := s.launched("vm-1", v, cloud.Offering{Region: "eu-west-1"}, instance)
		aws.Instance(identitytest.Document(account, instance, "eu-west-1", "eu-west-1a"), nil)
		m := s.boots("vm-1", boot, metadata.URL)
		m.start()
		m.until("machine is ready", func() bool { return s.machineState("vm-1") == berth.MachineReady })
	})
	t.Run("gce", func(t *testing.T) {
		t.Parallel()
		google := identitytest.New(t, 2048)
		set := identitytest.KeySet(google)
		keys := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(set) }))
		metadata := httptest.NewServer(google)
		t.Cleanup(func() { keys.Close(); metadata.Close() })
		v, err := identity.NewGCE("burst", keys.URL, identity.KeyOptions{Client: keys.Client()})
		if err != nil {
			t.Fatal(err)
		}
		s := newSite(t)
		at := cloud.Offering{Region: "europe-west4", Zone: "europe-west4-b"}
		boot := s.launched("vm-1", v, at, "europe-west4-b/"+name+"/"+number)
		google.Instance(nil, identitytest.Claims("burst", "europe-west4-b", name, number, "", time.Now()))
		m := s.boots("vm-1", boot, metadata.URL)
		m.start()
		m.until("machine is ready", func() bool { return s.machineState("vm-1") == berth.MachineReady })
	})
}

// Another instance of the same account has copied the join token: its own document is no proof.
func TestACopiedJoinTokenIsUselessOnAnotherInstance(t *testing.T) {
	t.Parallel()
	aws := identitytest.New(t, 1024)
	metadata := httptest.NewServer(aws)
	t.Cleanup(metadata.Close)
	v, err := identity.NewEC2("123456789012", aws.Certificate("aws.pem"))
	if err != nil {
		t.Fatal(err)
	}
	s := newSite(t)
	boot := s.launched("vm-1", v, cloud.Offering{Region: "eu-west-1"}, "i-1")
	aws.Instance(identitytest.Document("123456789012", "i-2", "eu-west-1", "eu-west-1a"), nil)
	thief := s.boots("vm-1", boot, metadata.URL)
	err = agent.Run(t.Context(), thief.cfg)
	if !berth.IsSlug(err, wire.SlugIdentityRefused) || !strings.Contains(err.Error(), `instance "i-2"`) {
		t.Errorf("the agent of another instance: %v", err)
	}
	aws.Instance(identitytest.Document("123456789012", "i-1", "eu-west-1", "eu-west-1a"), nil)
	m := s.boots("vm-1", boot, metadata.URL)
	m.start() // the refusal has not used the token up
	m.until("machine is ready", func() bool { return s.machineState("vm-1") == berth.MachineReady })
}

// The metadata service may be late, and its answers foreign: the agent tries again and sends nothing.
func TestTheAgentWaitsForItsMetadataService(t *testing.T) {
	t.Parallel()
	aws := identitytest.New(t, 1024)
	metadata := httptest.NewServer(aws)
	t.Cleanup(metadata.Close)
	v, err := identity.NewEC2("123456789012", aws.Certificate("aws.pem"))
	if err != nil {
		t.Fatal(err)
	}
	s := newSite(t)
	boot := s.launched("vm-1", v, cloud.Offering{Region: "eu-west-1"}, "i-1")
	m := s.boots("vm-1", boot, metadata.URL)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- agent.Run(ctx, m.cfg) }()
	m.until("the agent has asked in vain", func() bool { return strings.Contains(m.logs.text(), "the metadata service answers 404") })
	aws.Instance(identitytest.Document("123456789012", "i-1", "eu-west-1", "eu-west-1a"), nil)
	m.until("machine is ready", func() bool { return s.machineState("vm-1") == berth.MachineReady })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
