package ec2

import (
	"context"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"

	"berth/internal/control/cloud"
	"berth/internal/control/cloud/ec2/ec2fake"
)

// After an upgrade a repeated launch may be another request, for example with other user data. EC2
// refuses its token; the tag with the hash of the launch shows that the instance is the launch's.
func TestRefusedTokenOfTheSameLaunchIsARepetition(t *testing.T) {
	t.Parallel()
	fake := ec2fake.New(ec2fake.Options{})
	server := httptest.NewServer(fake)
	t.Cleanup(server.Close)
	p := New(Options{Endpoint: server.URL, Config: aws.Config{
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "AKIDEXAMPLE", SecretAccessKey: "example"}, nil
		}),
	}})
	l := cloud.Launch{
		Token: cloud.Token("c", "1", "burst-1", 1), Cluster: "c", Pool: "burst", Machine: "burst-1", N: 1,
		Offering:  cloud.Offering{Region: "eu-test-1", Zone: "eu-test-1a", Type: "g6.xlarge", Market: cloud.OnDemand},
		Bootstrap: cloud.Bootstrap{URL: "https://berth.example", JoinToken: "berth_SECRET"},
		Settings: json.RawMessage(`{"images": {"eu-test-1": "ami-1"}, "agent": {"url": "https://berth.example/agent",
			"sha256": "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}}`),
	}
	r, err := request(l)
	if err != nil {
		t.Fatal(err)
	}
	r.UserData = aws.String("b2xk") // as the version before rendered it
	out, err := p.client(l.Offering.Region).RunInstances(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	i, err := p.Create(t.Context(), l)
	if err != nil || i.ID != *out.Instances[0].InstanceId {
		t.Fatalf("the repetition returns %+v, %v", i, err)
	}
	other := l
	other.Bootstrap.JoinToken += "2"
	var e *cloud.Error
	if _, err := p.Create(t.Context(), other); !errors.As(err, &e) || e.Kind != cloud.Mismatch {
		t.Errorf("another launch with the token: %v", err)
	}
	if err := p.Terminate(t.Context(), i); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Create(t.Context(), l); !errors.As(err, &e) || e.Kind != cloud.Mismatch {
		t.Errorf("the token of an ended instance: %v", err)
	}
	if n := len(fake.Instances()); n != 1 {
		t.Errorf("there are %d instances", n)
	}
}
