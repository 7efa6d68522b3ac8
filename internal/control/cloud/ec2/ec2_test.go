package ec2_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"berth"
	"berth/internal/control/cloud"
	"berth/internal/control/cloud/cloudtest"
	"berth/internal/control/cloud/ec2"
	"berth/internal/control/cloud/ec2/ec2fake"
)

const uid = "0197c1a2-5f3b-7d1e-9a55-1b2c3d4e5f60"

// keys are credentials of the tests. The fake knows no secrets.
var keys = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
	return aws.Credentials{AccessKeyID: "AKIDEXAMPLE", SecretAccessKey: "example"}, nil
})

// settings are valid settings of a pool.
const settings = `{
	"images": {"eu-test-1": "ami-1", "eu-test-2": "ami-2"},
	"subnets": {"eu-test-1a": "subnet-a", "eu-test-2": "subnet-2"},
	"security_groups": {"eu-test-1": ["sg-1"]},
	"instance_profile": "berth-machine", "key_name": "operators",
	"root_disk": {"device": "/dev/xvda", "gib": 200}, "tags": {"team": "vision", "cost": "17"},
	"agent": {"url": "https://berth.example/agents/amd64", "sha256": "` + hash + `"}
}`

const hash = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// open returns a provider with a cloud of its own.
func open(t *testing.T, o ec2fake.Options) (*ec2.Provider, *ec2fake.Cloud) {
	t.Helper()
	fake := ec2fake.New(o)
	server := httptest.NewServer(fake)
	t.Cleanup(server.Close)
	return ec2.New(ec2.Options{Config: aws.Config{Credentials: keys}, Endpoint: server.URL}), fake
}

func offering() cloud.Offering {
	return cloud.Offering{Region: "eu-test-1", Zone: "eu-test-1a", Type: "g6.xlarge", Market: cloud.Spot}
}

func launch(machine berth.MachineID) cloud.Launch {
	return cloud.Launch{
		Token: cloud.Token(uid, "1", machine, 1), Cluster: uid, Pool: "burst", Machine: machine, N: 1, Offering: offering(),
		Bootstrap: cloud.Bootstrap{URL: "https://berth.example", JoinToken: "berth_SECRET"}, Settings: json.RawMessage(settings),
	}
}

func create(t *testing.T, p *ec2.Provider, l cloud.Launch) cloud.Instance {
	t.Helper()
	i, err := p.Create(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// want checks kind and text of an error.
func want(t *testing.T, err error, kind cloud.Kind, text string) *cloud.Error {
	t.Helper()
	var e *cloud.Error
	if !errors.As(err, &e) || e.Kind != kind || !strings.Contains(err.Error(), text) {
		t.Fatalf("error %v, want one of kind %s with %q", err, kind, text)
	}
	return e
}

func TestProviderConforms(t *testing.T) {
	t.Parallel()
	cloudtest.Run(t, func(t *testing.T) cloudtest.Subject {
		fake := ec2fake.New(ec2fake.Options{Boot: time.Minute, End: time.Minute})
		server := httptest.NewServer(fake)
		t.Cleanup(server.Close)
		s := cloudtest.Subject{
			Offering: offering(), Regions: []string{"eu-test-1", "eu-test-2"}, Settings: json.RawMessage(settings),
			Other:   cloud.Offering{Region: "eu-test-1", Zone: "eu-test-1b", Type: "p5.48xlarge", Market: cloud.OnDemand},
			Created: func() int { return len(fake.Instances()) },
			Finish:  func() { fake.Advance(time.Minute) },
			Unknown: cloud.Instance{ID: "i-0123456789abcdef0", Offering: offering()},
		}
		var unsent atomic.Bool
		s.Inject = func(f cloudtest.Fault) {
			if f == cloudtest.Unsent {
				unsent.Store(true)
				return
			}
			fake.Inject(faults[f])
		}
		failing := aws.CredentialsProviderFunc(func(ctx context.Context) (aws.Credentials, error) {
			if unsent.Swap(false) {
				return aws.Credentials{}, errors.New("no answer")
			}
			return keys(ctx)
		})
		s.Provider = ec2.New(ec2.Options{
			Config: aws.Config{Credentials: failing}, Endpoint: server.URL,
			Offers: func() ([]cloud.Offer, error) {
				return []cloud.Offer{
					{Offering: s.Offering, CPUs: 4, MemoryMiB: 1 << 14}, {Offering: s.Other, CPUs: 192, MemoryMiB: 1 << 21},
				}, nil
			},
		})
		return s
	})
}

// faults are the faults of the suite as EC2 shows them.
var faults = map[cloudtest.Fault]ec2fake.Fault{
	cloudtest.Before:   {Kind: ec2fake.Refuse, Status: 503, Code: "Unavailable"},
	cloudtest.After:    {Kind: ec2fake.ErrorAfter, Status: 500, Code: "InternalError"},
	cloudtest.Throttle: {Kind: ec2fake.Refuse, Status: 503, Code: "RequestLimitExceeded"},
	cloudtest.Capacity: {Kind: ec2fake.Refuse, Status: 500, Code: "InsufficientInstanceCapacity"},
	cloudtest.Quota:    {Kind: ec2fake.Refuse, Status: 400, Code: "VcpuLimitExceeded"},
	cloudtest.Auth:     {Kind: ec2fake.Refuse, Status: 403, Code: "UnauthorizedOperation"},
	cloudtest.Hang:     {Kind: ec2fake.Timeout},
}

func TestRequestIsSafeAndTagged(t *testing.T) {
	t.Parallel()
	p, fake := open(t, ec2fake.Options{})
	l := launch("burst-1")
	create(t, p, l)
	i := fake.Instances()[0]
	for name, value := range map[string]string{
		"ClientToken": l.Token, "MinCount": "1", "MaxCount": "1", "ImageId": "ami-1", "InstanceType": "g6.xlarge",
		"Placement.AvailabilityZone": "eu-test-1a", "SubnetId": "subnet-a", "SecurityGroupId.1": "sg-1",
		"InstanceInitiatedShutdownBehavior": "terminate",
		"MetadataOptions.HttpTokens":        "required", "MetadataOptions.HttpPutResponseHopLimit": "1",
		"InstanceMarketOptions.MarketType":                               "spot",
		"InstanceMarketOptions.SpotOptions.SpotInstanceType":             "one-time",
		"InstanceMarketOptions.SpotOptions.InstanceInterruptionBehavior": "terminate",
		"IamInstanceProfile.Name":                                        "berth-machine", "KeyName": "operators",
		"BlockDeviceMapping.1.DeviceName": "/dev/xvda", "BlockDeviceMapping.1.Ebs.VolumeSize": "200",
		"BlockDeviceMapping.1.Ebs.DeleteOnTermination": "true",
		"TagSpecification.1.ResourceType":              "instance", "TagSpecification.2.ResourceType": "volume",
	} {
		if i.Params[name] != value {
			t.Errorf("%s is %q, want %q", name, i.Params[name], value)
		}
	}
	for name, value := range map[string]string{
		"Name": "burst-1", "berth:cluster": uid, "berth:pool": "burst", "berth:machine": "burst-1", "berth:launch": "1",
		"berth:token": l.Token, "berth:hash": l.Hash(), "team": "vision", "cost": "17",
	} {
		if i.Tags[name] != value {
			t.Errorf("tag %s is %q, want %q", name, i.Tags[name], value)
		}
	}
	userData, err := base64.StdEncoding.DecodeString(i.Params["UserData"])
	if err != nil || !strings.HasPrefix(string(userData), "#cloud-config\n") || !strings.Contains(string(userData), "berth_SECRET") {
		t.Errorf("user data %q, %v", userData, err)
	}
	// On demand, in the zone of the region's subnet.
	l = launch("burst-2")
	l.Offering = cloud.Offering{Region: "eu-test-2", Type: "g6.xlarge", Market: cloud.OnDemand}
	if got := create(t, p, l); got.Offering.Market != cloud.OnDemand || got.Offering.Zone == "" {
		t.Errorf("the offering is %s", got.Offering)
	}
	i = fake.Instances()[1]
	if i.Params["InstanceMarketOptions.MarketType"] != "" || i.Params["SubnetId"] != "subnet-2" || i.Params["ImageId"] != "ami-2" {
		t.Errorf("the parameters are %v", i.Params)
	}
}

// The published codes have their kinds; the SDK repeats none of the calls.
func TestErrorCodesHaveKinds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status int
		code   string
		kind   cloud.Kind
		scope  string
	}{
		{500, "InsufficientInstanceCapacity", cloud.Capacity, "eu-test-1/eu-test-1a/g6.xlarge/spot"},
		{400, "SpotMaxPriceTooLow", cloud.Capacity, "eu-test-1/eu-test-1a/g6.xlarge/spot"},
		{400, "VcpuLimitExceeded", cloud.Quota, "eu-test-1/VcpuLimitExceeded/g"},
		{400, "MaxSpotInstanceCountExceeded", cloud.Quota, "eu-test-1/MaxSpotInstanceCountExceeded/g"},
		{400, "InsufficientFreeAddressesInSubnet", cloud.Network, "eu-test-1/eu-test-1a"},
		{503, "RequestLimitExceeded", cloud.Throttle, "eu-test-1"},
		{400, "Throttling", cloud.Throttle, "eu-test-1"},
		{403, "UnauthorizedOperation", cloud.Auth, "eu-test-1"},
		{401, "AuthFailure", cloud.Auth, "eu-test-1"},
		{400, "RequestExpired", cloud.Auth, "eu-test-1"},
		{400, "OptInRequired", cloud.Auth, "eu-test-1"},
		{400, "IdempotentParameterMismatch", cloud.Mismatch, ""},
		{400, "IdempotentInstanceTerminated", cloud.Mismatch, ""},
		{400, "InvalidAMIID.NotFound", cloud.Spec, "eu-test-1/eu-test-1a/g6.xlarge/spot"},
		{400, "Unsupported", cloud.Spec, "g6.xlarge"},
		{400, "CodeOfNextYear", cloud.Spec, "eu-test-1/eu-test-1a/g6.xlarge/spot"},
		{500, "InternalError", cloud.Unknown, ""},
		{503, "Unavailable", cloud.Unknown, ""},
		{502, "CodeOfNextYear", cloud.Unknown, ""},
	} {
		p, fake := open(t, ec2fake.Options{})
		fake.Inject(ec2fake.Fault{Kind: ec2fake.Refuse, Status: c.status, Code: c.code})
		_, err := p.Create(t.Context(), launch("burst-1"))
		if e := want(t, err, c.kind, c.code); e.Scope != c.scope {
			t.Errorf("%s has the scope %q, want %q", c.code, e.Scope, c.scope)
		}
		if n := fake.Calls("RunInstances"); n != 1 {
			t.Errorf("after %s the SDK sent the request %d times: a repeat is the caller's to order", c.code, n)
		}
	}
}

// A family of types without quota keeps no other family from being tried: each has a quota of its own.
func TestAQuotaIsOfAFamilyOfTypes(t *testing.T) {
	t.Parallel()
	for kind, family := range map[string]string{"p5.48xlarge": "p", "p4d.24xlarge": "p", "g6.xlarge": "g", "m7i.large": "m", "vt1.3xlarge": "vt",
		"u-6tb1.metal": "u", "trn1.2xlarge": "trn", "odd": "odd"} {
		p, fake := open(t, ec2fake.Options{})
		fake.Inject(ec2fake.Fault{Kind: ec2fake.Refuse, Status: 400, Code: "VcpuLimitExceeded"})
		l := launch("burst-1")
		l.Offering.Type = kind
		_, err := p.Create(t.Context(), l)
		if e := want(t, err, cloud.Quota, "VcpuLimitExceeded"); e.Scope != "eu-test-1/VcpuLimitExceeded/"+family {
			t.Errorf("%s is refused by the quota %s", kind, e.Scope)
		}
	}
}

// Without an answer of EC2 nothing is known, and the token finds the one instance.
func TestLostAnswersEndInOneInstance(t *testing.T) {
	t.Parallel()
	for _, kind := range []ec2fake.FaultKind{ec2fake.Cut, ec2fake.CutAfter, ec2fake.Garbage, ec2fake.ExecuteAndTimeout} {
		p, fake := open(t, ec2fake.Options{})
		l := launch("burst-1")
		fake.Inject(ec2fake.Fault{Kind: kind})
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		if kind == ec2fake.ExecuteAndTimeout {
			go func() { // the caller gives up after the effect
				for ctx.Err() == nil && len(fake.Instances()) == 0 {
					time.Sleep(time.Millisecond)
				}
				cancel()
			}()
		}
		_, err := p.Create(ctx, l)
		cancel()
		want(t, err, cloud.Unknown, "")
		if n := fake.Calls("RunInstances"); n != 1 {
			t.Errorf("%s: the SDK sent the request %d times", kind, n)
		}
		create(t, p, l)
		if n := len(fake.Instances()); n != 1 {
			t.Errorf("%s: there are %d instances", kind, n)
		}
	}
}

// A new instance shows late: NotFound right after Create proves nothing.
func TestNewInstancesShowLate(t *testing.T) {
	t.Parallel()
	p, fake := open(t, ec2fake.Options{Lag: time.Minute, End: time.Minute})
	l := launch("burst-1")
	i := create(t, p, l)
	_, err := p.Find(t.Context(), l)
	want(t, err, cloud.NotFound, "no instance with the token")
	want(t, p.Terminate(t.Context(), i), cloud.NotFound, "InvalidInstanceID.NotFound")
	if state := fake.State(i.ID); state != "running" {
		t.Errorf("the instance is %s", state)
	}
	fake.Advance(time.Minute)
	if found, err := p.Find(t.Context(), l); err != nil || found.ID != i.ID {
		t.Errorf("found %+v, %v", found, err)
	}
	if err := p.Terminate(t.Context(), i); err != nil {
		t.Fatal(err)
	}
	fake.Advance(2 * time.Minute)
	if found, err := p.Find(t.Context(), l); err != nil || found.State != cloud.Terminated {
		t.Errorf("found %+v, %v", found, err)
	}
	fake.Advance(2 * time.Hour) // EC2 forgets it
	_, err = p.Find(t.Context(), l)
	want(t, err, cloud.NotFound, "")
}

// The answer to Terminate may be wrong: only the state that a later read shows counts.
func TestTerminateMayLie(t *testing.T) {
	t.Parallel()
	p, fake := open(t, ec2fake.Options{})
	l := launch("burst-1")
	i := create(t, p, l)
	fake.Inject(ec2fake.Fault{Action: "TerminateInstances", Kind: ec2fake.Ignore})
	if err := p.Terminate(t.Context(), i); err != nil {
		t.Fatal(err)
	}
	if found, err := p.Find(t.Context(), l); err != nil || found.State != cloud.Running {
		t.Errorf("found %+v, %v", found, err)
	}
}

func TestStockAndQuotasAreKinds(t *testing.T) {
	t.Parallel()
	p, fake := open(t, ec2fake.Options{
		Stock: map[string]int{ec2fake.Key("eu-test-1a", "g6.xlarge", "spot"): 1}, Quota: map[string]int{"eu-test-1": 2},
	})
	first := create(t, p, launch("burst-1"))
	second := launch("burst-2")
	_, err := p.Create(t.Context(), second)
	want(t, err, cloud.Capacity, "InsufficientInstanceCapacity")
	second.N, second.Offering.Zone = 2, "eu-test-1b"
	second.Token = cloud.Token(uid, "1", second.Machine, 2)
	create(t, p, second)
	_, err = p.Create(t.Context(), launch("burst-3"))
	want(t, err, cloud.Quota, "MaxSpotInstanceCountExceeded")
	fake.Reclaim(first.ID)
	if found, err := p.Find(t.Context(), launch("burst-1")); err != nil || found.State != cloud.Terminated ||
		found.Reason != "Server.SpotInstanceTermination" {
		t.Errorf("found %+v, %v", found, err)
	}
	create(t, p, launch("burst-3"))
}

// EC2 binds a token to no zone. A caller that sends a launch for another zone gets a second instance, which
// is why another offering is another launch; Find then returns the first.
// A token of EC2 holds for a zone, so a repeat in a zone of EC2's choice may create a second instance.
func TestALaunchWithoutAZoneOrASubnetIsNotSent(t *testing.T) {
	t.Parallel()
	p, fake := open(t, ec2fake.Options{})
	l := launch("burst-1")
	l.Offering.Zone = "" // the only subnet of its region is that of a zone
	_, err := p.Create(t.Context(), l)
	e, ok := errors.AsType[*cloud.Error](err)
	if !ok || e.Kind != cloud.Spec || e.Scope != l.Offering.String() ||
		!strings.Contains(err.Error(), "name one of them") {
		t.Errorf("%v, want an error of kind spec for the offering", err)
	}
	if n := len(fake.Instances()); n != 0 {
		t.Errorf("%d instances exist, want none", n)
	}
}

func TestTokenIsNotBoundToAZone(t *testing.T) {
	t.Parallel()
	p, fake := open(t, ec2fake.Options{})
	l := launch("burst-1")
	first := create(t, p, l)
	fake.Advance(time.Second)
	l.Offering.Zone = "eu-test-1b"
	if second := create(t, p, l); second.ID == first.ID {
		t.Error("the fake does not follow the documents")
	}
	if found, err := p.Find(t.Context(), l); err != nil || found.ID != first.ID {
		t.Errorf("found %+v, %v", found, err)
	}
	if err := p.Terminate(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if found, err := p.Find(t.Context(), l); err != nil || found.ID == first.ID {
		t.Errorf("after the end of the first, found %+v, %v", found, err)
	}
}

// A list without one of the regions would look as if its instances were gone.
func TestListIsWholeOrFails(t *testing.T) {
	t.Parallel()
	p, fake := open(t, ec2fake.Options{})
	create(t, p, launch("burst-1"))
	l := launch("burst-2")
	l.Offering.Region, l.Offering.Zone = "eu-test-2", "eu-test-2a"
	create(t, p, l)
	if all, err := p.List(t.Context(), uid, []string{"eu-test-1", "eu-test-2"}); err != nil || len(all) != 2 {
		t.Fatalf("%+v, %v", all, err)
	}
	fake.Inject(ec2fake.Fault{})
	fake.Inject(ec2fake.Fault{Kind: ec2fake.Refuse, Status: 403, Code: "UnauthorizedOperation"})
	all, err := p.List(t.Context(), uid, []string{"eu-test-1", "eu-test-2"})
	if e := want(t, err, cloud.Auth, "eu-test-2"); e.Scope != "eu-test-2" || all != nil {
		t.Errorf("scope %s, list %v", e.Scope, all)
	}
	_, err = p.List(t.Context(), uid, nil)
	want(t, err, cloud.Spec, "name the regions")
}

func TestRemovedTagsLeaveTheToken(t *testing.T) {
	t.Parallel()
	p, fake := open(t, ec2fake.Options{})
	l := launch("burst-1")
	fake.Untag(create(t, p, l).ID)
	if i, err := p.Find(t.Context(), l); err != nil || i.Token != l.Token || i.Cluster != "" {
		t.Errorf("found %+v, %v", i, err)
	}
}

// Nothing is sent without credentials, so the failure is certain.
func TestMissingCredentialsAreOfKindAuth(t *testing.T) {
	t.Parallel()
	fake := ec2fake.New(ec2fake.Options{})
	server := httptest.NewServer(fake)
	t.Cleanup(server.Close)
	p := ec2.New(ec2.Options{Endpoint: server.URL})
	_, err := p.Create(t.Context(), launch("burst-1"))
	want(t, err, cloud.Auth, "credentials")
	want(t, p.Terminate(t.Context(), cloud.Instance{ID: "i-1", Offering: offering()}), cloud.Auth, "credentials")
	if n := fake.Calls("RunInstances") + fake.Calls("TerminateInstances"); n != 0 {
		t.Errorf("%d calls were sent", n)
	}
}

// Only a refusal of the credentials is of kind Auth, which stops all launches of the provider.
// After another failure the caller repeats the call, of which EC2 has received nothing.
func TestFailedFetchesOfCredentialsAreRepeated(t *testing.T) {
	t.Parallel()
	answer := func(status int, code string) error {
		return fmt.Errorf("get identity: %w", &smithyhttp.ResponseError{Response: &smithyhttp.Response{Response: &http.Response{StatusCode: status}},
			Err: &smithy.GenericAPIError{Code: code}})
	}
	for _, c := range []struct {
		err  error
		kind cloud.Kind
	}{
		{answer(400, "InvalidIdentityToken"), cloud.Auth},
		{answer(401, "Unauthorized"), cloud.Auth},
		{answer(403, "AccessDenied"), cloud.Auth},
		{answer(404, "ResourceNotFoundException"), cloud.Auth}, // of a source that other hosts share
		{answer(400, "Throttling"), cloud.Throttle},
		{answer(400, "RequestLimitExceeded"), cloud.Throttle},
		{answer(403, "ThrottlingException"), cloud.Throttle},
		{answer(429, "TooManyRequests"), cloud.Throttle},
		{answer(408, "RequestTimeout"), cloud.Throttle},
		{answer(500, "InternalFailure"), cloud.Throttle},
		{answer(503, "ServiceUnavailable"), cloud.Throttle},
		{&net.DNSError{Err: "no such host", Name: "sts.example", IsNotFound: true}, cloud.Throttle},
		{fmt.Errorf("imds: %w", &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}), cloud.Throttle},
		{context.DeadlineExceeded, cloud.Throttle},
		{errors.New("the file of the token is missing"), cloud.Throttle},
	} {
		fake := ec2fake.New(ec2fake.Options{})
		server := httptest.NewServer(fake)
		t.Cleanup(server.Close)
		failing := aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) { return aws.Credentials{}, c.err })
		p := ec2.New(ec2.Options{Config: aws.Config{Credentials: failing}, Endpoint: server.URL})
		_, err := p.Create(t.Context(), launch("burst-1"))
		if e := want(t, err, c.kind, "get credentials"); e.Unsent != (c.kind == cloud.Throttle) {
			t.Errorf("%v: unsent is %v", err, e.Unsent)
		}
		_, err = p.Find(t.Context(), launch("burst-1"))
		want(t, err, c.kind, "get credentials")
		if n := fake.Calls("RunInstances") + fake.Calls("DescribeInstances"); n != 0 {
			t.Errorf("%d calls were sent", n)
		}
	}
}

// A host without a role, or whose metadata service is switched off, says nothing about the other hosts of berthd.
func TestAHostWithoutARoleLeavesTheCallToOthers(t *testing.T) {
	t.Parallel()
	for _, status := range []int{404, 403} {
		var asked atomic.Int32
		host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			asked.Add(1)
			w.WriteHeader(status)
		}))
		t.Cleanup(host.Close)
		c, err := config.LoadDefaultConfig(t.Context(), config.WithEC2IMDSEndpoint(host.URL),
			config.WithRegion("eu-test-1"),
			config.WithSharedConfigFiles([]string{}), config.WithSharedCredentialsFiles([]string{}))
		if err != nil {
			t.Fatal(err)
		}
		_, err = ec2.New(ec2.Options{Config: c}).Create(t.Context(), launch("burst-1"))
		if e := want(t, err, cloud.Throttle, "get credentials"); !e.Unsent || asked.Load() == 0 {
			t.Errorf("status %d: unsent is %v, the host was asked %d times: %v", status, e.Unsent, asked.Load(), err)
		}
	}
}

func TestBadSettingsAreOfKindSpecAndNotSent(t *testing.T) {
	t.Parallel()
	p, fake := open(t, ec2fake.Options{})
	for _, c := range []struct {
		settings string
		want     []string
	}{
		{``, []string{"they are empty"}},
		{`{"image": "ami-1"}`, []string{`unknown field "image"`}},
		{`{"agent": {"url": "http://x"}}`, []string{"images: name an image", "agent.url", "agent.sha256"}},
		{`{"images": {"eu-test-1": "ami-1"}}`, []string{"berthd with --agent-binaries"}},
		{
			`{"images": {"eu-test-1": "1"}, "subnets": {"eu-test-1": "net"}, "security_groups": {"eu-test-1": ["default"]},
			  "root_disk": {"device": "xvda", "gib": 0}, "tags": {"aws:x": "", "berth:pool": "", "Name": ""}}`,
			[]string{`images.eu-test-1 "1"`, `subnets.eu-test-1 "net"`, `security_groups.eu-test-1 "default"`, `root_disk "xvda" of 0 gib`,
				"tags.aws:x", "tags.berth:pool", "tags.Name"},
		},
		{strings.ReplaceAll(settings, "eu-test-1", "eu-test-3"), []string{"images has no entry for region eu-test-1"}},
	} {
		l := launch("burst-1")
		l.Settings = json.RawMessage(c.settings)
		_, err := p.Create(t.Context(), l)
		for _, text := range c.want {
			e := want(t, err, cloud.Spec, text)
			if region := e.Scope == l.Offering.Region; region != strings.HasPrefix(text, "images has no entry") {
				t.Errorf("%v has the scope %q", err, e.Scope)
			}
		}
	}
	l := launch("burst-1")
	l.Bootstrap.CA = strings.Repeat("A", 17<<10)
	_, err := p.Create(t.Context(), l)
	want(t, err, cloud.Spec, "EC2 allows 16384")
	want(t, p.Terminate(t.Context(), cloud.Instance{}), cloud.Spec, "no id or no region")
	want(t, p.Terminate(t.Context(), cloud.Instance{ID: "node-1", Offering: offering()}), cloud.Spec, "Malformed")
	if n := fake.Calls("RunInstances"); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}

// A pool without an agent of its own installs the one that berthd serves, by the hash of the launch.
func TestInstanceInstallsTheAgentOfTheCluster(t *testing.T) {
	t.Parallel()
	p, fake := open(t, ec2fake.Options{})
	l := launch("burst-1")
	l.Settings = json.RawMessage(`{"images": {"eu-test-1": "ami-1"}}`)
	l.Bootstrap.Agents = map[string]string{"linux-amd64": hash}
	create(t, p, l)
	userData, err := base64.StdEncoding.DecodeString(fake.Instances()[0].Params["UserData"])
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"AGENT_BASE='https://berth.example/downloads/berth-agent'", "AGENT_SHA256_AMD64='" + hash} {
		if !strings.Contains(string(userData), text) {
			t.Errorf("the user data lacks %s:\n%s", text, userData)
		}
	}
}

func ExampleParseSettings() {
	_, err := ec2.ParseSettings(json.RawMessage(`{"images": {"eu-west-1": "debian-12"}, "agent": {"url": "https://berth.example/agent", "sha256": "` + hash + `"}}`))
	fmt.Println(err)
	// Output: settings of the pool: images.eu-west-1 "debian-12": an image begins with ami-
}
