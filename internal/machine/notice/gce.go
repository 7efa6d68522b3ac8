package notice

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"berth/wire"
)

// GCEAddress is the metadata server of a GCE instance: its address, so that no answer of DNS decides.
const GCEAddress = "http://169.254.169.254"

// Times of notices of GCE. Its metadata names no time of the machine's end, so the end is counted from the
// first answer with the notice.
const (
	// PreemptionLead is the time from a preemption notice to the end of a spot instance.
	PreemptionLead = 30 * time.Second
	// MaintenanceLead is the least time from a notice of maintenance to the end of the instance. For some
	// machine types it is longer, and the metadata does not say so.
	MaintenanceLead = time.Minute
	// holdFor is the time for which the metadata server holds a request until the value changes.
	holdFor = 2 * time.Second
)

// Paths and headers of the metadata server.
const (
	preemptedPath   = "/computeMetadata/v1/instance/preempted"
	maintenancePath = "/computeMetadata/v1/instance/maintenance-event"
	flavorHeader    = "Metadata-Flavor"
	flavor          = "Google"
)

// GCE is a source that reads the metadata server of a GCE instance.
//
// Each look reads maintenance-event: GCE gives its warning only to instances that have asked since the
// last maintenance. Then it waits for a change of preempted. The request names the tag of the last
// answer, so a change between two requests is answered at once.
type GCE struct {
	base string
	http *http.Client
	etag string // of the last answer about preempted; "": none

	limit time.Duration // of a call, without the time for which the server holds it
	hold  time.Duration // for which the server holds a request until the value changes; whole seconds

	// The machine's end by each notice, as first seen; zero: no notice in the last answer.
	preempted, maintenance time.Time
}

// NewGCE returns a source that calls the metadata server at base, without a proxy of the environment.
func NewGCE(base string) *GCE { return newGCE(base, callLimit, holdFor) }

// newGCE returns a source with given limits for each call. Tests set limits that a busy machine does not exceed.
func newGCE(base string, limit, hold time.Duration) *GCE {
	return &GCE{base: base, http: metadataClient(hold+limit, limit), limit: limit, hold: hold}
}

// Look implements Reader. A failed request leaves the last answer of its key as it is, and does not hide
// a notice of the other key.
func (g *GCE) Look(ctx context.Context) (State, error) {
	quick, cancel := context.WithTimeout(ctx, g.limit)
	maintenance := g.lookForMaintenance(quick)
	cancel()
	err := errors.Join(maintenance, g.lookForPreemption(ctx))
	var s State
	switch {
	case !g.preempted.IsZero() && (g.maintenance.IsZero() || g.preempted.Before(g.maintenance)):
		s.End = &wire.CloudNotice{Kind: wire.NoticeSpot, Deadline: g.preempted}
	case !g.maintenance.IsZero():
		s.End = &wire.CloudNotice{Kind: wire.NoticeMaintenance, Deadline: g.maintenance}
	}
	return s, err
}

// lookForMaintenance reads maintenance-event. A live migration ends no container.
func (g *GCE) lookForMaintenance(ctx context.Context) error {
	value, _, err := g.get(ctx, maintenancePath)
	if err != nil {
		return err
	}
	switch value {
	case "NONE", "MIGRATE_ON_HOST_MAINTENANCE":
		g.maintenance = time.Time{}
	case "TERMINATE_ON_HOST_MAINTENANCE":
		g.maintenance = firstSeen(g.maintenance, MaintenanceLead)
	default:
		return fmt.Errorf("%w: maintenance-event is %.200q: allowed are NONE, MIGRATE_ON_HOST_MAINTENANCE and "+
			"TERMINATE_ON_HOST_MAINTENANCE", ErrMalformed, value)
	}
	return nil
}

// lookForPreemption reads preempted. All but the first request wait for a change.
func (g *GCE) lookForPreemption(ctx context.Context) error {
	path, limit := preemptedPath, g.limit
	if g.etag != "" {
		limit += g.hold
		path += "?wait_for_change=true&timeout_sec=" + strconv.Itoa(int(g.hold/time.Second)) +
			"&last_etag=" + url.QueryEscape(g.etag)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	value, etag, err := g.get(ctx, path)
	g.etag = etag // after an error the next request does not wait
	if err != nil {
		return err
	}
	switch value {
	case "FALSE":
		g.preempted = time.Time{}
	case "TRUE":
		g.preempted = firstSeen(g.preempted, PreemptionLead)
	default:
		g.etag = ""
		return fmt.Errorf("%w: preempted is %.200q: allowed are TRUE and FALSE", ErrMalformed, value)
	}
	return nil
}

// firstSeen returns the machine's end by a notice. A notice that is still shown keeps its first end.
func firstSeen(end time.Time, lead time.Duration) time.Time {
	if !end.IsZero() {
		return end
	}
	return time.Now().Add(lead).UTC().Truncate(time.Second)
}

// etags is the allowed form of a tag.
var etags = regexp.MustCompile(`^[!-~]{1,128}$`)

// get returns the value of a key, and its tag or "". Only the metadata server sends the header with which
// requests are marked, too.
func (g *GCE) get(ctx context.Context, path string) (value, etag string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, g.base+path, nil)
	if err != nil {
		return "", "", err
	}
	req.Header.Set(flavorHeader, flavor)
	r, err := g.http.Do(req)
	if err != nil {
		return "", "", fmt.Errorf("metadata server: %w", err)
	}
	defer r.Body.Close()
	body, err := bounded(r.Body, path)
	key, _, _ := strings.Cut(path, "?")
	switch {
	case r.StatusCode != http.StatusOK:
		return "", "", fmt.Errorf("GET %s: the metadata server answers %s", key, strings.TrimSpace(r.Status))
	case err != nil:
		return "", "", fmt.Errorf("GET %s: %w", key, err)
	case r.Header.Get(flavorHeader) != flavor:
		return "", "", fmt.Errorf("%w: GET %s: the answer has no header %s: %s", ErrMalformed, key, flavorHeader,
			flavor)
	}
	if etag = r.Header.Get("ETag"); !etags.MatchString(etag) {
		etag = ""
	}
	return strings.TrimSuffix(string(body), "\n"), etag, nil
}
