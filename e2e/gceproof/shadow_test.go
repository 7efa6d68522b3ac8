package gceproof

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	k8s "github.com/GoogleCloudPlatform/k8s-cloud-provider/pkg/cloud"
	"github.com/GoogleCloudPlatform/k8s-cloud-provider/pkg/cloud/filter"
	"github.com/GoogleCloudPlatform/k8s-cloud-provider/pkg/cloud/meta"
	compute "google.golang.org/api/compute/v1"
	"google.golang.org/api/googleapi"

	"berth/internal/control/cloud/gce/gcefake"
)

// inMemory returns the in-memory GCE without instances.
func inMemory() *k8s.MockInstances {
	return k8s.NewMockGCE(&k8s.SingleProjectRouter{ID: gcefake.Project}).MockInstances
}

// shadow is a server in front of gcefake. It repeats each call on the in-memory GCE, and reports answers that differ.
type shadow struct {
	t    *testing.T
	fake http.Handler
	mock *k8s.MockInstances

	mu       sync.Mutex
	calls    []string          // answered since the last call of taken, in order, as "get absent"
	requests map[string]bool   // ids of accepted inserts
	names    map[string]string // of instances, by zone and number
	listed   []string          // names on the earlier pages of a list, with their zones
}

// judged are the calls on instances; the in-memory GCE has no operations.
var judged = regexp.MustCompile(`^/compute/v1/projects/[^/]+/(?:(aggregated)|zones/([^/]+))/instances(?:/([^/]+))?$`)

// ServeHTTP answers as gcefake does.
func (s *shadow) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		s.t.Error(err)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	answer := httptest.NewRecorder()
	s.fake.ServeHTTP(answer, r)
	if m := judged.FindStringSubmatch(r.URL.Path); m != nil {
		s.judge(r, m[2], m[3], body, answer)
	}
	maps.Copy(w.Header(), answer.Header())
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes())
}

// judge repeats a call on the in-memory GCE, and compares the answers.
func (s *shadow) judge(r *http.Request, zone, name string, body []byte, answer *httptest.ResponseRecorder) {
	ctx := r.Context()
	switch {
	case r.Method == http.MethodPost:
		i := s.read(body, "a request of the provider")
		id := r.URL.Query().Get("requestId")
		if s.requests[zone+id] {
			s.calls = append(s.calls, "insert repeats")
			return
		}
		if answer.Code == http.StatusOK {
			s.requests[zone+id] = true
			// From now on the name stands for another number.
			maps.DeleteFunc(s.names, func(number, name string) bool {
				return name == i.Name && strings.HasPrefix(number, zone+"/")
			})
		}
		s.agree("insert", answer, s.mock.Insert(ctx, meta.ZonalKey(i.Name, zone), i))
	case r.Method == http.MethodDelete: // by number, of which the in-memory GCE has none
		known, ok := s.names[zone+"/"+name]
		if !ok {
			s.calls = append(s.calls, "delete by number")
			return
		}
		s.agree("delete", answer, s.mock.Delete(ctx, meta.ZonalKey(known, zone)))
	case zone == "":
		s.judgeList(ctx, r, answer)
	default:
		i, err := s.mock.Get(ctx, meta.ZonalKey(name, zone))
		s.agree("get", answer, err)
		if err == nil && answer.Code == http.StatusOK {
			shown := s.read(answer.Body.Bytes(), "an instance of gcefake")
			s.names[zone+"/"+strconv.FormatUint(shown.Id, 10)] = shown.Name
			if one, other := s.content(shown), s.content(i); one != other {
				s.t.Errorf("get %s: gcefake shows\n%s\nthe in-memory GCE\n%s", name, one, other)
			}
		}
	}
}

// judgeList compares the names in a whole list. The in-memory GCE cannot filter by a label, so the label is compared
// here.
func (s *shadow) judgeList(ctx context.Context, r *http.Request, answer *httptest.ResponseRecorder) {
	var page struct {
		Items map[string]struct {
			Instances []struct{ Name string }
		}
		NextPageToken string
	}
	if err := json.Unmarshal(answer.Body.Bytes(), &page); err != nil {
		s.t.Error(err)
	}
	for scope, list := range page.Items {
		for _, i := range list.Instances {
			s.listed = append(s.listed, scope+"/"+i.Name)
		}
	}
	if page.NextPageToken != "" {
		return
	}
	label, value, _ := strings.Cut(strings.TrimPrefix(r.URL.Query().Get("filter"), "labels."), "=")
	var want []string
	for _, zone := range gcefake.Zones {
		all, err := s.mock.List(ctx, zone, filter.None)
		s.agree("list", answer, err)
		for _, i := range all {
			if i.Labels[label] == value {
				want = append(want, "zones/"+zone+"/"+i.Name)
			}
		}
	}
	s.calls = append(s.calls[:len(s.calls)-len(gcefake.Zones)], fmt.Sprintf("list %d", len(s.listed)))
	slices.Sort(want)
	slices.Sort(s.listed)
	if !slices.Equal(want, s.listed) {
		s.t.Errorf("gcefake lists %q, the in-memory GCE %q", s.listed, want)
	}
	s.listed = nil
}

// outcomes are the words for the statuses of answers.
var outcomes = map[int]string{http.StatusOK: "ok", http.StatusNotFound: "absent", http.StatusConflict: "exists"}

// agree compares the outcome of a call with the error of the in-memory GCE.
func (s *shadow) agree(call string, answer *httptest.ResponseRecorder, err error) {
	status := http.StatusOK
	if e, ok := errors.AsType[*googleapi.Error](err); ok {
		status = e.Code
	} else if err != nil {
		s.t.Errorf("%s: %v", call, err)
	}
	if status != answer.Code {
		s.t.Errorf("%s: gcefake answers %d, the in-memory GCE %d (%v): %s", call, answer.Code, status, err, answer.Body)
	}
	s.calls = append(s.calls, call+" "+outcomes[answer.Code])
}

// taken returns the calls since the last call of taken.
func (s *shadow) taken() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := s.calls
	s.calls = nil
	return calls
}

// read reads an instance into the type of Google's other client, which knows each of its fields.
func (s *shadow) read(text []byte, whose string) *compute.Instance {
	i := &compute.Instance{}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(i); err != nil {
		s.t.Errorf("%s: %v\n%s", whose, err, text)
	}
	return i
}

// content returns an instance without the fields that the server adds. The in-memory GCE adds the link alone.
func (s *shadow) content(i *compute.Instance) string {
	text, err := json.Marshal(i)
	if err != nil {
		s.t.Error(err)
	}
	one := s.read(text, "an instance")
	one.Id, one.Kind, one.SelfLink, one.Status, one.Zone, one.CreationTimestamp = 0, "", "", "", "", ""
	one.MachineType = path.Base(one.MachineType)
	if one.Metadata != nil {
		one.Metadata.Fingerprint = ""
		slices.SortFunc(one.Metadata.Items, func(a, b *compute.MetadataItems) int {
			return strings.Compare(a.Key, b.Key)
		})
	}
	if text, err = json.MarshalIndent(one, "", " "); err != nil {
		s.t.Error(err)
	}
	return string(text)
}
