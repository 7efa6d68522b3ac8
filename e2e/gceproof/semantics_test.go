package gceproof

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/auth"
	"github.com/GoogleCloudPlatform/k8s-cloud-provider/pkg/cloud/filter"
	"github.com/GoogleCloudPlatform/k8s-cloud-provider/pkg/cloud/meta"
	compute "google.golang.org/api/compute/v1"
	"google.golang.org/api/googleapi"

	"berth"
	"berth/internal/control/cloud"
	"berth/internal/control/cloud/gce"
	"berth/internal/control/cloud/gce/gcefake"
)

const uid = "0197c1a2-5f3b-7d1e-9a55-1b2c3d4e5f60"

// settings are valid settings of a pool, with each part that a request may have.
const settings = `{
	"image": "projects/berth-images/global/images/family/berth-gpu",
	"network": "global/networks/burst", "subnetworks": {"eu-test1": "regions/eu-test1/subnetworks/burst"},
	"network_tags": ["berth"], "service_account": "berth@berth-test.iam.gserviceaccount.com", "external_ip": true,
	"disk": {"gib": 200, "type": "pd-balanced"}, "max_run_duration": "24h",
	"labels": {"team": "vision", "cost": "17"}, "metadata": {"enable-oslogin": "TRUE"},
	"agent": {"url": "https://berth.example/agents/amd64",
		"sha256": "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}
}`

// credentials are an access token that gcefake accepts.
type credentials struct{}

func (credentials) Token(context.Context) (*auth.Token, error) {
	return &auth.Token{Value: "example"}, nil
}

// open returns the provider over gcefake, with the in-memory GCE in its shadow.
func open(t *testing.T) (*gce.Provider, *shadow) {
	t.Helper()
	s := &shadow{t: t, fake: gcefake.New(gcefake.Options{}), mock: inMemory(), requests: map[string]bool{},
		names: map[string]string{}}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	p, err := gce.New(gce.Options{Project: gcefake.Project, Credentials: credentials{}, Endpoint: server.URL,
		Poll: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return p, s
}

// launch returns the first launch of a machine.
func launch(machine berth.MachineID) cloud.Launch {
	return cloud.Launch{
		Token: cloud.Token(uid, "1", machine, 1), Cluster: uid, Pool: "burst", Machine: machine, N: 1,
		Offering:  cloud.Offering{Region: "eu-test1", Zone: "eu-test1-a", Type: "g2-standard-8", Market: cloud.Spot},
		Bootstrap: cloud.Bootstrap{URL: "https://berth.example", JoinToken: "berth_SECRET"},
		Settings:  json.RawMessage(settings),
	}
}

// namesake returns another launch whose instance has the same name: a name has the first digits of the token alone.
func namesake(l cloud.Launch, last string) cloud.Launch {
	l.Token = l.Token[:31] + last
	return l
}

// kindOf returns the kind of an error of the provider, or "".
func kindOf(err error) cloud.Kind {
	if e, ok := errors.AsType[*cloud.Error](err); ok {
		return e.Kind
	}
	return ""
}

// A sequence of calls of the provider has the same outcomes on both models. Each step also names the calls that both
// have judged, so a step that nothing judges fails.
func TestBothModelsAgree(t *testing.T) {
	t.Parallel()
	p, s := open(t)
	l := launch("burst-1")
	elsewhere, foreign := l, launch("foreign")
	elsewhere.Offering.Zone = "eu-test1-b"
	foreign.Cluster, foreign.Token = "other", cloud.Token("other", "1", "foreign", 1)
	digits := slices.DeleteFunc([]string{"a", "b", "c"}, func(d string) bool { return strings.HasSuffix(l.Token, d) })
	var first cloud.Instance
	create := func(l cloud.Launch) func() error {
		return func() error {
			i, err := p.Create(t.Context(), l)
			if first.ID == "" {
				first = i
			}
			return err
		}
	}
	find := func(l cloud.Launch) func() error {
		return func() error {
			_, err := p.Find(t.Context(), l)
			return err
		}
	}
	list := func() error {
		_, err := p.List(t.Context(), uid, []string{"eu-test1", "eu-test2"})
		return err
	}
	remove := func() error { return p.Terminate(t.Context(), first) }
	for _, step := range []struct {
		name string
		call func() error
		kind cloud.Kind // of the provider's error
		want string     // the judged calls
	}{
		{"list of an empty cloud", list, "", "list 0"},
		{"get before insert", find(l), cloud.NotFound, "get absent"},
		{"insert", create(l), "", "insert ok, get ok"},
		{"insert with the same request id", create(l), "", "insert repeats, get ok"},
		{"insert of a name in use", create(namesake(l, digits[0])), cloud.Mismatch, "insert exists, get ok"},
		{"insert of the name in another zone", create(elsewhere), "", "insert ok, get ok"},
		{"insert by another cluster", create(foreign), "", "insert ok, get ok"},
		{"get", find(l), "", "get ok"},
		{"get of a name that was never used", find(launch("burst-9")), cloud.NotFound, "get absent"},
		{"list with the filter of the cluster", list, "", "list 2"},
		{"delete", remove, "", "delete ok"},
		{"get after delete", find(l), "", "get absent"},
		{"list after delete", list, "", "list 1"},
		{"delete again", remove, "", "delete absent"},
		{"insert with the request id of the deleted instance", create(l), cloud.Mismatch, "insert repeats, get absent"},
		{"insert of the deleted name", create(namesake(l, digits[1])), "", "insert ok, get ok"},
		{"delete of the deleted instance whose name is in use", remove, "", "delete by number"},
		{"get of the new instance", find(namesake(l, digits[1])), "", "get ok"},
		{"get in the other zone", find(elsewhere), "", "get ok"},
		{"list at the end", list, "", "list 2"},
	} {
		err := step.call()
		calls := strings.Join(s.taken(), ", ")
		t.Logf("%-52s %s", step.name, calls)
		if kind := kindOf(err); kind != step.kind || err != nil && kind == "" || calls != step.want {
			t.Errorf("%s: error %v, judged %q; want kind %q and %q", step.name, err, calls, step.kind, step.want)
		}
	}
	// More than one page of a list.
	for n := range 7 {
		if err := create(launch(berth.MachineID(fmt.Sprint("more-", n))))(); err != nil {
			t.Fatal(err)
		}
	}
	s.taken()
	if err := list(); err != nil || !slices.Equal(s.taken(), []string{"list 9"}) {
		t.Errorf("a list of two pages: %v", err)
	}
}

// The limits of the in-memory GCE. Where a version lifts one, the comparison above can judge more.
func TestTheInMemoryGCECannotJudge(t *testing.T) {
	t.Parallel()
	ctx, mock, key := t.Context(), inMemory(), meta.ZonalKey("burst-1", gcefake.Zones[0])
	status := func(err error) int {
		if e, ok := errors.AsType[*googleapi.Error](err); ok {
			return e.Code
		}
		return http.StatusOK
	}
	// Operations and their errors, such as missing capacity: an insert returns an error alone.
	var insert func(i *compute.Instance) error = func(i *compute.Instance) error { return mock.Insert(ctx, key, i) }
	if err := insert(&compute.Instance{Labels: map[string]string{"berth-cluster": uid}}); err != nil {
		t.Errorf("it validates requests: an instance without disks and type is refused: %v", err)
	}
	if err := insert(&compute.Instance{}); status(err) != http.StatusConflict {
		t.Errorf("it knows request ids: a repeated insert is not refused: %v", err)
	}
	i, err := mock.Get(ctx, key)
	if err != nil || i.Id != 0 || i.Status != "" || i.CreationTimestamp != "" {
		t.Errorf("it has numbers, states or times: %+v, %v", i, err)
	}
	for pattern, want := range map[string]int{"name": 1, "labels.berth-cluster": 0} {
		if list, err := mock.List(ctx, key.Zone, filter.Regexp(pattern, ".*")); err != nil || len(list) != want {
			t.Errorf("a filter by %s selects %d instances, want %d: %v", pattern, len(list), want, err)
		}
	}
	// A deleted instance is gone at once: there is no time in which it stops.
	if err := mock.Delete(ctx, key); err != nil {
		t.Error(err)
	}
	if _, err := mock.Get(ctx, key); status(err) != http.StatusNotFound {
		t.Errorf("it shows an instance that stops: %v", err)
	}
}
